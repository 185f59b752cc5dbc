"""What a kept run cannot hold: lines that contradict themselves or their run, and settings no report can read.

A file may have been edited, and a machine's clock may have been set while the run went on. Such lines are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, get_args

import msgspec

from kvops.errors import RunUnreadable
from kvops.load import scenarios
from kvops.load.kept import Kept
from kvops.load.records import REQUESTS_FILE, RequestRecord
from kvops.load.runs import RunInfo
from kvops.printable import printable

T = TypeVar("T", bound=msgspec.Struct)

LONGEST = 30 * 86_400.0
"""Seconds that any part of a request may have taken."""
MOST_TOKENS = 2**31
EARLY = 0.25
"""Seconds by which a request may seem to be sent before it was wanted: clocks are slewed, but not by that."""
BESIDE = 3600.0
"""Seconds around a run in which its requests may seem to be sent: machines that take part have clocks of their own."""
ROUNDING = 1e-6


def whole_info(info: RunInfo) -> tuple[RunInfo, tuple[str, ...]]:
    """With the options that its file lacks at their defaults, in clean words, and what it lacks.

    Raises RunUnreadable.
    """
    info = _clean(info, ("run", "scenario", "model", "target", "reason"))
    if info.report not in get_args(scenarios.ReportName):
        raise _unreadable(info, "report", info.report, "the report of a scenario")
    if info.scenario not in scenarios.names():
        return info, ()
    described = scenarios.find(info.scenario)
    for name, option in described.options.items():
        if name in info.options and not option.holds(info.options[name]):
            raise _unreadable(info, f"options.{name}", info.options[name], option.form())
    missing = sorted(described.options.keys() - info.options.keys())
    damage = [f"run.json lacks the options {', '.join(missing)}"] if missing else []
    if info.finished_at is not None and info.finished_at < info.started_at:
        damage.append("run.json says that the run ended before it began")
    whole = msgspec.structs.replace(info, options=described.defaults() | info.options)
    return whole, tuple(damage)


def _clean(given: T, fields: Sequence[str]) -> T:
    """With those texts printable: a node, or whoever changed the file, chose them."""
    texts = {name: text for name in fields if isinstance(text := getattr(given, name), str)}
    odd = {name: printable(text) for name, text in texts.items() if not text.isprintable()}
    return msgspec.structs.replace(given, **odd) if odd else given


def _unreadable(info: RunInfo, field: str, value: Any, wanted: str) -> RunUnreadable:
    return RunUnreadable(
        f"run.json of {info.run}: {field} is {str(value)[:60]!r}, not {wanted}",
        hint="the file was changed after the run, or comes from another version of kvops",
    )


def requests(found: Kept[RequestRecord], info: RunInfo) -> Kept[RequestRecord]:
    """Those that can be of this run, in clean words."""
    seen: set[int] = set()

    def fault(record: RequestRecord) -> str | None:
        wrong = _of_another(record, info) or _contradiction(record) or _impossible(record, info)
        if wrong is None and record.seq in seen:
            return "repeat the number of another request"
        seen.add(record.seq)
        return wrong

    sound = _without(found, REQUESTS_FILE, fault)
    texts = ("name", "group", "error", "finish_reason")
    return Kept([_clean(record, texts) for record in sound.lines], sound.damage)


def samples(found: Kept[T], name: str) -> Kept[T]:
    """Those of a client or of a node."""
    return _without(found, name, _impossible_sample)


def _without(found: Kept[T], name: str, fault: Callable[[T], str | None]) -> Kept[T]:
    faults, lines = Counter[str](), list[T]()
    for line in found.lines:
        wrong = fault(line)
        if wrong is None:
            lines.append(line)
        else:
            faults[wrong] += 1
    told = (f"{count} lines of {name} {what}: left out" for what, count in faults.items())
    return Kept(lines, (*found.damage, *told))


def _of_another(record: RequestRecord, info: RunInfo) -> str | None:
    own = (record.run, record.scenario) == (info.run, info.scenario)
    return None if own else "are of another run"


def _contradiction(record: RequestRecord) -> str | None:
    if record.expected == (record.error_class is None):
        return None
    return "say both that the answer was as expected and that it was not"


def _impossible(record: RequestRecord, info: RunInfo) -> str | None:
    first, last, end_of_answer = record.ttft or 0.0, record.last or 0.0, record.e2e + ROUNDING
    content = record.first_content or 0.0
    gaps = (min(record.itl), max(record.itl)) if record.itl else ()
    if not _within((record.e2e, record.connect, first, content, last, *gaps), LONGEST):
        return "hold a time that is negative or without bound"
    if max(first, content, last) > end_of_answer:
        return "hold a token that came after the end of its answer"
    counts = (record.prompt_tokens, record.cached_tokens, record.completion_tokens, record.truncated_tokens,
              record.counted_tokens)  # fmt: skip
    if not _within(counts, MOST_TOKENS):
        return "hold a count of tokens that is negative or without bound"
    if record.lateness is not None and record.lateness < -EARLY:
        return "were sent before they were wanted"
    end = math.inf if info.finished_at is None else info.finished_at + BESIDE
    if not (info.started_at - BESIDE <= record.t_send <= end and math.isfinite(record.t_send)):
        return "were sent while the run did not go on"
    return None


def _impossible_sample(sample: msgspec.Struct) -> str | None:
    numbers = (value for value in _values(sample) if isinstance(value, int | float))
    if _within(numbers, 2.0**63):
        return None
    return "hold a number that is negative or without bound"


def _values(sample: msgspec.Struct) -> Iterator[Any]:
    return (getattr(sample, name) for name in sample.__struct_fields__)


def _within(values: Iterable[float | None], most: float) -> bool:
    for value in values:  # noqa: SIM110 - of every line of a run, where a generator costs twice as much
        if value is not None and not 0 <= value <= most:
            return False
    return True
