"""Who has the CPUs of this machine: told from real processes, and what a judge makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from kvops.load.machine import Machine, node_pid
from kvops.load.records import ClientSample
from kvops.load.reports import recovery, slo, soak
from kvops.load.statistics import client_health
from tests.load.made import answer, run

SPIN = "print(flush=True)\nwhile True: pass"


@pytest.fixture
def spinning() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def until_used(pid: int, seconds: float) -> None:
    """Until the process had so much CPU, however full the machine is."""
    deadline = time.monotonic() + 30
    while _used(pid) < seconds:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _used(pid: int) -> float:
    import psutil

    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_a_process_counts_where_it_belongs(spinning: int) -> None:
    machine, own = Machine(os.getpid(), spinning), Machine(spinning, None)
    until_used(spinning, _used(spinning) + 0.3)
    seen, alone = machine.look(), own.look()
    assert seen["node"] is not None
    assert 0 < seen["node"] <= 1
    assert alone["ours"] > 0
    assert alone["node"] is None, "what nobody knows is not zero"


def test_processes_that_are_gone_are_no_fault() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    seen = Machine(os.getpid(), gone.pid).look()
    assert seen["node"] == 0


def test_a_node_that_kvops_did_not_start_has_no_process_here() -> None:
    assert node_pid("http://127.0.0.1:1") is None


def shared(
    others: float, *, seconds: int = 400, full: float = 0.95, node: bool = True
) -> list[ClientSample]:
    """A second each: the client has a tenth of the machine, the node what others leave of `full`."""
    return [
        ClientSample(
            float(at), 1, 1, 0.2, 0.004, machine=full, ours=0.1,
            node=full - 0.1 - others if node else None,
        )
        for at in range(seconds)
    ]  # fmt: skip


def test_others_that_fill_the_machine_are_told() -> None:
    found = client_health(shared(0.6))
    assert found.others == pytest.approx(0.6)
    assert found.crowd is not None
    assert "other processes used 60 % of the machine's CPUs in 100 % of all seconds" in found.crowd
    assert found.doubt is None, "what was fast enough was fast enough"


@pytest.mark.parametrize(
    "samples",
    [
        shared(0.1),
        shared(0.5, full=0.7),
        [*shared(0.0, seconds=300), *shared(0.6, seconds=100)],
        shared(0.6, node=False),
        [],
    ],
)
def test_a_machine_with_room_few_seconds_or_an_unknown_node_accuse_nobody(
    samples: list[ClientSample],
) -> None:
    assert client_health(samples).crowd is None


def slower(n: int = 400) -> list:
    return [answer("request", float(at), ttft=0.1 * (1 + 2 * at / n)) for at in range(n)]


def test_a_drift_is_not_the_nodes_while_others_take_the_machine() -> None:
    found = soak.judge(run("soak", slower(), client=shared(0.6)))
    assert found.outcome == "inconclusive"
    assert "other processes used 60 %" in found.reasons[0]
    assert soak.judge(run("soak", slower(), client=shared(0.0))).outcome == "fail"


def test_a_full_machine_whose_node_is_unknown_is_told_beside_the_failure() -> None:
    found = soak.judge(run("soak", slower(), client=shared(0.6, node=False)))
    assert found.outcome == "fail"
    assert any("cannot be told of a node that kvops did not start" in note for note in found.notes)


def test_a_missed_objective_and_a_late_recovery_are_excused_lost_requests_are_not() -> None:
    late = [answer("turn 1", float(at), ttft=9.0) for at in range(120)]
    chats = run("chat_online", late, client=shared(0.6))
    assert slo.judge(chats).outcome == "inconclusive"
    wrong = [msgspec.structs.replace(one, expected=False) for one in late]
    assert slo.judge(run("chat_online", wrong, client=shared(0.6))).outcome == "fail"
    phases = {"baseline": (10, 0.1), "burst": (10, 3.0), "recovery": (40, 3.0)}
    spent = [
        answer(name, float(20 * place + at / 2), ttft=ttft)
        for place, (name, (count, ttft)) in enumerate(phases.items())
        for at in range(count)
    ]
    assert recovery.judge(run("burst_and_recover", spent)).outcome == "fail"
    excused = run("burst_and_recover", spent, client=shared(0.6))
    assert recovery.judge(excused).outcome == "inconclusive"


def test_what_was_met_beside_others_passes() -> None:
    quick = [answer("turn 1", float(at)) for at in range(200)]
    assert slo.judge(run("chat_online", quick, client=shared(0.6))).outcome == "pass"
