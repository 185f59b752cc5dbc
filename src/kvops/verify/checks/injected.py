"""What injections show of a node: harm, leniency, or nothing at all.

Harm fails on any engine: a server error, silence, a broken answer, a node that is not alive or not the same afterwards.
What exactly a refusal says is kvops' own contract; another engine may take for right what kvops refuses, or refuse it
with a status of its own, and the operator is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvops.load.injection import WITHIN_LIMIT, length_cases
from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.reports import injection as reported
from kvops.load.reports.base import RunData
from kvops.verify.check import Outcome, fail, inconclusive
from kvops.verify.driven import artifact, kept
from kvops.verify.judge import BUSY

EXPECTED = "the right refusal for each, a canary after it answered as before, no restart"
_CANARY, _ALIVE = "canary ", "livez after "
_SHOWN = 4


class Found(msgspec.Struct, frozen=True):
    """What is wrong with the answers, by how bad it is."""

    harm: tuple[str, ...]
    lenient: tuple[str, ...] = ()
    """Names of injections that another engine took, or refused in a way of its own."""
    varied: bool = False
    """The canary's answer is another one each time from the first injection on: it is so of itself."""
    busy: tuple[str, ...] = ()


def found(records: Sequence[RequestRecord], *, ours: bool) -> Found:
    failed = [one for one in records if one.failed]
    busy = tuple(one.name for one in failed if _busy(one))
    rest = [one for one in failed if not _busy(one)]
    if ours:
        return Found(tuple(_said(one) for one in rest), busy=busy)
    varied = _varies(records)
    harm = [one for one in rest if not _harmless(one) and not (varied and _changed(one))]
    lenient = [one.name for one in rest if _harmless(one) and _is_injection(one)]
    return Found(tuple(_said(one) for one in harm), tuple(lenient), varied, busy)


def _said(record: RequestRecord) -> str:
    return f"{record.name}: {record.error_class}"


def _is_injection(record: RequestRecord) -> bool:
    return not record.name.startswith((_CANARY, _ALIVE))


def _busy(record: RequestRecord) -> bool:
    """A node that is full or draining refuses anything; one that is not alive is not busy."""
    harm = (ErrorClass.NODE_DOWN, ErrorClass.HTTP_503_ENGINE_RESTARTED)
    return record.status in BUSY and record.error_class not in harm


def _harmless(record: RequestRecord) -> bool:
    """A refusal of whatever kind, or a whole answer; of liveness, that there is no such route. Never of a canary."""
    if record.name.startswith(_CANARY) or record.status is None:
        return False
    if 400 <= record.status < 500:
        return True
    return record.status == 200 and record.finish_reason is not None and _is_injection(record)


def _changed(record: RequestRecord) -> bool:
    return record.name.startswith(_CANARY) and record.error_class is ErrorClass.WRONG_ANSWER


def _varies(records: Sequence[RequestRecord]) -> bool:
    """No canary is answered as the first: sums of an engine may differ with what its cache holds.

    A change on the way is no such thing.
    """
    after = [one for one in records if one.name.startswith(f"{_CANARY}after ")]
    return bool(after) and all(_changed(one) for one in after)


def judge_injection(
    runs: Sequence[RunData], before: int | None, after: int | None, *, ours: bool
) -> Outcome:
    """`before`, `after`: restarts of the engine. `ours`: the node is one of kvops, held to its whole contract."""
    records = [one for run in runs for one in run.records if not one.cancelled]
    each = [found([r for r in run.records if not r.cancelled], ours=ours) for run in runs]
    wrong = [said for one in each for said in one.harm]
    if before != after:
        wrong.append(f"engine restarts went from {before} to {after}")
    lenient = [name for one in each for name in one.lenient]
    evidence = {
        "runs": [kept(run) for run in runs], "wrong": wrong, "lenient": lenient, "restarts": [before, after],
    }  # fmt: skip
    if wrong:
        fail(
            observed=_listed(wrong, "; "),
            expected=EXPECTED,
            remedy="odd input harms the node: see kvops node logs of that time, and refuse such input before it",
            n=len(records),
            **evidence,
        )
    _require_tried(runs, [name for one in each for name in one.busy], len(records), ours, evidence)
    return _outcome(runs, each, len(records), evidence)


def _require_tried(
    runs: Sequence[RunData], busy: Sequence[str], n: int, ours: bool, evidence: dict[str, Any]
) -> None:
    if busy:
        inconclusive(
            f"{len(busy)} requests were refused by a busy node: {_listed(busy)}",
            expected="every case",
            remedy="the node is busy, draining or not ready: run the gate on an idle node",
            n=n,
            **evidence,
        )
    left_out = {*WITHIN_LIMIT, *([] if ours else _unlisted(runs))}
    missing = [name for name in _untried(runs) if name not in left_out]
    if missing or not n:
        inconclusive(
            f"not tried: {', '.join(missing) or 'anything'}",
            expected="every case",
            remedy="the node does not say its limit, or the run ended first: raise the timeout in the profile",
            n=n,
            **evidence,
        )


def _untried(runs: Sequence[RunData]) -> list[str]:
    return [name for run in runs for name in reported.facts(run)["not_tried"]]


def _unlisted(runs: Sequence[RunData]) -> list[str]:
    """Cases that need a limit to be named, where an engine names none."""
    known = all(run.info.max_model_len is not None for run in runs)
    return [] if known else [case.name for case in length_cases("", 16, seed=0)]


def _outcome(
    runs: Sequence[RunData], each: Sequence[Found], n: int, evidence: dict[str, Any]
) -> Outcome:
    lenient = [name for one in each for name in one.lenient]
    tried = sum(len(reported.facts(run)["cases"]) for run in runs)
    remarks = (
        [f"{len(lenient)} of {tried} injections not refused as they should be: {_listed(lenient)}"]
        if lenient
        else []
    )
    if any(one.varied for one in each):
        remarks.append("the canary's answer differs from the first each time")
    if set(_untried(runs)) - set(WITHIN_LIMIT):
        remarks.append("no length tried: /v1/models does not say max_model_len")
    note = "; prompts of the whole limit not computed: profile bound" if _untried(runs) else ""
    return Outcome(
        verdict="warn" if remarks else "pass",
        observed=f"{'; '.join(remarks)}; no harm done"
        if remarks
        else f"{tried} injections answered rightly, the node as before after each{note}",
        expected="the right refusal for each, and a node that lives on",
        n=n,
        evidence=evidence,
        remedy="this engine is lenient or says less than it could: clients do not learn of their mistakes, so check "
        "requests before the node"
        if remarks
        else "",
        artifacts=tuple(artifact(run) for run in runs),
    )


def _listed(names: Sequence[str], between: str = ", ") -> str:
    more = len(names) - _SHOWN
    return between.join(names[:_SHOWN]) + (f"{between}and {more} more" if more > 0 else "")
