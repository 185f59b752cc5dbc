"""Open-loop runs against the scripted node: what the schedule says is sent, and what is not is said."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvops.errors import UsageError
from kvops.load import launcher, scenarios
from kvops.load.pacing import Pacing, schedule
from kvops.load.records import ErrorClass, read_client, read_records
from kvops.load.reports import base, summary
from tests.load.driven import drive, plan
from tests.load.scripted import Reply, Request, node, serving

BURST = Pacing(kind="burst", rate=5, burst_size=6, burst_every=1, max_in_flight=4)


def test_a_slow_node_cannot_slow_its_own_test_down(tmp_path: Path) -> None:
    """Every shot of the schedule is accounted for; those without room are not sent, and never sent later."""
    held = threading.Event()

    def slow(request: Request, reply: Reply) -> None:
        if request.path == "/v1/chat/completions":
            held.wait(1.5)
        node(request, reply)

    with serving(slow) as server:
        run, records = drive(plan(server.url, tmp_path, pacing=BURST, duration=2.5))
        sent = [r for r in server.requests if r.path == "/v1/chat/completions"]
    wanted = [shot.at for shot in schedule(BURST, 5, 2.5)]
    assert run.info.status == "finished"
    assert run.info.pacing == BURST
    start = min(r.t_intended for r in records) - wanted[0]  # type: ignore[type-var, operator]
    assert sorted(r.t_intended - start for r in records) == pytest.approx(wanted, abs=1e-5)  # type: ignore[operator]
    saturated = [r for r in records if r.error_class is ErrorClass.CLIENT_SATURATED]
    assert len(sent) == len(records) - len(saturated)
    assert len(saturated) >= 6, "of two bursts of six, four at most find room"
    assert all(r.failed and r.group == "" and r.ttft is None for r in saturated)
    answered = [r for r in records if r.expected]
    assert all(r.asked_output == 4 and r.group in ("even", "odd") for r in answered)
    assert all(
        (r.lateness or 0) >= 0 and (r.scheduled_ttft or 0) >= (r.ttft or 0) for r in answered
    )
    assert max(one.late for one in read_client(run.folder)) > 0


def test_a_trace_decides_when_and_how_much(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("time,input_tokens,output_tokens\n10,30,7\n10.2,40,8\n10.4,50,9\n")
    pacing = Pacing(kind="trace", trace=str(trace))
    with serving(node) as server:
        _, records = drive(plan(server.url, tmp_path, pacing=pacing, duration=None))
        asked = [
            r.json()["max_tokens"] for r in server.requests if r.path == "/v1/chat/completions"
        ]
    assert asked == [7, 8, 9]
    assert [(r.asked_input, r.asked_output) for r in records] == [(30, 7), (40, 8), (50, 9)]


def test_shots_are_shared_by_processes_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    pacing = Pacing(kind="constant", rate=20)
    with serving(node) as server:
        users: list[int] = []
        made = plan(server.url, tmp_path, pacing=pacing, processes=2)
        run = launcher.run(
            made,
            lambda told: users.append(told.client.users if told.client else 0),
            threading.Event(),
        )
        records = read_records(run.folder)
    assert max(users) == 2, "one of each process"
    assert run.info.status == "finished", run.info.reason
    assert len(records) == 40
    assert len({r.seq for r in records}) == 40
    assert {r.worker for r in records} == {0, 1}
    assert {one.worker for one in read_client(run.folder)} == {0, 1}
    for worker in (0, 1):
        mine = sorted(r.t_intended for r in records if r.worker == worker)  # type: ignore[type-var]
        assert len(mine) == 20


def test_a_stopped_run_waits_for_answers_and_sends_nothing_new(tmp_path: Path) -> None:
    stop = threading.Event()

    def slow(request: Request, reply: Reply) -> None:
        if request.path == "/v1/chat/completions":
            stop.set()
            time.sleep(1.0)
        node(request, reply)

    pacing = Pacing(kind="constant", rate=1)
    with serving(slow) as server:
        run, records = drive(plan(server.url, tmp_path, pacing=pacing, duration=60.0), stop)
    assert (run.info.status, run.info.reason) == ("interrupted", "interrupted by the user")
    assert records
    assert all(r.expected for r in records), "it had its time to be answered"
    assert len(records) <= 3


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_mistake_in_a_task_ends_the_run_as_failed(tmp_path: Path, processes: int) -> None:
    pacing = Pacing(kind="constant", rate=10)
    with serving(node) as server:
        made = plan(
            server.url,
            tmp_path,
            pacing=pacing,
            duration=60.0,
            processes=processes,
            options={"broken_at": 4},
        )
        run, records = drive(made)
    assert run.info.status == "failed"
    assert run.info.reason == "RuntimeError: the scenario is wrong here"
    assert len(records) >= 4, "what came before is kept"


def listed(url: str, out: Path, name: str, *options: str, **more: Any) -> launcher.Plan:
    chosen = scenarios.find(name)
    made = plan(url, out, **{"duration": 60.0} | more)
    return msgspec.structs.replace(made, scenario=chosen, options=chosen.parse(options))


def test_a_list_is_sent_by_the_clock_and_counted_before_it_starts(tmp_path: Path) -> None:
    pacing = Pacing(kind="constant", rate=20)
    options = ("--lengths", "64,96", "--repeats", "3")
    with serving(node) as server:
        made = listed(server.url, tmp_path, "long_document", *options, pacing=pacing)
        run, records = drive(made)
        paths = [request.path for request in server.requests]
    assert run.info.status == "finished", run.info.reason
    assert Counter(one.name for one in records) == {"64 tokens": 3, "96 tokens": 3}
    start = min(one.t_intended or 0.0 for one in records)
    times = sorted((one.t_intended or 0.0) - start for one in records)
    assert times == pytest.approx([number / 20 for number in range(6)], abs=1e-5)
    assert "/v1/tokenize" not in paths[paths.index("/v1/chat/completions") :]


def test_processes_share_a_list_that_comes_by_the_clock(tmp_path: Path) -> None:
    pacing = Pacing(kind="poisson", rate=20)
    options = ("--lengths", "128", "--depths", "0,50,100", "--repeats", "2")
    with serving(node) as server:
        made = listed(server.url, tmp_path, "needle_recall", *options, pacing=pacing, processes=2)
        run, records = drive(made)
    assert run.info.status == "finished", run.info.reason
    cells = [(one.needle.depth, one.needle.repeat) for one in records if one.needle is not None]
    wanted = [(None, 0), *itertools.product((0.0, 50.0, 100.0), (0, 1))]
    assert sorted(cells, key=str) == sorted(wanted, key=str)
    assert {one.worker for one in records} == {0, 1}


def test_of_a_session_only_the_first_turn_has_a_time(tmp_path: Path) -> None:
    pacing = Pacing(kind="constant", rate=20, unit="sessions")
    with serving(node) as server:
        options = ("--loops", "3", "--turns", "2", "--max-tokens", "4")
        _, records = drive(listed(server.url, tmp_path, "agent_loop", *options, pacing=pacing))
    timed = Counter((one.name, one.t_intended is not None) for one in records)
    assert timed == {("turn 1", True): 3, ("turn 2", False): 3}


@pytest.mark.parametrize("name", ["agent_loop", "long_document", "shared_prefix", "needle_recall"])
def test_what_the_client_had_no_room_for_is_held_against_nobody(tmp_path: Path, name: str) -> None:
    pacing = Pacing(kind="constant", rate=200, max_in_flight=1)

    def slow(request: Request, reply: Reply) -> None:
        if request.path == "/v1/chat/completions":
            time.sleep(0.3)
        node(request, reply)

    with serving(slow) as server:
        run, records = drive(listed(server.url, tmp_path, name, pacing=pacing))
    assert any(one.error_class is ErrorClass.CLIENT_SATURATED for one in records)
    verdict = summary.judge(base.read(run))
    assert verdict.outcome == "inconclusive", verdict
    assert "had no room at the client" in str(verdict.reasons) or "not asked" in str(
        verdict.reasons
    )


def test_a_list_that_is_cut_by_its_duration_is_not_sent_to_the_end(tmp_path: Path) -> None:
    pacing = Pacing(kind="constant", rate=2)
    options = ("--lengths", "64", "--repeats", "30")
    with serving(node) as server:
        made = listed(server.url, tmp_path, "long_document", *options, pacing=pacing, duration=1.2)
        run, records = drive(made)
    assert run.info.status == "finished", run.info.reason
    assert len(records) == 3


@pytest.mark.long
def test_the_last_answer_of_a_list_is_waited_for(tmp_path: Path) -> None:
    def slow(request: Request, reply: Reply) -> None:
        if request.path == "/v1/chat/completions":
            time.sleep(launcher.STOP_TIMEOUT + 2)
        node(request, reply)

    pacing = Pacing(kind="constant", rate=5)
    with serving(slow) as server:
        options = ("--lengths", "64", "--repeats", "2")
        _, records = drive(listed(server.url, tmp_path, "long_document", *options, pacing=pacing))
    assert [one.expected for one in records] == [True, True]


def test_a_kind_of_arrivals_that_a_scenario_does_not_take_is_refused_by_the_launcher_too(
    tmp_path: Path,
) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("time,input_tokens,output_tokens\n0,1,1\n")
    with serving(node) as server:
        for name, pacing in (
            ("batch_offline", Pacing(kind="poisson", rate=1)),
            ("long_document", Pacing(kind="trace", trace=str(file))),
        ):
            with pytest.raises(UsageError, match=name):
                drive(listed(server.url, tmp_path, name, pacing=pacing))
        assert server.requests == []
