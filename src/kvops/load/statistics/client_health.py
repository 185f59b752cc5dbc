"""Whether the load generator itself was the bottleneck: then its times say nothing about the node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from kvops.load.records import ClientSample, ErrorClass, RequestRecord
from kvops.load.statistics.percentiles import Series, series
from kvops.units import format_duration, format_ratio

LAG_BOUND = 0.1
CPU_BOUND = 0.9
SATURATED_SHARE = 0.2
OTHERS_BOUND = 0.3
FULL_BOUND = 0.8
CROWD_SHARE = 0.3
"""Of the seconds."""
SCHEDULE_LAG_BOUND = 0.5
"""Seconds at p99: AIPerf calls a replay degraded above it."""


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    samples: int
    """About one a second and process."""
    cpu_max: float | None
    """Share of one core, 0..1."""
    lag_max: float | None
    """Seconds that a timer was late."""
    lateness: Series
    """Of scheduled sends, seconds, the time to connect left out; no samples in a closed loop."""
    unsent: int
    """Requests that were due while the client had no room for them."""
    doubt: str | None
    """Why the run cannot be relied on for the client's sake: `slow`, or what it had no room to send."""
    late_samples: int = 0
    """Those in which a timer was over the bound late."""
    machine: float | None = None
    """Median share of this machine's CPUs that everything used, 0..1; None: not told."""
    others: float | None = None
    """Of it what neither the load generator nor the node used; None where they cannot be told apart."""
    crowd: str | None = None
    """Why what took too long need not be the node's fault: others took the CPUs. A time that was kept stays kept."""
    slow: str | None = None
    """Why the client's times may be longer than the node's; None: nothing speaks against them."""


def client_health(
    samples: Sequence[ClientSample], records: Sequence[RequestRecord] = ()
) -> ClientHealth:
    late = series(late for record in records if (late := _lateness(record)) is not None)
    unsent = sum(record.error_class is ErrorClass.CLIENT_SATURATED for record in records)
    slow = saturation(_while_sending(samples, records)) or _late(late)
    return ClientHealth(
        samples=len(samples),
        cpu_max=max((sample.cpu for sample in samples), default=None),
        lag_max=max((sample.lag for sample in samples), default=None),
        lateness=late,
        unsent=unsent,
        doubt=slow or _unsent(unsent, len(records)),
        late_samples=sum(sample.lag > LAG_BOUND for sample in samples),
        machine=_median(sample.machine for sample in samples),
        others=_median(sample.others for sample in samples),
        crowd=crowd(samples),
        slow=slow,
    )


def _lateness(record: RequestRecord) -> float | None:
    """A connection that takes long is the node's lateness, or the network's."""
    return None if record.lateness is None else record.lateness - (record.connect or 0.0)


def crowd(samples: Sequence[ClientSample]) -> str | None:
    """Whether others than the load generator and the node took the CPUs, in words; None: no, or it is not known.

    A second counts in which they used more than OTHERS_BOUND of a machine that was over FULL_BOUND busy: on one with
    CPUs to spare they take nothing away.
    """
    told = [(one.machine or 0.0, others) for one in samples if (others := one.others) is not None]
    taken = [others for machine, others in told if others > OTHERS_BOUND and machine > FULL_BOUND]
    if not told or len(taken) / len(told) <= CROWD_SHARE:
        return None
    return (
        f"other processes used {format_ratio(float(np.median(taken)))} of the machine's CPUs in"
        f" {format_ratio(len(taken) / len(told))} of all seconds, which the node may have lacked"
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _while_sending(
    samples: Sequence[ClientSample], records: Sequence[RequestRecord]
) -> list[ClientSample]:
    """Without the seconds in which the client itself came up: a sample tells of the second before it."""
    begun = min((record.t_send for record in records), default=-math.inf)
    return [sample for sample in samples if sample.at >= begun + 1.0]


def saturation(samples: Sequence[ClientSample]) -> str | None:
    """Why the client's own times cannot be trusted, or None. A share of late or busy seconds decides, of each worker
    for itself: the requests of one that is full are slow, however calm the others are."""
    workers: dict[int, list[ClientSample]] = defaultdict(list)
    for sample in samples:
        workers[sample.worker].append(sample)
    told = {number: _saturated(own) for number, own in sorted(workers.items())}
    full = {number: why for number, why in told.items() if why is not None}
    if not full:
        return None
    number, why = next(iter(full.items()))
    if len(workers) == 1:
        return why
    more = f"; {len(full) - 1} more like it" if len(full) > 1 else ""
    return f"worker {number} of {len(workers)}: {why}{more}"


def _saturated(samples: Sequence[ClientSample]) -> str | None:
    """Of one worker."""
    late = np.mean([sample.lag > LAG_BOUND for sample in samples])
    busy = np.mean([sample.cpu > CPU_BOUND for sample in samples])
    if late > SATURATED_SHARE:
        bound = format_duration(LAG_BOUND)
        return f"the client's timers were over {bound} late in {format_ratio(float(late))} of all seconds"
    if busy > SATURATED_SHARE:
        bound = format_ratio(CPU_BOUND)
        return f"the client used over {bound} of its core in {format_ratio(float(busy))} of all seconds"
    return None


def _late(lateness: Series) -> str | None:
    """The largest stands for a p99 that the samples are too few for."""
    worst = lateness.max if lateness.p99 is None else float(lateness.p99)
    if worst is None or worst <= SCHEDULE_LAG_BOUND:
        return None
    what = "at worst" if lateness.p99 is None else "at p99"
    return (
        f"scheduled requests were sent {format_duration(worst)} late {what},"
        f" more than {format_duration(SCHEDULE_LAG_BOUND)}"
    )


def _unsent(unsent: int, requests: int) -> str | None:
    return (
        f"{unsent} of {requests} requests were due but never sent: the client was full"
        if unsent
        else None
    )
