"""How first-token time and decode rate change with the length of the prompt, and whether the node tells them truly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import msgspec
from pydantic import Field

from kvops.load.statistics.curves import Step, first_jump, fit, geometric
from kvops.units import format_duration, format_whole
from kvops.verify.check import Check, Outcome, Parameters, Samples, fail, inconclusive, skip
from kvops.verify.context import Context
from kvops.verify.timing import Timed, once, timed

CACHED_SHARE = 0.1
"""Of a prompt: with more of it out of the prefix cache, its time says nothing of its length."""


class LengthParameters(Parameters):
    """Alike for both checks, so that one measurement serves both."""

    shortest: int = Field(default=32, ge=16)
    longest: int = Field(default=2048, ge=64)
    """Prompt tokens; less where the node's limit is lower."""
    repeats: int = Field(default=3, ge=3, le=100)
    """Prompts of each length."""
    budget: float = Field(default=60.0, gt=0)
    """Seconds for all; lengths that would go over it are left out, and the result says so."""
    max_tokens: int = Field(default=16, ge=8, le=1024)
    factor: float = Field(default=3.0, gt=1)
    """Times what the shorter lengths predict."""
    floor: float = Field(default=0.02, ge=0)
    """Seconds over the prediction that are never a jump."""


class Row(msgspec.Struct, frozen=True):
    tokens: int
    asked: tuple[Timed, ...]

    @property
    def ttft(self) -> list[float]:
        return [one.ttft for one in self.asked]

    @property
    def per_token(self) -> list[float]:
        return [one.per_token for one in self.asked if one.per_token is not None]


Pick = Callable[[Row], list[float]]


class _Measured(msgspec.Struct):
    """Rows by rising length; `wanted` is the longest that was to be tried."""

    rows: list[Row]
    wanted: int


async def ttft_by_length(context: Context, parameters: LengthParameters) -> Outcome:
    found = await _measure(context, parameters)
    noisy = await _judge(context, parameters, found, "first token", lambda row: row.ttft, degree=2)
    rows = found.rows
    lengths, times = [row.tokens for row in rows], [median(row.ttft) for row in rows]
    fitted = fit(lengths, times, 2)
    return Outcome(
        verdict="pass",
        observed=f"{_span(lengths, [format_duration(t) for t in times])}{_short(found)}",
        expected=f"no jump over {parameters.factor:g} × what shorter prompts predict",
        unit="seconds",
        n=sum(len(row.ttft) for row in rows),
        evidence={
            "rows": _table(rows, lambda row: row.ttft),
            "fit": dict(zip(("a", "b", "c"), (_round(c) for c in fitted), strict=True)),
            "noisy": noisy,
        },
        samples={
            f"ttft.{row.tokens}": Samples.of(row.ttft, unit="seconds", direction="lower")
            for row in rows
        },
    )


async def rate_by_length(context: Context, parameters: LengthParameters) -> Outcome:
    found = await _measure(context, parameters)
    found = _Measured([row for row in found.rows if row.per_token], found.wanted)
    if len(found.rows) < 2:
        inconclusive(
            "the answers were too short, or without usage, to time their tokens",
            expected="rates at two lengths or more",
            remedy="raise max_tokens in the profile",
            n=len(found.rows),
        )
    noisy = await _judge(context, parameters, found, "token", lambda row: row.per_token, degree=1)
    rows = found.rows
    lengths, rates = [row.tokens for row in rows], [1 / median(row.per_token) for row in rows]
    return Outcome(
        verdict="pass",
        observed=f"{_span(lengths, [f'{rate:.1f} tok/s' for rate in rates])}{_short(found)}",
        expected=f"no drop over {parameters.factor:g} × what shorter contexts predict",
        unit="tokens/second",
        n=sum(len(row.per_token) for row in rows),
        evidence={"rows": _table(rows, lambda row: row.per_token), "noisy": noisy},
        samples={
            f"rate.{row.tokens}": Samples.of(
                [1 / t for t in row.per_token], unit="tokens/second", direction="higher"
            )
            for row in rows
        },
    )


async def _measure(context: Context, parameters: LengthParameters) -> _Measured:
    p = parameters
    key = ("by length", p.shortest, p.longest, p.repeats, p.budget, p.max_tokens)
    return await once(context, key, lambda: _measure_all(context, p))


async def _measure_all(context: Context, parameters: LengthParameters) -> _Measured:
    limit = context.facts.max_model_len or parameters.longest + parameters.max_tokens
    longest = min(parameters.longest, limit - parameters.max_tokens)
    if longest < 2 * parameters.shortest:
        skip(f"the node's limit of {limit} tokens leaves no two lengths to compare")
    deadline, rows = time.monotonic() + parameters.budget, list[Row]()
    for tokens in geometric(parameters.shortest, longest):
        if rows and _cost(rows, tokens, parameters.repeats) > deadline - time.monotonic():
            break
        asked = await _ask(context, tokens, parameters)
        rows.append(Row(tokens, asked))
    if len(rows) < 2:
        inconclusive(
            f"only {len(rows)} lengths could be measured in {format_duration(parameters.budget)}",
            expected="two lengths or more",
            remedy="the node is slow: raise budget in the profile",
            n=len(rows),
        )
    return _Measured(rows, longest)


def _cost(rows: Sequence[Row], tokens: int, repeats: int) -> float:
    """Seconds that the next length will take, about: time to the first token grows at least with the length."""
    last = rows[-1]
    return repeats * median(one.last for one in last.asked) * tokens / last.tokens


async def _ask(context: Context, tokens: int, parameters: LengthParameters) -> tuple[Timed, ...]:
    asked = []
    for _ in range(parameters.repeats):
        prompt = await context.prompts.fit(tokens)
        one = await timed(context, prompt, parameters.max_tokens)
        if one.cached_tokens > CACHED_SHARE * one.prompt_tokens:
            inconclusive(
                f"{one.cached_tokens} of {one.prompt_tokens} prompt tokens came out of the prefix cache",
                expected="prompts that nobody asked before",
                remedy="the node's cache takes different prompts for one: see claims.prefix_isolation",
            )
        asked.append(one)
    return tuple(asked)


async def _judge(
    context: Context,
    parameters: LengthParameters,
    found: _Measured,
    what: str,
    pick: Pick,
    degree: int,
) -> bool:
    """Fails at a jump that the best of as many more prompts shows too; True when it does not.

    What a busy machine does to one measurement it does not do to the best of many.
    """
    jump = _jump(parameters, found.rows, pick, degree)
    if jump is None:
        return False
    for index in (jump.index - 1, jump.index):
        row = found.rows[index]
        again = await _ask(context, row.tokens, parameters)
        found.rows[index] = Row(row.tokens, row.asked + again)
    again_jump = confirmed(
        found.rows, jump.index, pick, degree, parameters.factor, parameters.floor
    )
    if again_jump is not None:
        _fail(found.rows, again_jump, what, pick, parameters.factor)
    return True


def _jump(
    parameters: LengthParameters, rows: Sequence[Row], pick: Pick, degree: int
) -> Step | None:
    lengths, times = [row.tokens for row in rows], [median(pick(row)) for row in rows]
    return first_jump(lengths, times, degree, parameters.factor, parameters.floor)


def confirmed(
    rows: Sequence[Row], index: int, pick: Pick, degree: int, factor: float, floor: float
) -> Step | None:
    """The jump at `index` by the best reading there against the medians of the lengths before it."""
    upto = rows[: index + 1]
    times = [median(pick(row)) for row in upto[:-1]] + [min(pick(upto[-1]))]
    jump = first_jump([row.tokens for row in upto], times, degree, factor, floor)
    return jump if jump is not None and jump.index == index else None


def _fail(rows: Sequence[Row], jump: Step, what: str, pick: Pick, factor: float) -> None:
    before = rows[jump.index - 1].tokens
    fail(
        observed=f"{what} {format_duration(jump.seconds)} at {format_whole(round(jump.length))} tokens: "
        f"{jump.times:.1f} × what prompts up to {format_whole(before)} predict",
        expected=f"at most {factor:g} × ({format_duration(jump.predicted)} predicted)",
        remedy="something beside attention sets in between these lengths: swapping, recomputation, a slow kernel, "
        "a length tier; see kvops node logs and the memory accounts at that length, or lower "
        "model.max_context_length below it",
        rows=_table(rows, pick),
        n=sum(len(pick(row)) for row in rows),
    )


def _span(lengths: Sequence[int], values: Sequence[str]) -> str:
    return f"{values[0]} → {values[-1]} from {lengths[0]} to {format_whole(lengths[-1])} tokens"


def _short(found: _Measured) -> str:
    reached = found.rows[-1].tokens
    return (
        "" if reached >= found.wanted else f"; {format_whole(found.wanted)} not tried: over budget"
    )


def _table(rows: Sequence[Row], pick: Pick) -> list[dict[str, float]]:
    return [
        {
            "tokens": row.tokens,
            "n": len(pick(row)),
            "median": _round(median(pick(row))),
            "least": _round(min(pick(row))),
            "most": _round(max(pick(row))),
        }
        for row in rows
    ]


def _round(seconds: float) -> float:
    return float(f"{seconds:.4g}")


TTFT_BY_LENGTH = Check(
    id="perf.ttft_by_length",
    title="First token by length",
    purpose="First-token time grows with the prompt as attention predicts, without a jump in order of magnitude.",
    parameters=LengthParameters,
    run=ttft_by_length,
    area="V8",
    typical=20.0,
    needs=("idle node",),
)
RATE_BY_LENGTH = Check(
    id="perf.rate_by_length",
    title="Decode rate by length",
    purpose="Tokens keep coming at long contexts about as fast as attention over them allows.",
    parameters=LengthParameters,
    run=rate_by_length,
    area="V8",
    typical=2.0,
    needs=("idle node",),
)
