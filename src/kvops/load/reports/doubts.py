"""What a doubtful client, a crowded machine or wrong books do to a judgement: every report and the comparison ask here.

What was too slow is a gap then, and no failure of the node; what did not come at all, or was wrong, stays a failure.
What was fast enough is doubted for the client's sake alone: that others took the CPUs made nothing faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from kvops.load.reports.base import RunData, once
from kvops.load.reports.cells import counted
from kvops.load.statistics import ClientHealth, Ledger, client_health, ledger
from kvops.load.statistics.client_health import CROWD_SHARE, FULL_BOUND
from kvops.telemetry.fleet import is_loopback
from kvops.units import format_ratio


@once
def health(data: RunData) -> ClientHealth:
    return client_health(data.client, data.records)


@once
def books(data: RunData) -> Ledger:
    return ledger(data.info.before, data.info.after, data.records)


def excuse(data: RunData) -> str | None:
    """Why what is slow in this run need not be the node's fault; None: nothing speaks for that."""
    found = health(data)
    return found.crowd if found.slow is None else f"the client was the bottleneck: {found.slow}"


def blamed(data: RunData, slow: Sequence[str]) -> tuple[list[str], list[str]]:
    """What took too long, as failures of the node; as gaps where the client, or others on the machine, explain it."""
    found = health(data)
    if found.slow is not None:
        return [], [f"{line}; it may have been the client" for line in slow]
    if found.crowd is not None:
        return [], [f"{line}; {found.crowd}: run it again on a quiet machine" for line in slow]
    return list(slow), []


def client_gaps(data: RunData) -> list[str]:
    """Why a verdict that rests on this client's times is open."""
    found = health(data)
    if found.slow is not None:
        return [
            f"the client was the bottleneck: {found.slow}: lower the load, give it a core of its own, or add "
            "--processes"
        ]
    return unsent_gaps(data)


def unsent_gaps(data: RunData) -> list[str]:
    """Requests that were due while the client had no room for them: nobody's answer was wrong."""
    left = health(data).unsent
    if not left:
        return []
    return [
        f"the client was the bottleneck: {counted(left, 'request')} of {len(data.records)} had no room at the client "
        "and had to be left out: raise --max-in-flight, or lower the load"
    ]


def crowd_notes(data: RunData) -> list[str]:
    """A machine that was full, of which nobody can tell whether it was the node that filled it."""
    told = [one for one in data.client if one.machine is not None]
    full = sum((one.machine or 0.0) > FULL_BOUND for one in told)
    if not told or full / len(told) <= CROWD_SHARE or any(one.node is not None for one in told):
        return []
    if not is_loopback(urlsplit(data.info.target).hostname or ""):
        return []
    return [
        f"this machine's CPUs were over {format_ratio(FULL_BOUND)} busy in {format_ratio(full / len(told))} of all "
        "seconds; whether by the node or by others cannot be told of a node that kvops did not start here"
    ]


def book_gaps(data: RunData) -> list[str]:
    """Token counts of client and node that cannot both be right: then neither are the rates made of them."""
    found = books(data)
    if found.outcome != "differs":
        return []
    return [
        f"the ledger does not add up: {found.statement}: run it again while nobody else uses the node; if it differs "
        "again, the answers' usage or the node's counters are wrong: kvops verify --only load.ledger"
    ]
