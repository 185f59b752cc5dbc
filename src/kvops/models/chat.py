"""Chat templates: messages to the prompt that a model was trained on. Templates come from strangers and run in
the sandbox only.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from kvops.errors import InvalidRequest, ModelCorrupt, ModelError, ModelUnsupported
from kvops.models.gguf_header import read_gguf_header
from kvops.models.hf_model import read_json_if_there
from kvops.models.sandbox import MAX_CPU_SECONDS, Sandbox, TemplateRefusal
from kvops.models.template_bounds import TemplateTooLarge
from kvops.models.tokenizer import Tokenizer, token_name

Message = dict[str, str]

MAX_TEMPLATE_BYTES = 256 * 1024
PROBE_SECONDS = 0.25
"""Of computing for a greeting: with a template that takes longer a few short requests would fill a core."""
_PROBE = ({"role": "user", "content": "Hello"},)
_NO_CHAT = "send plain completions instead"
_BROKEN = (
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    MemoryError,
    SyntaxError,
)


class ChatTemplate:
    """Safe to share between threads. A model may have none that works: `available` tells, `render` says why."""

    def __init__(self, source: str | None, special_names: dict[str, str]) -> None:
        """`special_names`: what `bos_token`, `eos_token` … stand for. Raises ModelCorrupt for a hostile source."""
        self._names = special_names
        self._lock = threading.Lock()
        self._sandbox = Sandbox()
        self._template: jinja2.Template | None = None
        self._problem: ModelError = ModelUnsupported(
            "this model has no chat template", hint=_NO_CHAT
        )
        try:
            self._template = None if source is None else _compile(self._sandbox, source)
        except ModelUnsupported as problem:
            self._problem = problem
        self._try_out()

    @property
    def available(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt as text. Raises ModelUnsupported without a template or for one that fails, ModelCorrupt
        for one that breaks out of its bounds, InvalidRequest when the template refuses these messages."""
        if self._template is None:
            raise self._problem.with_traceback(None)
        return self._render(messages, add_generation_prompt, MAX_CPU_SECONDS)

    def _try_out(self) -> None:
        """A template that goes over its bounds for a greeting is none: it would for every request."""
        if self._template is None:
            return
        try:
            self._render(_PROBE, True, PROBE_SECONDS)
        except ModelCorrupt as problem:
            self._template, self._problem = None, problem
        except (ModelUnsupported, InvalidRequest):
            pass  # it may want other messages than these

    def _render(self, messages: Sequence[Message], prompt: bool, seconds: float) -> str:
        assert self._template is not None
        given = [dict(message) for message in messages]
        values: dict[str, Any] = {"messages": given, "tools": None, "documents": None}
        try:
            with self._lock:
                self._sandbox.begin(seconds)
                return self._template.render(**values, **self._names, add_generation_prompt=prompt)
        except (jinja2.TemplateError, *_BROKEN) as error:
            raise _explained(error) from error

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The prompt as token ids. A special token's name inside a message stays plain text: whoever writes a
        message cannot end it or speak in another role."""
        quoted, originals = _quote(messages, tokenizer)
        prompt = self.render(quoted, add_generation_prompt=add_generation_prompt)
        ids: list[int] = []
        for place, part in enumerate(_split(prompt, originals)):
            text = originals[part] if place % 2 else part
            ids += tokenizer.encode(text, special=place % 2 == 0) if text else []
        return ids


def load_chat_template(path: Path) -> ChatTemplate:
    """The template of a .gguf file or a folder in HF layout. Raises ModelCorrupt, ModelUnsupported."""
    return _from_folder(path) if path.is_dir() else _from_gguf(path)


def _from_gguf(path: Path) -> ChatTemplate:
    metadata = read_gguf_header(path).metadata
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    names = {}
    for key, name in {
        "bos": "bos_token",
        "eos": "eos_token",
        "unknown": "unk_token",
        "padding": "pad_token",
    }.items():
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            names[name] = str(tokens[number])
    source = metadata.get("tokenizer.chat_template")
    return ChatTemplate(None if source is None else str(source), names)


def _from_folder(folder: Path) -> ChatTemplate:
    settings = read_json_if_there(folder / "tokenizer_config.json")
    keys = ("bos_token", "eos_token", "unk_token", "pad_token")
    found = {key: token_name(settings.get(key)) for key in keys}
    names = {key: name for key, name in found.items() if name is not None}
    return ChatTemplate(_folder_source(folder, settings.get("chat_template")), names)


def _folder_source(folder: Path, setting: Any) -> str | None:
    """`chat_template.jinja` if there, else the setting: a string, or a list with one named `default`."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        if file.stat().st_size > MAX_TEMPLATE_BYTES:
            raise ModelCorrupt(f"{file.name} is larger than {MAX_TEMPLATE_BYTES} bytes")
        return file.read_text(errors="replace")
    if isinstance(setting, list):
        named = {
            entry.get("name"): entry.get("template") for entry in setting if isinstance(entry, dict)
        }
        setting = named.get("default")
    return setting if isinstance(setting, str) else None


def _compile(sandbox: Sandbox, source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_BYTES:
        raise ModelCorrupt(f"the chat template is larger than {MAX_TEMPLATE_BYTES} bytes")
    try:
        return sandbox.from_string(source)
    except (jinja2.TemplateError, *_BROKEN) as error:
        raise _explained(error) from error


def _explained(error: BaseException) -> Exception:
    reason = str(error)[:300] or type(error).__name__
    match error:
        case TemplateRefusal():
            return InvalidRequest(
                f"the model's chat template refuses these messages: {reason}", param="messages"
            )
        case TemplateTooLarge() | OverflowError() | RecursionError() | MemoryError():
            return ModelCorrupt(f"the chat template goes over its bounds: {reason}")
        case SecurityError():
            return ModelCorrupt(f"the chat template reaches outside its sandbox: {reason}")
        case _:
            return ModelUnsupported(f"the chat template fails: {reason}", hint=_NO_CHAT)


def _quote(
    messages: Sequence[Message], tokenizer: Tokenizer
) -> tuple[list[Message], dict[str, str]]:
    """Messages with each special token's name replaced by a mark that no message can contain by design."""
    nonce = secrets.randbelow(10**18)  # digits: templates may change the case of letters
    marks = {
        f"\ue000{nonce}-{place}\ue001": name for place, name in enumerate(tokenizer.special_tokens)
    }
    used: dict[str, str] = {}
    quoted = []
    for message in messages:
        content = message["content"]
        for mark, name in marks.items():
            if name in content:
                content, used[mark] = content.replace(name, mark), name
        quoted.append(message | {"content": content})
    return quoted, used


def _split(prompt: str, originals: dict[str, str]) -> list[str]:
    """The prompt cut at the marks: text, mark, text, mark, …, text."""
    if not originals:
        return [prompt]
    return re.split("(" + "|".join(map(re.escape, originals)) + ")", prompt)
