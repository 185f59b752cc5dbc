"""From a valid request body to work for the engine: configured limits, vocabulary, length policy, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvops.config.schema import Limits, NodeConfig, OverLength
from kvops.errors import InvalidRequest
from kvops.node.admission import MAX_CHOICES
from kvops.node.api.schemas import ChatRequest, CompletionRequest, Sampling
from kvops.node.length import Fitted, Segment, fit, limit_of
from kvops.node.prompts import PromptReader
from kvops.node.sampling import SamplingParams
from kvops.node.wire import EngineInfo

_COMPLETION_TOKENS = 16
"""OpenAI's default for completions; a chat may use what is left of the context."""


@dataclass(frozen=True)
class Terms:
    """What a request is measured against."""

    config: NodeConfig
    info: EngineInfo
    tenant: str

    @property
    def vocabulary(self) -> int:
        return self.info.spec.vocab_size

    def limit(self, prompt: int, body: Sampling) -> int:
        """Tokens that a request with so long a prompt may have. Raises KvQuotaExceeded."""
        blocks = self.info.kv_quota_of(self.tenant)
        quota = None if blocks is None else blocks * self.info.block_size
        return limit_of(
            prompt, body.output_limit, self.info.max_model_len, quota, self.policy(body)
        )

    def policy(self, body: Sampling) -> OverLength:
        return body.over_length or self.config.runtime.over_length


@dataclass(frozen=True)
class Prepared:
    prompts: tuple[tuple[tuple[int, ...], SamplingParams], ...]
    removed: int
    """Prompt tokens cut by the over-length policy."""


async def prepare_completion(
    body: CompletionRequest, terms: Terms, reader: PromptReader
) -> Prepared:
    """Raises InvalidRequest, ContextLengthExceeded, KvQuotaExceeded."""
    limits = terms.config.limits
    _check_limits(body, limits, terms.vocabulary, len(body.prompt))
    _bound("logprobs", body.logprobs, limits.logprobs)
    many = len(body.prompt) > 1
    fitted = []
    for at, one in enumerate(body.prompt):
        if isinstance(one, list):
            _refuse_longer(body, len(one), terms)
        param = f"prompt[{at}]" if many else "prompt"
        prompt = await reader.completion(one, terms.vocabulary, param)
        fitted.append(_fit(body, reader.plain_segments(prompt), _COMPLETION_TOKENS, terms))
    return _prepared(body, fitted, body.logprobs)


async def prepare_chat(body: ChatRequest, terms: Terms, reader: PromptReader) -> Prepared:
    """Raises InvalidRequest, ContextLengthExceeded, KvQuotaExceeded."""
    limits = terms.config.limits
    _check_limits(body, limits, terms.vocabulary, 1)
    _bound("top_logprobs", body.top_logprobs, limits.logprobs)
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
    prompt = [Segment(await reader.chat(body.messages))]
    length = len(prompt[0].tokens)
    too_long = length + (body.output_limit or 1) > terms.limit(length, body)
    if too_long and terms.policy(body) != "reject":
        prompt = await reader.chat_segments(body.messages)
    fitted = _fit(body, prompt, None, terms)
    return _prepared(body, [fitted], (body.top_logprobs or 0) if body.logprobs else None)


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


def _refuse_longer(body: Sampling, length: int, terms: Terms) -> None:
    """Before anything looks at each token of a prompt that is refused for their number."""
    limit = terms.limit(length, body)
    if terms.policy(body) == "reject" and length + (body.output_limit or 1) > limit:
        fit([Segment(range(length))], body.output_limit, None, limit, "reject")


def _fit(body: Sampling, prompt: Sequence[Segment], usual: int | None, terms: Terms) -> Fitted:
    limit = terms.limit(sum(len(one.tokens) for one in prompt), body)
    fitted = fit(prompt, body.output_limit, usual, limit, terms.policy(body))
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
