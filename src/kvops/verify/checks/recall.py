"""Does the model still find a number in a long prompt on this node? Measured against itself on short ones.

What is judged is the node (positions, cache blocks, quantised KV, truncation), not the model: one that cannot recall
from a short prompt leaves the check open. The relative rule is NoLiMa's (2025), the needle RULER's (2024).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
from pydantic import Field

from kvops.load.needle import plan
from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.reports.base import RunData
from kvops.load.statistics import wilson
from kvops.units import format_whole
from kvops.verify.check import Check, Outcome, Parameters, fail, inconclusive
from kvops.verify.context import Context
from kvops.verify.driven import artifact, drive, kept
from kvops.verify.timing import once

LEAST_IN_CELL = 3
"""Answers of one length and depth below which none right says nothing."""
_BUSY = (ErrorClass.HTTP_429, ErrorClass.HTTP_503)


class GridParameters(Parameters):
    """Alike for the grid and its control, so that one run serves both."""

    lengths: tuple[int, ...] = Field(default=(256, 1024, 2048), min_length=2, max_length=32)
    """Prompt tokens; the shortest is what the others are measured by. Those over the node's limit become the limit."""
    depths: tuple[float, ...] = Field(default=(0, 50, 100), min_length=1, max_length=64)
    """Where the number stands, percent of the document."""
    repeats: int = Field(default=3, ge=1, le=100)
    """Prompts of each length and depth."""
    users: int = Field(default=2, ge=1, le=64)
    share: float = Field(default=0.85, gt=0, le=1)
    """Of the score on the shortest prompts that each longer one must keep."""
    reference: float = Field(default=0.8, gt=0, le=1)
    """Score on the shortest prompts below which the model, not the node, is in the way."""
    seed: int = 0


class Score(msgspec.Struct, frozen=True):
    """Right answers of one length."""

    length: int
    hits: int
    n: int
    worst_depth: float
    """The depth with the fewest right answers."""
    worst_hits: int
    worst_n: int

    @property
    def share(self) -> float:
        return self.hits / self.n


async def grid(context: Context, parameters: GridParameters) -> Outcome:
    data = await _recall(context, parameters)
    require_answers(data)
    return judge(scores(data.records), parameters, data)


async def control(context: Context, parameters: GridParameters) -> Outcome:
    data = await _recall(context, parameters)
    asked = [r for r in data.records if r.needle is not None and r.needle.depth is None]
    answered = [r for r in asked if r.error_class in (None, ErrorClass.WRONG_ANSWER)]
    lengths = len(set(data.info.options["lengths"]))
    if len(answered) < lengths:
        inconclusive(
            f"{len(answered)} of {lengths} prompts without a number were answered",
            expected="an answer to each",
            remedy="see recall.grid",
            n=len(answered),
            **kept(data),
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
            **kept(data),
        )
    return Outcome(
        verdict="pass",
        observed=f"{len(answered)} prompts without a number brought none",
        expected="none",
        n=len(answered),
        evidence=kept(data),
        artifacts=(artifact(data),),
    )


async def _recall(context: Context, parameters: GridParameters) -> RunData:
    p, lengths = parameters, fitting(parameters.lengths, context.facts.max_model_len)
    options = {"lengths": lengths, "depths": list(p.depths), "repeats": p.repeats}
    key = ("recall", tuple(lengths), p.depths, p.repeats, p.users, p.seed)

    async def run() -> RunData:
        return await drive(
            context, "needle_recall", users=p.users, duration=None, options=options, seed=p.seed
        )

    return await once(context, key, run)


def fitting(lengths: Sequence[int], limit: int | None, answer: int = 32) -> list[int]:
    """The lengths, none longer than fits into `limit` tokens with its answer."""
    most = max(lengths) if limit is None else limit - answer
    return sorted({min(length, most) for length in lengths})


def require_answers(data: RunData) -> None:
    """Every prompt was answered, rightly or not."""
    options = data.info.options
    planned = len(plan(data.info.seed, options["lengths"], options["depths"], options["repeats"]))
    wrong = [r for r in data.records if r.failed and r.error_class is not ErrorClass.WRONG_ANSWER]
    busy = [r for r in wrong if r.error_class in _BUSY]
    if len(wrong) > len(busy):
        classes = sorted({str(r.error_class) for r in wrong})
        fail(
            observed=f"{len(wrong)} of {planned} prompts were not answered: {', '.join(classes)}",
            expected="an answer to each",
            remedy="see kvops node logs for the requests' errors",
            n=len(data.records),
            **kept(data),
        )
    asked = sum(r.needle is not None and not r.cancelled for r in data.records) - len(busy)
    if asked < planned:
        inconclusive(
            f"{asked} of {planned} prompts were asked to the end",
            expected="all",
            remedy="run the gate on an idle node, or raise the timeout in the profile",
            n=asked,
            **kept(data),
        )


def scores(records: Sequence[RequestRecord]) -> list[Score]:
    """By rising length; prompts without a number are left out."""
    cells: dict[int, dict[float, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.needle is not None and record.needle.depth is not None and not record.cancelled:
            cells[record.needle.length][record.needle.depth].append(record.needle.found)
    found = []
    for length, depths in sorted(cells.items()):
        depth, worst = min(depths.items(), key=lambda item: sum(item[1]) / len(item[1]))
        answers = [right for rights in depths.values() for right in rights]
        found.append(Score(length, sum(answers), len(answers), depth, sum(worst), len(worst)))
    return found


def judge(found: Sequence[Score], parameters: GridParameters, data: RunData) -> Outcome:
    """Each longer length against `share` of the shortest's score; short of it by chance is open, surely is a fail."""
    evidence = {"scores": [_row(one) for one in found], "seed": parameters.seed, **kept(data)}
    n = sum(one.n for one in found)
    if len(found) < 2 or found[0].share < parameters.reference:
        shortest = f"{_said(found[0])} even of" if found else "no answer, not even at"
        inconclusive(
            f"this model cannot recall: {shortest} the shortest prompts",
            expected=f"{parameters.reference:.0%} or more there",
            remedy="recall says nothing of the node with this model: leave the check out with --skip, or lower "
            "reference in the profile",
            n=n,
            **evidence,
        )
    wanted = parameters.share * found[0].share
    for one in found[1:]:
        if one.worst_n >= LEAST_IN_CELL and not one.worst_hits:
            _fail(f"none of {one.worst_n} at {one.worst_depth:g} % depth", one, wanted, n, evidence)
        if one.share < wanted and (wilson(one.hits, one.n) or (0.0, 1.0))[1] < wanted:
            _fail(_said(one), one, wanted, n, evidence)
    unsure = [one for one in found[1:] if one.share < wanted]
    if unsure:
        inconclusive(
            f"{_said(unsure[0])} at {format_whole(unsure[0].length)} tokens: too few to tell from chance",
            expected=f"{wanted:.0%} or more",
            remedy="raise repeats in the profile",
            n=n,
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=", ".join(f"{_said(one)} at {format_whole(one.length)}" for one in found),
        expected=f"{wanted:.0%} at each length, none right nowhere",
        unit="tokens",
        n=n,
        evidence=evidence,
        artifacts=(artifact(data),),
    )


def _fail(what: str, one: Score, wanted: float, n: int, evidence: dict[str, object]) -> None:
    fail(
        observed=f"{what} at {format_whole(one.length)} tokens",
        expected=f"{wanted:.0%} or more, as on short prompts",
        remedy="long prompts are cut, cached wrongly or stored too coarsely: set kv_cache.dtype: float32 and "
        "compare, and lower model.max_context_length to the longest that recalls",
        n=n,
        **evidence,
    )


def _said(one: Score) -> str:
    return f"{one.hits}/{one.n}"


def _row(one: Score) -> dict[str, object]:
    low, high = wilson(one.hits, one.n) or (None, None)
    return msgspec.structs.asdict(one) | {"wilson_low": low, "wilson_high": high}


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
