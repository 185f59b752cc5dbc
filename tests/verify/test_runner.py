"""Whatever a check does, it ends in a verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kvops.telemetry.targets import Target
from kvops.testing import serve
from kvops.verify import result, runner, runs
from kvops.verify.check import Check, Outcome, Parameters
from kvops.verify.context import Context
from kvops.verify.profile import Entry
from kvops.verify.result import Report
from kvops.verify.selection import PlannedCheck

Body = Callable[[Context, Parameters], Awaitable[Outcome]]


def planned(name: str, run: Body, **entry: object) -> PlannedCheck:
    check = Check(id=name, title=name, purpose="A test.", parameters=Parameters, run=run)
    return PlannedCheck(check, Entry.model_validate({"id": name} | entry), Parameters())


async def good(context: Context, parameters: Parameters) -> Outcome:
    return Outcome(verdict="pass", observed=1, expected=1)


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
    with serve() as node:
        return asyncio.run(runner.run(Target(name="t", url=node.url), None, "p", checks))


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
