"""Do the client and the node count the same tokens for the same load?"""

from __future__ import annotations

from kvops.load.records import RequestRecord
from kvops.load.statistics import ledger
from kvops.units import format_whole
from kvops.verify.check import Check, Outcome, fail, inconclusive, skip
from kvops.verify.context import Context
from kvops.verify.driven import artifact, kept
from kvops.verify.planned import (
    LoadParameters,
    Planned,
    TokenCounts,
    moved,
    planned_load,
    tokens_told,
)

_REMEDY = (
    "bills, quotas and dashboards count wrongly: compare usage, /metrics and the snapshot of one request, "
    "and report the defect"
)


async def client_ledger(context: Context, parameters: LoadParameters) -> Outcome:
    load = await planned_load(context, parameters)
    blind = [r for r in load.records if r.completion_tokens is None and r.ttft is not None]
    if blind or not load.records:
        inconclusive(
            f"{len(blind)} of {len(load.records)} answers came without usage",
            expected="usage in each",
            remedy="see resp.usage",
            n=len(load.records),
        )
    found = counted(load)
    if not found:
        skip("neither /metrics nor a snapshot of this node counts tokens")
    return judge(load, tokens_told(load.records), found)


def counted(load: Planned) -> dict[str, TokenCounts]:
    """By what the counters of `/metrics` and of the snapshot moved over the load, where the node has them."""
    found = {}
    page = moved(*load.counted)
    if page is not None:
        found["/metrics"] = page
    told = ledger(load.before, load.after, load.records).counters
    if told:
        found["snapshot"] = TokenCounts(told[0].node, told[1].node)
    return found


def judge(load: Planned, wanted: TokenCounts, found: dict[str, TokenCounts]) -> Outcome:
    """Less than the client counted is wrong; more is, unless others used the node or requests were cut off."""
    evidence = {
        "client": [wanted.prompt, wanted.generated],
        "node": {name: [one.prompt, one.generated] for name, one in found.items()},
    } | kept(load.full)
    n = len(load.records)
    for name, one in found.items():
        if one.prompt < wanted.prompt or one.generated < wanted.generated:
            fail(
                observed=f"{name} counts {_said(one)}, the client {_said(wanted)}",
                expected="the same",
                remedy=_REMEDY,
                n=n,
                **evidence,
            )
    reason = more_is_right(load)
    for name, one in found.items():
        if one == wanted:
            continue
        if reason:
            inconclusive(
                f"{name} counts {_said(one)}, the client {_said(wanted)}: {reason}",
                expected="the same",
                remedy="run the gate while nobody else uses the node",
                n=n,
                **evidence,
            )
        fail(
            observed=f"{name} counts {_said(one)}, the client {_said(wanted)}",
            expected="the same",
            remedy=_REMEDY,
            n=n,
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=f"{' and '.join(found)} and the client: {_said(wanted)}",
        expected="the same, to the token",
        unit="tokens",
        n=n,
        evidence=evidence,
        artifacts=(artifact(load.full),),
    )


def more_is_right(load: Planned) -> str:
    """Why the node may have counted more than the client; empty when it may not."""
    if cut := sum(_cut(record) for record in load.records):
        return f"{cut} requests were cut off"
    told = ledger(load.before, load.after, load.records)
    return told.statement if told.outcome == "not comparable" and load.before is not None else ""


def _cut(record: RequestRecord) -> bool:
    return record.cancelled or (record.failed and record.completion_tokens is None)


def _said(one: TokenCounts) -> str:
    return f"{format_whole(int(one.prompt))} read + {format_whole(int(one.generated))} made"


LEDGER = Check(
    id="load.ledger",
    title="Tokens counted alike",
    purpose="What clients were told they used is what the node's counters moved by, to the token.",
    parameters=LoadParameters,
    run=client_ledger,
    area="V5",
    typical=1.0,
    needs=("idle node", "load"),
)
