"""Clients that hung up: afterwards nothing of theirs may run or hold blocks, and the canary must be right."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kvops.load.phases import AFTER, CANARY, STORM
from kvops.load.records import RequestRecord, ServerSample
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import UNKNOWN, counted
from kvops.load.reports.doubts import blamed, client_gaps
from kvops.telemetry.snapshot import Known, NodeSnapshot
from kvops.units import format_duration

CANCELLED = "hung up on as planned"
"""What the cancelled requests of such a run are."""
LEAST = 10
"""Hung-up requests under which the storm was none."""


_UNSEEN = (
    "no look at the node after the storm shows all of it free: when it was given back is not known, see server.jsonl; "
    "run it again with a longer --settle, and with nobody else using the node"
)


def judge(data: RunData) -> Verdict:
    found = facts(data)
    failures, gaps = failure_lines(data.records), []
    if found["hung_up"] < LEAST:
        gaps.append(
            f"{found['hung_up']} requests were hung up on, {LEAST} are the least: raise --storm-seconds"
        )
    if not found["canaries_after"]:
        gaps.append("no canary was answered after the storm")
    before, after = found["before"], found["after"]
    if after is None:
        gaps.append(
            "the node shows no snapshot: whether it freed what was asked for cannot be seen"
        )
    else:
        failures += _left_over(before or {}, after)
        slow, excused = blamed(data, _late(found["freed_within"], data.info.options["settle"]))
        failures, gaps = [*failures, *slow], [*gaps, *excused]
        if found["freed_within"] is None and found["hung_up"]:
            gaps.append(_UNSEEN)
    return verdict(
        failures, [*gaps, *client_gaps(data)], (), _met(found, data.info.options["settle"])
    )


def _met(found: dict[str, Any], settle: float) -> list[str]:
    freed = found["freed_within"]
    if freed is None:
        return []
    return [
        f"all that {counted(found['hung_up'], 'request')} held is free again within {format_duration(freed)}, "
        f"{format_duration(settle)} are allowed",
        f"{counted(found['canaries_after'], 'canary answer')} right after the storm",
    ]


def facts(data: RunData) -> dict[str, Any]:
    ends = [one.t_send + one.e2e for one in hung_up(data)]
    return {
        "hung_up": len(ends),
        "before_first_token": sum(one.ttft is None for one in hung_up(data)),
        "answered_in_storm": sum(one.expected and one.name == STORM for one in data.records),
        "canaries_after": sum(
            one.expected and one.name == f"{CANARY} {AFTER}" for one in data.records
        ),
        "before": _held(data.info.before),
        "after": _held(data.info.after),
        "freed_within": _freed_within(data, max(ends)) if ends else None,
    }


def body(data: RunData) -> RenderableType:
    found = facts(data)
    freed = UNKNOWN if found["freed_within"] is None else format_duration(found["freed_within"])
    return Text(
        f"{found['hung_up']} requests were hung up on, {found['before_first_token']} of them before their first "
        f"token; {found['answered_in_storm']} were answered before that\n"
        f"before: {_words(found['before'])}\nafter:  {_words(found['after'])}; free again within {freed}"
    )


def hung_up(data: RunData) -> list[RequestRecord]:
    return [one for one in data.records if one.name == STORM and one.cancelled]


def _held(seen: NodeSnapshot | None) -> dict[str, int] | None:
    """Requests and blocks that a node holds; None without a snapshot that shows them."""
    if seen is None or not isinstance(seen.queue, Known) or not isinstance(seen.kv, Known):
        return None
    queue, kv = seen.queue.value, seen.kv.value
    return {"running": queue.running, "waiting": queue.waiting, "used": kv.used_blocks}


def _left_over(before: dict[str, int], after: dict[str, int]) -> list[str]:
    words = {
        "running": "requests still run",
        "waiting": "requests still wait",
        "used": "blocks are still used",
    }
    return [
        f"{after[name]} {what} after the storm, {before.get(name, 0)} before it"
        for name, what in words.items()
        if after[name] > before.get(name, 0)
    ]


def _late(freed: float | None, allowed: float) -> list[str]:
    """A second is how near the samples can tell."""
    if freed is None or freed <= allowed + 1.0:
        return []
    return [
        f"what was asked for was held for {format_duration(freed)} more, {format_duration(allowed)} are allowed"
    ]


def _freed_within(data: RunData, end: float) -> float | None:
    """Seconds from the last hang-up to the first sample that shows nothing held; None: none does."""
    held = _held(data.info.before)
    used = None if held is None else held["used"]
    return next(
        (one.at - end for one in data.server if one.at >= end and _is_free(one, used)), None
    )


def _is_free(seen: ServerSample, used: int | None) -> bool:
    """`used`: blocks that were in use before the storm."""
    if seen.running is None or seen.running or seen.waiting:
        return False
    return used is None or seen.kv_used is None or seen.kv_used <= used


def _words(held: dict[str, int] | None) -> str:
    if held is None:
        return "not exposed"
    return f"{held['running']} running, {held['waiting']} waiting, {held['used']} blocks used"
