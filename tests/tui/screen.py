"""What a console shows, as text, and the console over a store of one's own."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from textual.pilot import Pilot

from kvops.telemetry.history import History
from kvops.telemetry.poller import PollState
from kvops.telemetry.snapshot import NodeSnapshot
from kvops.telemetry.targets import Target
from kvops.tui.app import Console
from kvops.tui.findings import assess
from kvops.tui.glyphs import ASCII, UNICODE
from kvops.tui.session import Session
from kvops.tui.store import Store, Watch
from kvops.tui.view import NodeView
from tests.harness import RunningNode
from tests.telemetry.samples import NOW, make_snapshot

DEADLINE = 20.0
SAMPLE = make_snapshot()


def target_of(node: RunningNode) -> Target:
    return Target(name=node.name, url=node.url, control_url=node.control_url, token=node.token)


@dataclass
class Switch:
    """A target that a test can point elsewhere."""

    target: Target

    def __call__(self) -> Target:
        return self.target


def console(
    *watches: Watch, write: bool = False, ascii_only: bool = False, interval: float = 0.5
) -> Console:
    store = Store(watches, interval=interval)
    return Console(Session(store, glyphs=ASCII if ascii_only else UNICODE, write=write))


def shown(app: Console) -> str:
    """The lines of the screen on top, with what lies beneath it."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[None], app: Console, *wanted: str, absent: str | None = None) -> str:
    """The screen once it holds all of `wanted`. Raises AssertionError with the screen after the deadline."""
    waited = 0.0
    while waited < DEADLINE:
        await pilot.pause(0.1)
        waited += 0.1
        text = shown(app)
        if all(word in text for word in wanted) and (absent is None or absent not in text):
            return text
    raise AssertionError(f"never saw {wanted} (without {absent!r}):\n{shown(app)}")


def node_view(snapshot: NodeSnapshot | None = SAMPLE, **changes: object) -> NodeView:
    """A node as it would be assessed a second after a good poll; `changes` are of the poll."""
    poll = PollState("gpu-1", snapshot=snapshot, received_at=NOW, polls=1)
    return assess(msgspec.structs.replace(poll, **changes), History(), interval=1.0, now=NOW + 1)
