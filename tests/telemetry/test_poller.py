"""The polling loop: back-off, what is kept, and finding a node again. Time is a number the tests set."""

from __future__ import annotations

import asyncio

import pytest

from kvops.errors import NodeNotFound, NodeProtocolError, NodeUnauthorized, NodeUnreachable
from kvops.telemetry import poller as poller_module
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.telemetry.poller import BACK_OFF, NodePoller, PollState, back_off
from kvops.telemetry.snapshot import Known, encode
from kvops.telemetry.targets import Target
from tests.telemetry.samples import NOW, healthy, loopback, make_snapshot, reply


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def nowhere() -> Target:
    return Target(name="gpu-1", url="http://127.0.0.1:1", control_url="http://127.0.0.1:1")


def test_back_off_doubles_to_its_bound_with_jitter() -> None:
    error = NodeUnreachable("gone")
    assert [back_off(n, error, 0.5) for n in range(1, 9)] == [1, 2, 4, 8, 16, 30, 30, 30]
    assert back_off(1, error, 0.0) == pytest.approx(0.8)
    assert back_off(9, error, 1.0) == pytest.approx(36)


def test_a_refused_token_backs_off_longest_at_once() -> None:
    assert back_off(1, NodeUnauthorized("no"), 0.5) == BACK_OFF[-1]


async def test_a_good_poll_is_kept_with_its_time() -> None:
    clock = Clock()
    async with loopback(healthy) as target:
        poller = NodePoller("gpu-1", lambda: target, KvopsClient, clock=clock)
        await poller.poll()
        assert poller.state.snapshot == make_snapshot()
        assert poller.state.received_at == NOW
        assert poller.state.error is None
        assert poller.state.kv_map is None
        poller.map_cells = 50
        await poller.poll()
        assert isinstance(poller.state.kv_map, Known)


async def test_a_failure_keeps_the_last_good_snapshot_and_the_error() -> None:
    clock, targets = Clock(), []
    async with loopback(healthy) as target:
        targets.append(target)
        poller = NodePoller(
            "gpu-1", lambda: targets[-1], KvopsClient, clock=clock, jitter=lambda: 0.5
        )
        await poller.poll()
        targets.append(nowhere())
        clock.now += 5
        await poller.poll()
        state = poller.state
        assert state.snapshot == make_snapshot()
        assert state.received_at == NOW
        assert isinstance(state.error, NodeUnreachable)
        assert (state.failures, state.next_try_at) == (1, NOW + 6)
        await poller.poll()
        assert poller.state.next_try_at == NOW + 7
        targets.append(target)
        await poller.poll()
        assert (poller.state.failures, poller.state.error, poller.state.next_try_at) == (
            0,
            None,
            None,
        )


async def test_a_node_that_comes_back_elsewhere_is_found_by_name() -> None:
    targets: list[Target] = []

    def find() -> Target:
        if not targets:
            raise NodeNotFound("no node runs here")
        return targets[-1]

    poller = NodePoller("gpu-1", find, KvopsClient)
    await poller.poll()
    assert isinstance(poller.state.error, NodeNotFound)
    for _ in range(2):
        async with loopback(healthy) as target:
            targets.append(target)
            await poller.poll()
            assert poller.state.error is None
            assert poller.state.url == target.url


async def test_a_defect_of_ours_is_shown_and_does_not_end_the_loop() -> None:
    def broken(target: Target) -> KvopsClient:
        raise ValueError("oops [red]")

    poller = NodePoller("gpu-1", nowhere, broken)
    await poller.poll()
    assert "oops [red]" in str(poller.state.error)


async def test_garbage_from_a_node_is_its_state() -> None:
    async def garbage(method: str, path: str, headers: dict[str, str]) -> bytes:
        return reply(b"<html>")

    async with loopback(garbage) as target:
        poller = NodePoller("gpu-1", lambda: target, KvopsClient)
        await poller.poll()
        assert isinstance(poller.state.error, NodeProtocolError)


async def test_the_loop_polls_waits_and_can_be_woken_from_a_long_back_off() -> None:
    states: asyncio.Queue[PollState] = asyncio.Queue()
    poller = NodePoller(
        "gpu-1",
        nowhere,
        KvopsClient,
        jitter=lambda: 1.0,
        on_poll=lambda before, after: states.put_nowait(after),
    )
    poller.state = PollState("gpu-1", failures=20)
    task = asyncio.create_task(poller.run())
    first = await asyncio.wait_for(states.get(), 5)
    assert first.failures == 21
    poller.wake()
    second = await asyncio.wait_for(states.get(), 5)
    assert second.failures == 22
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_acting_goes_to_the_node_and_polls_again() -> None:
    calls: list[str] = []

    async def note(method: str, path: str, headers: dict[str, str]) -> bytes:
        calls.append(f"{method} {path}")
        return await healthy(method, path, headers)

    async with loopback(note) as target:
        poller = NodePoller("gpu-1", lambda: target, KvopsClient)
        await poller.act("drain")
        await poller.act("resume")
    assert calls == ["POST /control/drain", "POST /control/resume"]


async def test_a_map_that_takes_long_delays_nothing_and_leaves_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poller_module, "MAP_SECONDS", 0.1)
    stuck = asyncio.Event()
    stuck.set()

    async def answer(method: str, path: str, headers: dict[str, str]) -> bytes:
        if path.startswith("/control/kv/map"):
            await stuck.wait()
        return await healthy(method, path, headers)

    async with loopback(answer) as target:
        poller = NodePoller("gpu-1", lambda: target, KvopsClient)
        poller.map_cells = 40
        await poller.poll()
        first = poller.state.kv_map
        stuck.clear()
        await poller.poll()
        stuck.set()
    assert isinstance(first, Known)
    assert poller.state.error is None
    assert poller.state.kv_map is first


async def test_one_hung_node_does_not_hold_up_another() -> None:
    release = asyncio.Event()

    async def hang(method: str, path: str, headers: dict[str, str]) -> bytes:
        await release.wait()
        return reply(encode(make_snapshot()))

    async with loopback(hang) as hung, loopback(healthy) as well:
        polled: asyncio.Queue[PollState] = asyncio.Queue()
        pollers = [
            NodePoller(
                t.url,
                lambda t=t: t,
                KvopsClient,
                interval=0.05,
                on_poll=lambda before, after: polled.put_nowait(after),
            )
            for t in (hung, well)
        ]  # type: ignore[misc]
        tasks = [asyncio.create_task(poller.run()) for poller in pollers]
        for _ in range(3):
            await asyncio.wait_for(polled.get(), 10)
        assert pollers[0].state.polls == 0
        release.set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
