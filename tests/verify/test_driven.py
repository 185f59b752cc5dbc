"""A load run inside the gate, against a node without a model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from kvops.load.records import ClientSample, RequestRecord
from kvops.testing import FaultyNode, serve
from kvops.verify.api import Api
from kvops.verify.check import Finding
from kvops.verify.context import Context
from kvops.verify.driven import artifact, drive, kept, trusted
from kvops.verify.facts import Facts
from kvops.verify.timing import once
from tests.load.made import answer, busy_client, run

ENDLESS = {"requests": 100_000, "prompt_tokens": "24", "max_tokens": "4", "priority": "none"}


@pytest.fixture(scope="module")
def node() -> Iterator[FaultyNode]:
    with serve() as node:
        yield node


@asynccontextmanager
async def context_of(node: FaultyNode, folder: Path) -> AsyncIterator[Context]:
    target = node.target()
    api = Api(target)
    try:
        yield Context(target=target, api=api, node=None, facts=Facts(), folder=folder)
    finally:
        await api.aclose()


def within(node: FaultyNode, folder: Path, body: Callable[[Context], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with context_of(node, folder) as context:
            await body(context)

    asyncio.run(whole())


def locusts(folder: Path) -> list[int]:
    """Processes that work in a run folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cwd"])
        if str(process.info["cwd"] or "").startswith(str(folder))
    ]


def test_a_run_ends_with_what_is_enough_and_is_kept(node: FaultyNode, tmp_path: Path) -> None:
    async def body(context: Context) -> None:
        data = await drive(
            context, "batch_offline", users=2, duration=None, options=ENDLESS,
            enough=lambda records: len(records) >= 5,
        )  # fmt: skip
        assert data.info.status == "finished"
        assert "as many answers as it needs" in data.info.reason
        assert len(data.records) >= 5
        assert not any(record.failed for record in data.records)
        assert data.folder.parent == tmp_path
        assert artifact(data).path == str(data.folder)
        assert kept(trusted(data))["requests"] == len(data.records)

    within(node, tmp_path, body)
    assert locusts(tmp_path) == []


def test_a_check_that_is_stopped_takes_its_load_with_it(node: FaultyNode, tmp_path: Path) -> None:
    seen = threading.Event()

    def look(records: Sequence[RequestRecord]) -> bool:
        if records:
            seen.set()
        return False

    async def body(context: Context) -> None:
        load = asyncio.create_task(
            drive(context, "batch_offline", users=2, duration=None, options=ENDLESS, enough=look)
        )
        for _ in range(600):
            if seen.is_set():
                break
            await asyncio.sleep(0.05)
        assert locusts(tmp_path)
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load

    within(node, tmp_path, body)
    assert locusts(tmp_path) == []
    (kept_run,) = tmp_path.glob("*/run.json")
    assert '"status":"interrupted"' in kept_run.read_text()


def test_a_load_that_does_not_fit_the_node_leaves_the_check_open(
    node: FaultyNode, tmp_path: Path
) -> None:
    async def body(context: Context) -> None:
        with pytest.raises(Finding) as caught:
            await drive(
                context, "batch_offline", users=1, duration=None,
                options=ENDLESS | {"prompt_tokens": "900000"},
            )  # fmt: skip
        assert caught.value.outcome.verdict == "inconclusive"
        assert "prompt-tokens" in str(caught.value.outcome.observed)

    within(node, tmp_path, body)


def test_a_busy_load_generator_leaves_the_check_open() -> None:
    records = [answer("request", float(at)) for at in range(10)]
    assert trusted(run("batch_offline", records, client=[ClientSample(5.0, 1, 1, 0.2, 0.01)]))
    with pytest.raises(Finding) as caught:
        trusted(run("batch_offline", records, client=busy_client(10)))
    assert caught.value.outcome.verdict == "inconclusive"
    assert caught.value.outcome.n == 10


def test_what_was_measured_once_is_measured_again_only_in_another_run(
    node: FaultyNode, tmp_path: Path
) -> None:
    made: list[float] = []

    async def make() -> float:
        made.append(time.monotonic())
        if len(made) == 1:
            raise httpx.ConnectError("gone")
        return made[-1]

    async def body(context: Context) -> None:
        with pytest.raises(httpx.ConnectError):
            await once(context, "key", make)
        first = await once(context, "key", make)
        assert await once(context, "key", make) == first
        assert await once(context, "other", make) != first

    within(node, tmp_path, body)
    within(node, tmp_path, lambda context: once(context, "key", make))  # type: ignore[arg-type,return-value]
    assert len(made) == 4
