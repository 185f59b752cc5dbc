"""From what a client sends to token ids. Strings of special tokens in a message are refused: a user must not be able
to write the end of their own turn.

What a chat template costs, its author decides and not the length of the messages, so it never runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvops.errors import InvalidRequest, ModelError
from kvops.models.chat import ChatTemplate, load_chat_template
from kvops.models.tokenizer import Tokenizer, load_tokenizer
from kvops.node.rendering import Renderer

if TYPE_CHECKING:
    from kvops.node.api.schemas import Message

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
            if any(token >= vocabulary for token in prompt):
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

    def _chat(self, messages: Sequence[Message]) -> list[int]:
        for at, message in enumerate(messages):
            found = next((token for token in self._special if token in message.text), None)
            if found is not None:
                raise InvalidRequest(
                    "a message holds a special token of the model as text.",
                    param=f"messages[{at}].content",
                )
        rows = [{"role": m.template_role, "content": m.text} for m in messages]
        try:
            return self._template.encode(rows, self.tokenizer, add_generation_prompt=True)
        except ModelError as error:
            raise InvalidRequest(
                f"{error.message}.", param="messages", hint="Use /v1/completions."
            ) from None


async def _off_loop(size: int, work: Any, argument: Any) -> list[int]:
    """Short texts are read at once; a thread for them costs more than it spares."""
    tokens: list[int] = (
        await asyncio.to_thread(work, argument) if size > _OFF_LOOP_CHARS else work(argument)
    )
    return tokens
