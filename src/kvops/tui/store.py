"""Everything the console knows: one poller a node, their histories and what happened. Collects whatever is shown."""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvops import registry
from kvops.errors import KvopsError
from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.history import History, readings
from kvops.telemetry.poller import NodePoller, PollState, Resolve
from kvops.telemetry.targets import Target, resolve
from kvops.tui.events import events_between
from kvops.tui.findings import assess
from kvops.tui.view import Event, FleetView

DISCOVERY_SECONDS = 1.0
MAX_EVENTS = 200


@dataclass(frozen=True)
class Watch:
    """A node to watch: the name shown and how to find it anew."""

    name: str
    resolve: Resolve


def connect(target: Target) -> NodeClient:
    # Imported at the first poll: the HTTP library would delay the first paint.
    from kvops.telemetry.clients.kvops import KvopsClient

    return KvopsClient(target)


def watch_local(name: str) -> Watch:
    return Watch(name, lambda: resolve(name))


class Store:
    def __init__(
        self,
        watches: Sequence[Watch] = (),
        *,
        discover: bool = False,
        interval: float = 1.0,
        connect: Callable[[Target], NodeClient] = connect,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._discover = discover
        self._interval = interval
        self._connect, self._clock = connect, clock
        self._pollers: dict[str, NodePoller] = {}
        self._histories: dict[str, History] = {}
        self._records: dict[str, registry.NodeRecord] = {}
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._tasks: set[asyncio.Task[None]] = set()
        for watch in watches:
            self._add(watch)

    @property
    def interval(self) -> float:
        return self._interval

    @interval.setter
    def interval(self, seconds: float) -> None:
        self._interval = seconds
        for poller in self._pollers.values():
            poller.interval = seconds
            if poller.state.error is None:
                poller.wake()

    def poller(self, name: str) -> NodePoller | None:
        return self._pollers.get(name)

    def ask_for_map(self, name: str | None, cells: int) -> None:
        """Fetch the block map of this node, and of no other, with each poll."""
        for poller in self._pollers.values():
            poller.map_cells = cells if poller.state.name == name else 0

    def view(self) -> FleetView:
        now = self._clock()
        nodes = (
            assess(poller.state, self._histories[name], interval=poller.interval, now=now)
            for name, poller in self._pollers.items()
        )
        return FleetView(now, tuple(nodes), tuple(reversed(self._events)))

    def keep(self, view: FleetView) -> FleetView:
        """The same view, cut off from what is still being collected."""
        nodes = (replace(node, history=copy.deepcopy(node.history)) for node in view.nodes)
        return replace(view, nodes=tuple(nodes))

    def note(self, event: Event) -> None:
        self._events.append(event)

    async def run(self) -> None:
        """Collect until cancelled."""
        try:
            for poller in self._pollers.values():
                self._start(poller)
            while True:
                await self._look_around()
                await asyncio.sleep(DISCOVERY_SECONDS)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_around(self) -> None:
        """Watch nodes that appeared, and poll at once those that came back."""
        try:
            records = await asyncio.to_thread(registry.running)
        except (OSError, KvopsError):
            return
        for record in records:
            poller = self._pollers.get(record.name) or self._pollers.get(record.url.split("://")[1])
            if poller is None and self._discover:
                self._start(self._add(watch_local(record.name)))
            elif poller is not None and self._records.get(record.name) != record:
                poller.wake()
            self._records[record.name] = record

    def _add(self, watch: Watch) -> NodePoller:
        poller = NodePoller(
            watch.name,
            watch.resolve,
            self._connect,
            interval=self._interval,
            clock=self._clock,
            on_poll=self._polled,
        )
        self._pollers[watch.name] = poller
        self._histories[watch.name] = History()
        return poller

    def _start(self, poller: NodePoller) -> None:
        task = asyncio.create_task(poller.run(), name=f"poll {poller.state.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _polled(self, before: PollState, after: PollState) -> None:
        now = self._clock()
        self._events.extend(events_between(before, after, now))
        history = self._histories[after.name]
        if after.error is not None:
            history.lost()
        elif after.snapshot is not None:
            history.record(now, readings(after.snapshot), hold=max(3.0, 2 * self._interval))
