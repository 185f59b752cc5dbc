"""One polling loop a node, with its own timeout and back-off: no node's trouble is another's.

The last good snapshot is kept with the time it came and the last error. A target is resolved by name anew for
each poll, so a node that comes back on other ports is found again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from kvops.errors import KvopsError, NodeUnauthorized, NodeUnreachable, UsageError
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.snapshot import KvMap, NodeSnapshot, Reading
from kvops.telemetry.targets import Target

BACK_OFF = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
JITTER = 0.2
MAP_SECONDS = 1.0
"""Longest wait for a block map; the snapshot must not wait for it."""

Resolve = Callable[[], Target]
Connect = Callable[[Target], NodeClient]


class PollState(msgspec.Struct, frozen=True):
    """What is known of one node. Times are Unix seconds on this machine's clock."""

    name: str
    url: str = ""
    snapshot: NodeSnapshot | None = None
    received_at: float | None = None
    """When the last good snapshot came."""
    round_trip: float | None = None
    kv_map: Reading[KvMap] | None = None
    """The last one fetched, as old as it says; None until somebody asked for it."""
    error: KvopsError | None = None
    """Of the last poll; None when it was good."""
    failures: int = 0
    """Polls failed in a row."""
    next_try_at: float | None = None
    """Set while backing off."""
    polls: int = 0


def back_off(failures: int, error: KvopsError, jitter: float) -> float:
    """Seconds to wait after the n-th failure in a row, `jitter` in 0..1. What a person must mend waits longest."""
    step = len(BACK_OFF) if isinstance(error, NodeUnauthorized | UsageError) else failures
    return BACK_OFF[min(step, len(BACK_OFF)) - 1] * (1 - JITTER + 2 * JITTER * jitter)


class NodePoller:
    """Polls until cancelled; never raises for what a node does. `interval` and `map_cells` may change any time."""

    def __init__(
        self,
        name: str,
        resolve: Resolve,
        connect: Connect,
        *,
        interval: float = 1.0,
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        on_poll: Callable[[PollState, PollState], None] = lambda before, after: None,
    ) -> None:
        self.state = PollState(name)
        self.interval = interval
        self.map_cells = 0
        self._resolve, self._connect = resolve, connect
        self._clock, self._jitter, self._on_poll = clock, jitter, on_poll
        self._client: NodeClient | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Poll now, whatever the back-off."""
        self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                started = self._clock()
                await self.poll()
                await self._rest(self._pause(self._clock() - started))
        finally:
            await self._drop_client()

    async def poll(self) -> None:
        """One poll; its outcome is in `state`."""
        before = self.state
        try:
            self.state = await self._good_poll(before)
        except KvopsError as error:
            self.state = self._failed(before, error)
        except Exception as error:  # a defect of ours must not end the loop, and must be seen
            self.state = self._failed(before, KvopsError(f"{type(error).__name__}: {error}"))
        if self.state.error is not None:
            await self._drop_client()
        self._on_poll(before, self.state)

    async def act(self, action: Literal["drain", "resume"]) -> None:
        """Ask the node to drain or resume, then poll. Raises what the client raises."""
        client = self._connect(await asyncio.to_thread(self._resolve))
        try:
            await (client.drain() if action == "drain" else client.resume())
        finally:
            await client.aclose()
        self.wake()

    async def _good_poll(self, before: PollState) -> PollState:
        client = await self._fresh_client()
        started = self._clock()
        snapshot = await client.snapshot()
        received_at = self._clock()
        return PollState(
            name=before.name, url=client.target.url, snapshot=snapshot, received_at=received_at,
            round_trip=received_at - started, kv_map=await self._kv_map(client, before), polls=before.polls + 1,
        )  # fmt: skip

    async def _kv_map(self, client: NodeClient, before: PollState) -> Reading[KvMap] | None:
        """Only the engine knows the map, between two of its steps: where it takes long, the last map stays."""
        if not self.map_cells:
            return before.kv_map
        try:
            async with asyncio.timeout(MAP_SECONDS):
                return await client.kv_map(self.map_cells)
        except (TimeoutError, NodeUnreachable):
            return before.kv_map

    async def _fresh_client(self) -> NodeClient:
        target = await asyncio.to_thread(self._resolve)
        if self._client is not None and self._client.target != target:
            await self._drop_client()
        if self._client is None:
            self._client = self._connect(target)
        return self._client

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _failed(self, before: PollState, error: KvopsError) -> PollState:
        failures = before.failures + 1
        wait = back_off(failures, error, self._jitter())
        return msgspec.structs.replace(
            before,
            error=error,
            failures=failures,
            next_try_at=self._clock() + wait,
            polls=before.polls + 1,
        )

    def _pause(self, took: float) -> float:
        if self.state.next_try_at is not None:
            return self.state.next_try_at - self._clock()
        return self.interval - took

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.05)):
                await self._wake.wait()
        self._wake.clear()
