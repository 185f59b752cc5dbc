"""What the person at the console has chosen: which node, how fast, frozen or live, and with which rights."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from kvops.tui.glyphs import Glyphs
from kvops.tui.render.chrome import Mode
from kvops.tui.store import Store
from kvops.tui.view import FleetView, NodeView

RATES = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between two polls that `+` and `-` step through."""


class Session:
    """Freezing keeps a picture; the store goes on collecting."""

    def __init__(
        self, store: Store, *, glyphs: Glyphs, write: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self.store = store
        self.glyphs = glyphs
        self.write = write
        self._clock = clock
        self._frozen: FleetView | None = None
        self._selected: str | None = None

    def view(self) -> FleetView:
        if self._frozen is None:
            return self.store.view()
        aged = self._clock() - self._frozen.now
        return replace(
            self._frozen, nodes=tuple(replace(node, frozen_for=aged) for node in self._frozen.nodes)
        )

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def toggle_freeze(self) -> None:
        self._frozen = None if self._frozen else self.store.keep(self.store.view())

    @property
    def mode(self) -> Mode:
        frozen_for = None if self._frozen is None else self._clock() - self._frozen.now
        return Mode(self.write, self.store.interval, frozen_for)

    def select(self, name: str | None) -> None:
        self._selected = name

    def selected(self, view: FleetView) -> NodeView | None:
        """The chosen node, or the first while none is chosen."""
        return view.node(self._selected) or (view.nodes[0] if view.nodes else None)

    def step_selection(self, step: int) -> None:
        view = self.view()
        names = sorted(node.name for node in view.nodes)
        current = self.selected(view)
        if current is not None:
            self._selected = names[(names.index(current.name) + step) % len(names)]

    def step_rate(self, step: int) -> None:
        """Faster (-1) or slower (+1)."""
        interval = self.store.interval
        nearest = min(range(len(RATES)), key=lambda index: abs(RATES[index] - interval))
        self.store.interval = RATES[min(max(nearest + step, 0), len(RATES) - 1)]
