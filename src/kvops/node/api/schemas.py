"""What the POST routes accept. Each field has a bound; an unknown field or a value that cannot be honoured is a 400.

Bounds that a node configures (n, stop strings, logprobs; messages in `counts`) are checked in `prepare`; these here
are ceilings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from kvops.config.schema import OverLength
from kvops.node.api.fields import (
    Body,
    DefaultTier,
    EmptyList,
    EmptyMap,
    EmptyText,
    Label,
    LogitBias,
    No,
    NoTool,
    One,
    PlainText,
    Prompts,
    Stop,
    TextOnly,
    Unsupported,
    Within,
)
from kvops.node.wire import PriorityClass

MAX_TOKENS = 10_000_000


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: No = None


class Sampling(Body):
    """The fields that completions and chat completions share."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Within(1, MAX_TOKENS)] | None = None
    min_tokens: Annotated[int, Within(0, MAX_TOKENS)] | None = None
    temperature: Annotated[float, Within(0, 2)] | None = None
    top_p: Annotated[float, Within(0, 1, excluded=True)] | None = None
    top_k: Annotated[int, Within(0, 10_000_000)] | None = None
    min_p: Annotated[float, Within(0, 1)] | None = None
    frequency_penalty: Annotated[float, Within(-2, 2)] | None = None
    presence_penalty: Annotated[float, Within(-2, 2)] | None = None
    repetition_penalty: Annotated[float, Within(0, 2, excluded=True)] | None = None
    logit_bias: LogitBias = Field(default_factory=dict)
    seed: Annotated[int, Within(-(2**63), 2**63 - 1)] | None = None
    n: Annotated[int, Within(1, 128)] | None = None
    stop: Stop = Field(default_factory=list)
    stop_token_ids: Annotated[list[int], Field(max_length=64, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    priority: PriorityClass | None = None
    over_length: OverLength | None = None
    user: Label | None = None
    metadata: EmptyMap = None

    @property
    def output_limit(self) -> int | None:
        """Tokens the client asked for at most; None where it left that open."""
        return self.max_tokens


class CompletionRequest(Sampling):
    prompt: Prompts
    logprobs: Annotated[int, Within(0, 100)] | None = None
    echo: No = None
    best_of: One = None
    suffix: EmptyText = None


class TextPart(Body):
    type: Literal["text"]
    text: str


def _join_parts(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _only_text(content: Any) -> Any:
    """Named here, since the errors of a union say too much and mean too little."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not 0 < len(content) <= 1024:
        raise PydanticCustomError("content", "must be a string or a list of text parts")
    for part in content:
        if not (
            isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
        ):
            raise PydanticCustomError(
                "content", 'holds a part that is not {"type": "text", "text": …}'
            )
        if not isinstance(part["text"], str):
            raise PydanticCustomError("content", "holds a text part whose text is not a string")
    return [TextPart(**part) for part in content]


Content = Annotated[str | list[TextPart], BeforeValidator(_only_text), AfterValidator(_join_parts)]


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: Unsupported = None
    refusal: Unsupported = None
    audio: Unsupported = None
    annotations: EmptyList = None
    tool_calls: EmptyList = None
    function_call: Unsupported = None

    @property
    def text(self) -> str:
        return str(self.content)

    @property
    def template_role(self) -> str:
        return "system" if self.role == "developer" else self.role


Messages = Annotated[list[Message], Field(min_length=1, max_length=65536, fail_fast=True)]


class ChatRequest(Sampling):
    messages: Messages
    max_completion_tokens: Annotated[int, Within(1, MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Within(0, 100)] | None = None
    response_format: PlainText = None
    tools: EmptyList = None
    tool_choice: NoTool = None
    functions: EmptyList = None
    function_call: NoTool = None
    parallel_tool_calls: bool | None = None
    store: No = None
    modalities: TextOnly = None
    audio: Unsupported = None
    prediction: Unsupported = None
    service_tier: DefaultTier = None
    reasoning_effort: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    @property
    def output_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeRequest(Body):
    model: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    prompt: str | None = None
    messages: Messages | None = None
