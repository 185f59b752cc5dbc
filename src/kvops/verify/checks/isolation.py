"""Can one tenant find out, by cached tokens or by time, what another has asked?"""

from __future__ import annotations

import statistics

import msgspec
from pydantic import Field

from kvops.units import format_duration
from kvops.verify.api import Api, StreamRefused, token_count
from kvops.verify.check import Check, Outcome, Parameters, inconclusive, require, skip
from kvops.verify.context import Context
from kvops.verify.control import claims
from kvops.verify.judge import SEE_LOG, answered
from kvops.verify.keys import as_tenant, tenant_keys
from kvops.verify.streamed import read_stream

COMPLETIONS = "/v1/completions"
FASTER = 0.6
"""A first token in less than this share of a cold one counts as a hit, if every single one was faster."""


class IsolationParameters(Parameters):
    keys_file: str | None = None
    """File with a key of each of two tenants, one a line; default: what KVOPS_TENANT_KEYS_FILE names."""
    prompt_tokens: int = Field(default=256, ge=32)
    rounds: int = Field(default=5, ge=3, le=50)
    """Prompts of which first tokens are compared: five of each are the fewest of which all being faster is telling."""


class Ask(msgspec.Struct, frozen=True):
    cached: int | None
    """None where the node does not tell."""
    first_token: float


class Rounds(msgspec.Struct):
    """What each kind of request saw, in the order of the rounds."""

    cold: list[Ask] = []
    hot: list[Ask] = []
    """The same tenant again."""
    cross: list[Ask] = []
    """Another tenant with the same prompt."""


async def prefix_isolation(context: Context, parameters: IsolationParameters) -> Outcome:
    keys = tenant_keys(context, parameters.keys_file)
    if len(keys) < 2:
        skip(
            "needs keys of two tenants, and there is no second one",
            remedy="put a key of each into a file, one a line, and name it in KVOPS_TENANT_KEYS_FILE",
        )
    if (await claims(context)).kv_cache.prefix_caching is False:
        skip("kv_cache.prefix_caching is off: there is nothing to share")
    async with as_tenant(context, keys[0]) as one, as_tenant(context, keys[1]) as other:
        seen = await _rounds(context, one, other, parameters)
    return _judged(seen)


async def _rounds(
    context: Context, one: Api, other: Api, parameters: IsolationParameters
) -> Rounds:
    seen = Rounds()
    window = context.facts.max_model_len or 2048
    for _ in range(parameters.rounds):
        prompt = await context.prompts.fit(min(parameters.prompt_tokens, window - 8))
        seen.cold.append(await _ask(context, one, prompt.text))
        seen.cross.append(await _ask(context, other, prompt.text))
        seen.hot.append(await _ask(context, one, prompt.text))
    return seen


async def _ask(context: Context, api: Api, prompt: str) -> Ask:
    body = context.completion(prompt, 2, stream_options={"include_usage": True})
    try:
        answer = await read_stream(api, COMPLETIONS, body)
    except StreamRefused as refused:
        if refused.reply.error.get("code") == "kv_quota":
            skip("a tenant's KV quota is smaller than the prompt", remedy="lower prompt_tokens")
        answered(refused.reply, "a tenant's prompt")
        raise
    if answer.first_delta_seconds is None:
        inconclusive(
            f"a stream without text{f': {answer.error}' if answer.error else ''}",
            expected="a token",
            remedy=SEE_LOG if answer.error else "the prompt brought no word: see resp.stream",
        )
    details = answer.usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Ask(token_count(cached), answer.first_delta_seconds)


def _judged(seen: Rounds) -> Outcome:
    shared = [ask.cached for ask in seen.cross if ask.cached]
    evidence = {
        "cached_tokens": {
            "same_tenant": [ask.cached for ask in seen.hot],
            "other_tenant": [ask.cached for ask in seen.cross],
        },
        "first_token_seconds": {
            "cold": _times(seen.cold),
            "same_tenant": _times(seen.hot),
            "other_tenant": _times(seen.cross),
        },
    }
    expected = "0 tokens of another tenant's prompt found, and no faster first token"
    remedy = "tenants can find out each other's prompts: give each a salt of its own, or turn prefix caching off"
    require(
        not shared,
        observed=f"another tenant found {max(shared, default=0)} tokens of a prompt in the cache",
        expected=expected,
        remedy=remedy,
        **evidence,
    )
    require(
        not faster(_times(seen.cross), _times(seen.cold)),
        observed=f"another tenant's first token came after {_typical(seen.cross)},"
        f" a cold one after {_typical(seen.cold)}",
        expected=expected,
        remedy=remedy,
        **evidence,
    )
    if not any(ask.cached for ask in seen.hot) and not faster(_times(seen.hot), _times(seen.cold)):
        inconclusive(
            "the same tenant did not hit its own prompt either: nothing is cached",
            expected="a hit for the same tenant, none for another",
            remedy="is kv_cache.prefix_caching on, and the prompt longer than a block?",
            **evidence,
        )
    hits = [ask.cached for ask in seen.hot if ask.cached]
    return Outcome(
        verdict="pass",
        observed=f"other tenant: 0 cached, first token {_typical(seen.cross)}; same tenant:"
        f" {max(hits, default=0)} cached, {_typical(seen.hot)}",
        expected=expected,
        unit="tokens",
        n=len(seen.cross),
        evidence=evidence,
    )


def faster(times: list[float], cold: list[float]) -> bool:
    """Whether `times` are those of hits: every one below every cold one, and the median by far.

    All of n below all of n has a chance of 1 / C(2n, n) without a difference: 0.4 % for five.
    """
    return max(times) < min(cold) and statistics.median(times) < FASTER * statistics.median(cold)


def _times(asks: list[Ask]) -> list[float]:
    return [round(ask.first_token, 4) for ask in asks]


def _typical(asks: list[Ask]) -> str:
    return format_duration(statistics.median(ask.first_token for ask in asks))


PREFIX_ISOLATION = Check(
    id="claims.prefix_isolation",
    title="Prefixes kept apart",
    purpose="A prompt that one tenant has sent is not in the cache for another, by count or by time.",
    parameters=IsolationParameters,
    run=prefix_isolation,
    area="V5",
    typical=5.0,
    needs=("idle node",),
)
