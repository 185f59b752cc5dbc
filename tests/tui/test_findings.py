"""Statuses and findings from readings, and events between two polls: pure."""

from __future__ import annotations

import msgspec
import pytest

from kvops.errors import NodeNotFound, NodeProtocolError, NodeUnauthorized, NodeUnreachable
from kvops.telemetry.history import History
from kvops.telemetry.poller import PollState
from kvops.telemetry.snapshot import Known, KvUsage, NodeSnapshot, Progress, QueueState, Upkeep
from kvops.tui.events import events_between
from kvops.tui.findings import assess, binding_limit
from kvops.tui.view import Status
from tests.telemetry.samples import NOW, make_snapshot
from tests.tui.screen import node_view


def kv(used: int) -> Known[KvUsage]:
    return Known(KvUsage(16, 100, used, 0, 100 - used, 1024, 0.02, 0, 0), NOW)


def queue(running: int, waiting: int, oldest: float | None = None) -> Known[QueueState]:
    return Known(QueueState(running, waiting, oldest, 16, 100, {}), NOW)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "OK"),
        ({"state": "loading"}, "LOAD"),
        ({"state": "restarting"}, "LOAD"),
        ({"state": "draining"}, "DRAIN"),
        ({"state": "stalled"}, "CRIT"),
        ({"state": "failed"}, "CRIT"),
        ({"kv": kv(84)}, "OK"),
        ({"kv": kv(85)}, "WARN"),
        ({"kv": kv(96), "queue": queue(16, 3)}, "CRIT"),
        ({"kv": kv(96), "queue": queue(4, 0)}, "WARN"),
        ({"queue": queue(16, 0)}, "OK"),
        ({"queue": queue(16, 1)}, "OK"),
        ({"queue": queue(16, 90)}, "CRIT"),
        ({"queue": queue(3, 1, 11.0)}, "WARN"),
        ({"progress": Known(Progress(1, 0.1, True, 0, 1), NOW)}, "CRIT"),
        ({"state": "draining", "kv": kv(96), "queue": queue(16, 3)}, "CRIT"),
    ],
)
def test_status_follows_the_readings(changes: dict[str, object], status: Status) -> None:
    view = node_view(make_snapshot(**changes))
    assert view.status == status
    assert any(finding.level != "INFO" for finding in view.findings) is (status in ("WARN", "CRIT"))


@pytest.mark.parametrize(
    ("age", "error", "status"),
    [
        (0.5, None, "OK"),
        (2.9, None, "OK"),
        (3.5, None, "STALE"),
        (2.0, NodeUnreachable("x"), "WARN"),
        (3.5, NodeUnreachable("x"), "STALE"),
        (11.0, NodeUnreachable("x"), "DOWN"),
        (0.5, NodeNotFound("x"), "DOWN"),
        (0.5, NodeUnauthorized("x"), "DENIED"),
        (None, None, "WAIT"),
        (None, NodeProtocolError("x"), "DOWN"),
        (None, NodeUnauthorized("x"), "DENIED"),
    ],
)
def test_status_follows_the_connection(
    age: float | None, error: Exception | None, status: Status
) -> None:
    poll = PollState(
        "n",
        snapshot=None if age is None else make_snapshot(),
        received_at=None if age is None else NOW - age,
        error=error,  # type: ignore[arg-type]
        failures=int(error is not None),
    )
    view = assess(poll, History(), interval=1.0, now=NOW)
    assert view.status == status
    assert view.fresh is (status in ("OK", "WARN"))


def test_a_slow_rate_does_not_make_a_node_stale() -> None:
    poll = PollState("n", snapshot=make_snapshot(), received_at=NOW - 20)
    assert assess(poll, History(), interval=10.0, now=NOW).status == "OK"
    assert assess(poll, History(), interval=5.0, now=NOW).status == "STALE"


def test_old_readings_are_not_judged() -> None:
    poll = PollState(
        "n",
        snapshot=make_snapshot(kv=kv(99)),
        received_at=NOW - 60,
        error=NodeUnreachable("x"),
        failures=4,
    )
    assert [f.title for f in assess(poll, History(), interval=1, now=NOW).findings] == [
        "no answer",
        "retrying",
    ]


def test_preemptions_count_within_the_last_minute_only() -> None:
    history = History()
    history.record(NOW - 200, {"preemptions": 0.0}, hold=2)
    history.record(NOW - 100, {"preemptions": 50.0}, hold=2)
    poll = PollState("n", snapshot=make_snapshot(), received_at=NOW)
    assert assess(poll, history, interval=1, now=NOW).status == "OK"
    history.record(NOW - 1, {"preemptions": 50.0}, hold=2)
    history.record(NOW, {"preemptions": 53.0}, hold=2)
    view = assess(poll, history, interval=1, now=NOW)
    assert [(f.title, f.detail) for f in view.findings] == [
        ("preemptions", "3 requests put back in the last minute")
    ]
    assert binding_limit(view) == "KV_PRESSURE"


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"queue": queue(0, 0)}, "IDLE"),
        ({"queue": queue(3, 0)}, "NONE"),
        ({"queue": queue(16, 3)}, "SEQ_CAP"),
        ({"queue": queue(16, 95)}, "QUEUE_FULL"),
        ({"queue": queue(16, 3), "kv": kv(97)}, "KV_PRESSURE"),
    ],
)
def test_the_binding_limit(changes: dict[str, object], limit: str) -> None:
    assert binding_limit(node_view(make_snapshot(**changes))) == limit


def texts(before: PollState, after: PollState) -> list[str]:
    return [event.text for event in events_between(before, after, NOW)]


def polled(snapshot: NodeSnapshot, **changes: object) -> PollState:
    return msgspec.structs.replace(
        PollState("n", snapshot=snapshot, received_at=NOW - 5), **changes
    )


def test_events_of_a_life() -> None:
    first = polled(make_snapshot())
    lost = polled(make_snapshot(), error=NodeUnreachable("refused"), failures=1)
    still = polled(make_snapshot(), error=NodeUnreachable("refused"), failures=2)
    assert texts(PollState("n"), first) == ["seen: kvops 0.1.0, state ready"]
    assert texts(first, lost) == ["lost: refused"]
    assert texts(lost, still) == []
    assert texts(still, first) == ["back after 5.00 s"]
    assert texts(first, first) == []


def test_events_of_state_restart_and_configuration() -> None:
    old = make_snapshot()
    new = make_snapshot(
        state="draining",
        state_reason="asked",
        uptime_seconds=Known(1.0, NOW),
        config_hash=Known("beef12345678", NOW),
        progress=Known(Progress(1, 0.1, False, 2, 0), NOW),
    )
    assert texts(polled(old), polled(new)) == [
        "state ready to draining (asked)",
        "the node was restarted: its counters began again",
        "the engine process was restarted (now 2 times)",
        "configuration f00dfeed to beef1234",
    ]


def test_a_share_of_some_seconds_names_no_reason_that_was_counted_since_the_start() -> None:
    traffic = make_snapshot().traffic
    assert isinstance(traffic, Known)
    value = msgspec.structs.replace(
        traffic.value, error_ratio=1.0, rejections_by_reason={"invalid_api_key": 90, "timeout": 1}
    )
    view = node_view(make_snapshot(traffic=Known(value, NOW)))
    (finding,) = [finding for finding in view.findings if finding.title == "errors"]
    assert finding.level == "CRIT"
    assert finding.detail.startswith("100 % of the requests of the last")
    assert not any(why in finding.detail for why in value.rejections_by_reason)


@pytest.mark.parametrize(
    ("upkeep", "found"),
    [
        (Upkeep(0, 1, 2), []),
        (
            Upkeep(0, 1, 2, stale_files=("api_keys", "certificate")),
            ["the node still uses the keys of before", "the node still uses the certificate of before"],
        ),
        (
            Upkeep(0, 1, 2, audit_failing=True, audit_dropped=3),
            ["it cannot be written; 3 records lost since the start"],
        ),
    ],
)  # fmt: skip
def test_what_the_node_could_not_read_or_write_is_a_finding(
    upkeep: Upkeep, found: list[str]
) -> None:
    view = node_view(make_snapshot(upkeep=Known(upkeep, NOW)))
    assert view.status == ("WARN" if found else "OK")
    assert [f.detail for f in view.findings if f.level == "WARN"] == found
    assert all("kvops node logs says why" in f.remedy for f in view.findings if f.level == "WARN")
