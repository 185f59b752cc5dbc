"""Whatever a check does, it ends in a verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvops.errors import UsageError
from kvops.telemetry.fleet import Entry, Fleet
from kvops.telemetry.targets import Target
from kvops.testing import serve
from kvops.verify import keeping, needs, occupancy, result, runner, runs
from kvops.verify.check import Artifact, Outcome, Parameters
from kvops.verify.context import Context
from kvops.verify.occupancy import Occupancy
from kvops.verify.result import Report
from kvops.verify.runner import Terms
from kvops.verify.selection import PlannedCheck
from kvops.verify.verdict import Verdict
from tests.verify import made
from tests.verify.made import good, planned


async def broken(context: Context, parameters: Parameters) -> Outcome:
    raise ZeroDivisionError("a defect of the check")


async def slow(context: Context, parameters: Parameters) -> Outcome:
    await asyncio.sleep(60)
    raise AssertionError("not reached")


async def lost(context: Context, parameters: Parameters) -> Outcome:
    await context.api.get("/drops")
    raise AssertionError("not reached")


def run(*checks: PlannedCheck, url: str | None = None) -> Report:
    if url is not None:
        return asyncio.run(runner.run(Target(name="t", url=url), None, "p", checks))
    return made.run(*checks)


def test_a_check_that_raises_is_an_error_and_the_rest_is_run() -> None:
    report = run(planned("a", broken), planned("b", good))
    assert [(r.verdict, r.observed) for r in report.checks] == [
        ("error", "ZeroDivisionError: a defect of the check"),
        ("pass", 1),
    ]
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)


def test_a_check_that_takes_too_long_is_inconclusive() -> None:
    report = run(planned("a", slow, timeout="50ms"), planned("b", good))
    assert [r.verdict for r in report.checks] == ["inconclusive", "pass"]
    assert "50 ms" in str(report.checks[0].observed)


def test_a_check_that_takes_too_long_on_a_node_without_progress_fails() -> None:
    with serve("stalled") as node:
        report = run(planned("a", slow, timeout="50ms"), url=node.url)
    assert report.checks[0].verdict == "fail"
    assert "/livez 503" in str(report.checks[0].observed)


def test_nothing_listening_is_unreachable_and_no_check_is_run() -> None:
    report = run(planned("a", good), url="http://127.0.0.1:9")
    assert (report.verdict, report.exit_code) == ("unreachable", 4)
    assert (report.checks, report.not_run) == ((), ("a",))
    assert report.reason


def test_a_node_that_drops_the_connection_fails_the_check() -> None:
    async def go() -> Report:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await reader.readuntil(b"\r\n\r\n")
            if b"/drops" not in request:
                writer.write(
                    b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{"data":[]}'
                )
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            return await runner.run(Target(name="t", url=url), None, "p", [planned("a", lost)])

    report = asyncio.run(go())
    assert report.checks[0].verdict == "fail"
    assert "connection lost at GET /drops" in str(report.checks[0].observed)
    assert report.exit_code == 1


def test_a_cancelled_run_returns_what_it_has() -> None:
    async def go(url: str) -> Report:
        reached = asyncio.Event()

        def progress(index: int, check: PlannedCheck) -> None:
            if check.check.id == "b":
                reached.set()

        checks = [planned("a", good), planned("b", slow), planned("c", good)]
        task = asyncio.create_task(
            runner.run(Target(name="t", url=url), None, "p", checks, progress)
        )
        await asyncio.wait_for(reached.wait(), 10)
        task.cancel()
        return await task

    with serve() as node:
        report = asyncio.run(go(node.url))
    assert (report.verdict, report.exit_code) == ("interrupted", 130)
    assert [r.id for r in report.checks] == ["a"]
    assert report.not_run == ("b", "c")


def test_the_report_survives_the_disk(kvops_home: object) -> None:
    report = run(planned("a", broken), planned("b", good))
    path = runs.save(report)
    assert path.parent.name == f"verify-{report.run_id}"
    assert result.decode(path.read_bytes()) == report
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("count", [1, 3])
def test_progress_is_told_before_each_check(count: int) -> None:
    told: list[tuple[int, str]] = []
    checks = [planned(f"c{i}", good) for i in range(count)]
    with serve() as node:
        target = Target(name="t", url=node.url)
        asyncio.run(
            runner.run(target, None, "p", checks, lambda i, p: told.append((i, p.check.id)))
        )
    assert told == [(i, f"c{i}") for i in range(count)]


@pytest.mark.parametrize(
    ("verdict", "n", "fewest", "kept"),
    [
        ("pass", 3, 3, "pass"),
        ("pass", 2, 3, "inconclusive"),
        ("pass", 0, 1, "inconclusive"),
        ("warn", 2, 3, "inconclusive"),
        ("fail", 2, 3, "fail"),
        ("skip", 0, 3, "skip"),
    ],
)
def test_too_few_samples_never_pass(verdict: Verdict, n: int, fewest: int, kept: str) -> None:
    async def body(context: Context, parameters: Parameters) -> Outcome:
        return Outcome(verdict=verdict, observed="seen", expected=1, n=n)

    (found,) = made.run(planned("a", body, parameters={"min_samples": fewest})).checks
    assert (found.verdict, found.min_samples) == (kept, fewest)
    assert str(n) in str(found.observed) or kept == verdict


def test_what_json_cannot_hold_is_said_in_words_or_named_as_a_defect() -> None:
    import numpy as np

    evidence = {"inf": float("inf"), "scalar": np.float64(1.5), "half": "\ud83d", "set": {1}}

    async def odd(context: Context, parameters: Parameters) -> Outcome:
        return Outcome(
            verdict="pass", observed=float("nan"), expected=np.int64(3), evidence=evidence
        )

    async def impossible(context: Context, parameters: Parameters) -> Outcome:
        return Outcome(verdict="pass", observed=1, expected=1, evidence={"object": object()})

    async def large(context: Context, parameters: Parameters) -> Outcome:
        held = {"small": 1, "large": "x" * 100_000}
        return Outcome(verdict="pass", observed=1, expected=1, evidence=held)

    report = made.run(planned("a", odd), planned("b", impossible), planned("c", large))
    first, second, third = report.checks
    assert (first.observed, first.expected) == ("nan", 3)
    assert first.evidence == {"inf": "inf", "scalar": 1.5, "half": "?", "set": [1]}
    assert (second.verdict, second.observed) == (
        "error",
        "what the check found cannot be kept: NotImplementedError: object in evidence",
    )
    assert third.evidence == {"small": 1, "large": "left out: 97.7 KiB"}
    assert result.decode(result.encode(report)) == report


def test_plots_are_kept_beside_the_result_and_a_folder_that_is_full_costs_no_verdict(
    tmp_path: Path,
) -> None:
    async def drawn(context: Context, parameters: Parameters) -> Outcome:
        assert context.folder is not None
        artifacts = (
            Artifact(title="KV", svg="<svg/>"),
            Artifact(title="large", svg="x" * (keeping.MAX_SVG + 1)),
            Artifact(title="run", path="/runs/soak"),
        )
        return Outcome(verdict="pass", observed=1, expected=1, artifacts=artifacts)

    (found,) = made.run(planned("a", drawn), terms=Terms(folder=tmp_path)).checks
    assert found.verdict == "pass"
    kept, lost, named = found.artifacts
    assert (kept.title, kept.plot) == ("KV", True)
    assert (tmp_path / kept.path).read_text() == "<svg/>"
    assert "not kept: larger than" in lost.title
    assert (named.path, named.plot) == ("/runs/soak", False)


def test_a_check_that_needs_a_control_plane_is_skipped_without_one() -> None:
    (found,) = made.run(planned("a", broken, needs=("control plane",))).checks
    assert (found.verdict, found.n) == ("skip", 0)
    assert "--control-url" in found.remedy


def test_a_check_that_needs_an_idle_node_does_not_pass_beside_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = True

    async def look(context: Context) -> Occupancy:
        return Occupancy(running=2.0 * busy, waiting=1.0 * busy, kv_used=0, generated=0)

    monkeypatch.setattr(occupancy, "occupancy", look)
    monkeypatch.setattr(needs, "IDLE_WITHIN", 0.1)
    check = planned("a", good, needs=("idle node",))
    (found,) = made.run(check).checks
    assert (found.verdict, found.observed) == (
        "inconclusive",
        "2 running and 1 waiting requests of others",
    )
    busy = False
    assert made.run(check).verdict == "pass"


def test_an_engine_that_does_not_show_what_is_in_flight_is_taken_as_idle() -> None:
    check = planned("a", good, needs=("idle node",))
    assert made.run(check, engine="llamacpp").verdict == "pass"


def test_another_machine_is_loaded_only_when_it_was_named() -> None:
    checks = [planned("a", good), planned("load.x", good, needs=("load",))]
    away, nobody = Target(name="t", url="http://node.example:8000"), Fleet(path=Path("fleet.yaml"))
    with pytest.raises(UsageError) as caught:
        needs.require_allowed(checks, away, (), nobody)
    assert "load.x" in caught.value.message
    assert "--allow-remote node.example" in caught.value.hint
    needs.require_allowed(checks, away, ("node.example",), nobody)
    needs.require_allowed(checks[:1], away, (), nobody)
    needs.require_allowed(checks, Target(name="t", url="http://127.0.0.1:8000"), (), nobody)


@pytest.mark.parametrize(
    ("url", "allowed", "loaded"),
    [
        ("http://node.example:8000", None, False),
        ("http://node.example:8000", False, False),
        ("http://node.example:8000", True, True),
        ("http://127.0.0.1:8000", False, False),
        ("http://127.0.0.1:8000", None, True),
    ],
)
def test_a_node_of_the_fleet_is_loaded_only_where_its_entry_allows_it(
    url: str, allowed: bool | None, loaded: bool
) -> None:
    checks = [planned("a", good), planned("load.x", good, needs=("load",))]
    fleet = Fleet(
        path=Path("fleet.yaml"), entries=(Entry(name="big", url=url, allow_load=allowed),)
    )
    target = Target(name="t", url=url)
    needs.require_allowed(checks[:1], target, (), fleet)
    if loaded:
        return needs.require_allowed(checks, target, ("node.example",), fleet)
    with pytest.raises(UsageError, match=r"big is not to be loaded.*load\.x") as caught:
        needs.require_allowed(checks, target, ("node.example",), fleet)
    assert "--skip load.x" in caught.value.hint
    return None
