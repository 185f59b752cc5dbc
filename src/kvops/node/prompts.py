"""From what a client sends to token ids. Strings of special tokens in a message are refused: a user must not be able
to write the end of their own turn.

What a chat template costs, its author decides and not the length of the messages, so it never runs on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kvops.errors import InvalidRequest, ModelError
from kvops.models.chat import ChatTemplate, load_chat_template
from kvops.models.tokenizer import Tokenizer, load_tokenizer
from kvops.node.length import Segment, Worth
from kvops.node.rendering import Renderer

if TYPE_CHECKING:
    from kvops.node.api.schemas import Message

A = TypeVar("A")
T = TypeVar("T")
_OFF_LOOP_CHARS = 4096


class PromptReader:
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self._template = template
        self._special = sorted(tokenizer.special_tokens)
        self._renderer = Renderer()

    @classmethod
    def load(cls, path: Path) -> PromptReader:
        """Raises ModelError."""
        return cls(load_tokenizer(path), load_chat_template(path))

    async def completion(
        self, prompt: str | list[int], vocabulary: int, param: str = "prompt"
    ) -> list[int]:
        """Raises InvalidRequest for an empty prompt or an id that the model does not have."""
        if isinstance(prompt, list):
            if prompt and max(prompt) >= vocabulary:  # at C's speed: it may be millions
                raise InvalidRequest(
                    f"a token id is not below the vocabulary size of {vocabulary}.", param=param
                )
            tokens = prompt
        else:
            tokens = await _off_loop(len(prompt), self.tokenizer.encode_prompt, prompt)
        if not tokens:
            raise InvalidRequest("the prompt is empty.", param=param)
        return tokens

    async def chat(self, messages: Sequence[Message]) -> list[int]:
        """Raises InvalidRequest for a special token in a message, or messages that the template refuses;
        what `Renderer.run` raises."""
        return await self._renderer.run(lambda: self._chat(messages))

    async def chat_segments(self, messages: Sequence[Message]) -> list[Segment]:
        """As `chat`, with what the messages say apart from the frame around it: for one that must be cut."""
        return await self._renderer.run(lambda: self._segments(messages))

    def plain_segments(self, tokens: list[int]) -> list[Segment]:
        """The beginning-of-text token, where the model wants one, is frame."""
        begins = self.tokenizer.adds_bos and tokens[0] == self.tokenizer.bos_token_id
        frame = tokens[:1] if begins else []
        return [Segment(frame, Worth.FRAME), Segment(tokens[len(frame) :])]

    def beginning(self, content: str | Sequence[Message]) -> list[int]:
        """What every prompt that starts with this text, or these messages, starts with. Raises InvalidRequest."""
        if isinstance(content, str):
            return self.tokenizer.encode_prompt(content)
        self._check(content)
        return self._apply(content, add_generation_prompt=False)

    def _chat(self, messages: Sequence[Message]) -> list[int]:
        self._check(messages)
        return self._apply(messages, add_generation_prompt=True)

    def _check(self, messages: Sequence[Message]) -> None:
        for at, message in enumerate(messages):
            found = next((token for token in self._special if token in message.text), None)
            if found is not None:
                raise InvalidRequest(
                    "a message holds a special token of the model as text.",
                    param=f"messages[{at}].content",
                )

    def _apply(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        rows = [{"role": m.template_role, "content": m.text} for m in messages]
        with _template_faults():
            return self._template.encode(
                rows, self.tokenizer, add_generation_prompt=add_generation_prompt
            )

    def _segments(self, messages: Sequence[Message]) -> list[Segment]:
        """The template is filled with marks in place of the contents, which are put in as tokens."""
        self._check(messages)
        nonce = secrets.randbelow(10**18)
        rows = [
            {"role": message.template_role, "content": f"\ue000{nonce}-{at}\ue001"}
            for at, message in enumerate(messages)
        ]
        with _template_faults():
            prompt = self._template.render(rows, add_generation_prompt=True)
        segments = []
        for place, part in enumerate(re.split(f"\ue000{nonce}-(\\d+)\ue001", prompt)):
            if place % 2:
                message = messages[int(part)]
                worth = Worth.SYSTEM if message.template_role == "system" else Worth.CONTENT
                segments.append(Segment(self._read(message.text, special=False), worth))
            else:
                segments.append(Segment(self._read(part, special=True), Worth.FRAME))
        return segments

    def _read(self, text: str, *, special: bool) -> list[int]:
        return self.tokenizer.encode(text, special=special) if text else []


@contextlib.contextmanager
def _template_faults() -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        raise InvalidRequest(
            f"{error.message}.", param="messages", hint="Use /v1/completions."
        ) from None


async def _off_loop(size: int, work: Callable[[A], T], argument: A) -> T:
    """Short texts are read at once; a thread for them costs more than it spares."""
    if size > _OFF_LOOP_CHARS:
        return await asyncio.to_thread(work, argument)
    return work(argument)
