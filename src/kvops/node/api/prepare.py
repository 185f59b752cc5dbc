"""From a valid request body to work for the engine: configured limits, vocabulary, length policy, sampling."""

from __future__ import annotations

from dataclasses import dataclass

from kvops.config.schema import Limits, NodeConfig
from kvops.errors import InvalidRequest
from kvops.node.admission import MAX_CHOICES
from kvops.node.api.schemas import ChatRequest, CompletionRequest, Message, Sampling
from kvops.node.length import Fitted, fit
from kvops.node.prompts import PromptReader
from kvops.node.sampling import SamplingParams
from kvops.node.wire import EngineInfo

_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat may use what is left of the context."""


@dataclass(frozen=True)
class Prepared:
    prompts: tuple[tuple[tuple[int, ...], SamplingParams], ...]
    removed: int
    """Prompt tokens cut by the over-length policy."""


async def prepare_completion(
    body: CompletionRequest, config: NodeConfig, info: EngineInfo, reader: PromptReader
) -> Prepared:
    """Raises InvalidRequest, ContextLengthExceeded."""
    _check_limits(body, config.limits, info.spec.vocab_size, len(body.prompt))
    _bound("logprobs", body.logprobs, config.limits.logprobs)
    many = len(body.prompt) > 1
    prompts = [
        await reader.completion(one, info.spec.vocab_size, f"prompt[{at}]" if many else "prompt")
        for at, one in enumerate(body.prompt)
    ]
    fitted = [_fit(body, prompt, _COMPLETION_TOKENS, config, info) for prompt in prompts]
    return _prepared(body, fitted, body.logprobs)


async def prepare_chat(
    body: ChatRequest, config: NodeConfig, info: EngineInfo, reader: PromptReader
) -> Prepared:
    """Raises InvalidRequest, ContextLengthExceeded."""
    _check_limits(body, config.limits, info.spec.vocab_size, 1)
    check_messages(body.messages, config.limits)
    _bound("top_logprobs", body.top_logprobs, config.limits.logprobs)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    if (
        body.max_tokens
        and body.max_completion_tokens
        and body.max_tokens != body.max_completion_tokens
    ):
        raise InvalidRequest(
            "max_tokens and max_completion_tokens differ.", param="max_completion_tokens"
        )
    prompt = await reader.chat(body.messages)
    fitted = _fit(body, prompt, None, config, info)
    return _prepared(body, [fitted], (body.top_logprobs or 0) if body.logprobs else None)


def check_messages(messages: list[Message], limits: Limits) -> None:
    if len(messages) > limits.messages:
        raise InvalidRequest(f"at most {limits.messages} messages are accepted.", param="messages")


def _check_limits(body: Sampling, limits: Limits, vocabulary: int, prompts: int) -> None:
    _bound("n", body.n, limits.n)
    if prompts * (body.n or 1) > MAX_CHOICES:
        raise InvalidRequest(f"prompts × n is over the bound of {MAX_CHOICES}.", param="n")
    if len(body.stop) > limits.stop_strings:
        raise InvalidRequest(
            f"at most {limits.stop_strings} stop strings are accepted.", param="stop"
        )
    for name, ids in (
        ("logit_bias", body.logit_bias),
        ("stop_token_ids", body.stop_token_ids or ()),
    ):
        if any(not 0 <= token < vocabulary for token in ids):
            raise InvalidRequest(
                f"a token id is outside the vocabulary of {vocabulary}.", param=name
            )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream: true.", param="stream_options")


def _bound(name: str, value: int | None, bound: int) -> None:
    if value is not None and value > bound:
        raise InvalidRequest(f"{value} is over this node's bound of {bound}.", param=name)


def _fit(
    body: Sampling, prompt: list[int], usual: int | None, config: NodeConfig, info: EngineInfo
) -> Fitted:
    policy = body.over_length or config.runtime.over_length
    fitted = fit(prompt, body.output_limit, usual, info.max_model_len, policy)
    if (body.min_tokens or 0) > fitted.max_tokens:
        raise InvalidRequest(
            f"min_tokens is over max_tokens ({fitted.max_tokens}).", param="min_tokens"
        )
    return fitted


def _prepared(body: Sampling, fitted: list[Fitted], logprobs: int | None) -> Prepared:
    prompts = tuple((one.tokens, _params(body, one.max_tokens, logprobs)) for one in fitted)
    return Prepared(prompts, sum(one.removed for one in fitted))


def _params(body: Sampling, max_tokens: int, logprobs: int | None) -> SamplingParams:
    def given(value: float | None, default: float) -> float:
        return default if value is None else float(value)

    return SamplingParams(
        max_tokens=max_tokens,
        temperature=given(body.temperature, 1.0),
        top_k=body.top_k or 0,
        top_p=given(body.top_p, 1.0),
        min_p=given(body.min_p, 0.0),
        frequency_penalty=given(body.frequency_penalty, 0.0),
        presence_penalty=given(body.presence_penalty, 0.0),
        repetition_penalty=given(body.repetition_penalty, 1.0),
        logit_bias=body.logit_bias,
        seed=body.seed,
        logprobs=logprobs,
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=tuple(body.stop_token_ids or ()),
    )
