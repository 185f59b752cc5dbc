"""Does the model still find a number in a long prompt on this node? Measured against itself on short ones.

What is judged is the node (positions, cache blocks, quantised KV, truncation), not the model: one that cannot recall
from a short prompt leaves the check open. The relative rule is NoLiMa's (2025), the needle RULER's (2024). Where the
first answers leave a length open, more prompts are asked of it and of the shortest until they decide, as long as the
check has time.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Any

from pydantic import Field

from kvops.load.needle import plan
from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.reports.base import RunData
from kvops.load.statistics.confidence import wilson_lower
from kvops.units import format_ratio, format_whole
from kvops.verify.check import Check, Outcome, Parameters, fail, inconclusive
from kvops.verify.checks.recall_scores import (
    Score,
    cannot_recall,
    row,
    scores,
    standings,
    unsettled,
)
from kvops.verify.context import Context
from kvops.verify.driven import artifact, drive, kept
from kvops.verify.judge import BUSY
from kvops.verify.timing import once

MOST = 12
"""Times the repeats of the profile that are asked of a length at most."""
_REPEATS = 100
"""Most that one load run takes."""


class GridParameters(Parameters):
    """Alike for the grid and its control, so that one run serves both."""

    lengths: tuple[int, ...] = Field(default=(256, 1024, 2048), min_length=2, max_length=32)
    """Prompt tokens; the shortest is what the others are measured by. Those over the node's limit become the limit."""
    depths: tuple[float, ...] = Field(default=(0, 50, 100), min_length=1, max_length=64)
    """Where the number stands, percent of the document."""
    repeats: int = Field(default=3, ge=1, le=100)
    """Prompts of each length and depth; where their answers leave a length open, more follow."""
    budget: float = Field(default=200.0, ge=0)
    """Seconds of the check after which no more follow. Its timeout has to be longer."""
    users: int = Field(default=2, ge=1, le=64)
    share: float = Field(default=0.85, gt=0, le=1)
    """Of the score on the shortest prompts that each longer one must keep."""
    reference: float = Field(default=0.8, gt=0, le=1)
    """Score on the shortest prompts surely below which the model, not the node, is in the way."""
    seed: int = 0


async def grid(context: Context, parameters: GridParameters) -> Outcome:
    began = time.monotonic()
    runs = await _recall(context, parameters)
    require_answers(runs)
    while (open_ := _unsettled(runs, parameters)) and (
        more := affordable(runs, open_, began + parameters.budget - time.monotonic(), parameters)
    ):
        lengths = [min(_lengths(runs)), *open_]
        runs.append(await _ask(context, parameters, lengths, more, parameters.seed + len(runs)))
        require_answers(runs)
    return judge(scores(_records(runs)), parameters, runs)


def _unsettled(runs: Sequence[RunData], parameters: GridParameters) -> list[int]:
    return unsettled(scores(_records(runs)), parameters.share, parameters.reference)


def affordable(
    runs: Sequence[RunData], lengths: Sequence[int], left: float, parameters: GridParameters
) -> int:
    """Repeats that the next run may ask: as many as there are, so far as cap and time let."""
    last, asked = runs[-1].info, sum(int(run.info.options["repeats"]) for run in runs)
    took = (last.finished_at or last.started_at) - last.started_at
    # What a run takes to start is among it.
    per_token = took / (sum(last.options["lengths"]) * last.options["repeats"])
    cost = per_token * (min(_lengths(runs)) + sum(lengths))
    affordable = int(left / cost) if cost > 0 else asked
    return max(0, min(asked, MOST * parameters.repeats - asked, affordable, _REPEATS))


async def control(context: Context, parameters: GridParameters) -> Outcome:
    runs = await _recall(context, parameters)
    asked = [r for r in _records(runs) if r.needle is not None and r.needle.depth is None]
    answered = [r for r in asked if r.error_class in (None, ErrorClass.WRONG_ANSWER)]
    lengths = sum(len(set(run.info.options["lengths"])) for run in runs)
    if len(answered) < lengths:
        inconclusive(
            f"{len(answered)} of {lengths} prompts without a number were answered",
            expected="an answer to each",
            remedy="see recall.grid",
            n=len(answered),
            **_kept(runs),
        )
    found = [r.needle.length for r in answered if r.needle is not None and r.needle.found]
    if found:
        fail(
            observed=f"{len(found)} of {len(answered)} prompts without a number were answered with one of another",
            expected="none",
            remedy="answers mix up requests, or the cache serves foreign blocks: do not trust recall on this node; "
            "see claims.prefix_isolation",
            lengths=found,
            n=len(answered),
            **_kept(runs),
        )
    return Outcome(
        verdict="pass",
        observed=f"{len(answered)} prompts without a number brought none",
        expected="none",
        n=len(answered),
        evidence=_kept(runs),
        artifacts=tuple(map(artifact, runs)),
    )


async def _recall(context: Context, parameters: GridParameters) -> list[RunData]:
    """The first run, and those that the grid has added to it."""
    p, lengths = parameters, fitting(parameters.lengths, context.facts.max_model_len)
    key: Hashable = ("recall", tuple(lengths), p.depths, p.repeats, p.users, p.seed)

    async def run() -> list[RunData]:
        return [await _ask(context, p, lengths, p.repeats, p.seed)]

    return await once(context, key, run)


async def _ask(
    context: Context, parameters: GridParameters, lengths: Sequence[int], repeats: int, seed: int
) -> RunData:
    options = {"lengths": list(lengths), "depths": list(parameters.depths), "repeats": repeats}
    return await drive(
        context, "needle_recall", users=parameters.users, duration=None, options=options, seed=seed
    )


def fitting(lengths: Sequence[int], limit: int | None, answer: int = 32) -> list[int]:
    """The lengths, none longer than fits into `limit` tokens with its answer."""
    most = max(lengths) if limit is None else limit - answer
    return sorted({min(length, most) for length in lengths})


def require_answers(runs: Sequence[RunData]) -> None:
    """Every prompt was answered, rightly or not."""
    planned = sum(_planned(run) for run in runs)
    records = _records(runs)
    wrong = [r for r in records if r.failed and r.error_class is not ErrorClass.WRONG_ANSWER]
    busy = [r for r in wrong if _busy(r)]
    if len(wrong) > len(busy):
        classes = sorted({str(r.error_class) for r in wrong if not _busy(r)})
        fail(
            observed=f"{len(wrong) - len(busy)} of {planned} prompts were not answered: {', '.join(classes)}",
            expected="an answer to each",
            remedy="see kvops node logs for the requests' errors",
            n=len(records),
            **_kept(runs),
        )
    asked = sum(r.needle is not None and not r.cancelled for r in records) - len(busy)
    if asked < planned:
        classes = sorted({str(r.error_class) for r in busy})
        refused = f"; {len(busy)} were refused: {', '.join(classes)}" if busy else ""
        inconclusive(
            f"{asked} of {planned} prompts were asked to the end{refused}",
            expected="all",
            remedy="run the gate on an idle node, or raise the timeout in the profile",
            n=asked,
            **_kept(runs),
        )


def _planned(run: RunData) -> int:
    options = run.info.options
    return len(plan(run.info.seed, options["lengths"], options["depths"], options["repeats"]))


def _busy(record: RequestRecord) -> bool:
    """A node that is full or draining says so with these; so does one whose engine died, and that is no such thing."""
    return record.status in BUSY and record.error_class is not ErrorClass.HTTP_503_ENGINE_RESTARTED


def judge(found: Sequence[Score], parameters: GridParameters, runs: Sequence[RunData]) -> Outcome:
    """Each longer length against `share` of the shortest's score, when no more is asked."""
    evidence = {"scores": [row(one) for one in found], "seed": parameters.seed, **_kept(runs)}
    n = sum(one.counted.n for one in found)
    if len(found) < 2:
        inconclusive(
            f"answers of {len(found)} lengths: no longer one to measure by the shortest",
            expected="two lengths or more",
            remedy="name lengths in the profile of which two differ below the node's limit",
            n=n,
            **evidence,
        )
    if cannot_recall(found[0], parameters.reference):
        inconclusive(
            f"this model cannot recall: {found[0].counted} even of the shortest prompts",
            expected=f"{parameters.reference:.0%} or more there",
            remedy="recall says nothing of the node with this model: leave the check out with --skip, or lower "
            "reference in the profile",
            n=n,
            **evidence,
        )
    stand = standings(found, parameters.share, last=True)
    wanted = (
        f"{format_ratio(parameters.share)} of the share at {format_whole(found[0].length)} tokens"
    )
    beside = f", {found[0].counted} at {format_whole(found[0].length)}"
    for one in stand:
        if one.state == "lost":
            fail(
                observed=f"{one.why} at {format_whole(one.score.length)} tokens{beside}",
                expected=f"{wanted} or more",
                remedy="long prompts are cut, cached wrongly or stored too coarsely: set kv_cache.dtype: float32 and "
                "compare, and lower model.max_context_length to the longest that recalls",
                n=n,
                **evidence,
            )
    unsure = [one for one in stand if one.state == "open"]
    if unsure:
        inconclusive(
            f"{unsure[0].why} at {format_whole(unsure[0].score.length)} tokens{beside}: too few to tell from chance",
            expected=f"{wanted} or more",
            remedy="raise budget, and with it timeout, in the profile, or repeats",
            n=n,
            **evidence,
        )
    least = min(wilson_lower(one.counted.hits, one.counted.n) or 0.0 for one in found)
    told = ", ".join(f"{one.counted} at {format_whole(one.length)}" for one in found)
    return Outcome(
        verdict="pass",
        observed=f"{told}: at least {int(100 * least)} % at each with 95 % confidence",
        expected=f"{wanted} or more at each length, no depth lost",
        unit="tokens",
        n=n,
        evidence=evidence,
        artifacts=tuple(map(artifact, runs)),
    )


def _records(runs: Sequence[RunData]) -> list[RequestRecord]:
    return [record for run in runs for record in run.records]


def _lengths(runs: Sequence[RunData]) -> list[int]:
    found: list[int] = runs[0].info.options["lengths"]
    return found


def _kept(runs: Sequence[RunData]) -> dict[str, Any]:
    """Of the first run, with the names of those that followed."""
    return kept(runs[0]) | {"more_runs": [run.info.run for run in runs[1:]]}


GRID = Check(
    id="recall.grid",
    title="Recall by length and depth",
    purpose="A number hidden in a long prompt is found about as often as in a short one, at every depth.",
    parameters=GridParameters,
    run=grid,
    area="V7",
    typical=60.0,
    needs=("load",),
)
CONTROL = Check(
    id="recall.control",
    title="Recall control",
    purpose="A prompt without the number finds none: what recall.grid counts is no leak between requests.",
    parameters=GridParameters,
    run=control,
    area="V7",
    typical=1.0,
    needs=("load",),
)
