"""The command palette: open a node by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from kvops.tui.text import clean

if TYPE_CHECKING:
    from kvops.tui.app import Console


class NodeCommands(Provider):
    @property
    def _console(self) -> Console:
        return cast("Console", self.app)

    def _names(self) -> list[str]:
        return sorted(node.name for node in self._console.session.view().nodes)

    async def discover(self) -> Hits:
        for name in self._names():
            yield DiscoveryHit(
                f"Open {clean(name)}", partial(self._console.open_node, name), help="Node screen"
            )

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name in self._names():
            text = f"Open {clean(name)}"
            score = matcher.match(text)
            if score > 0:
                yield Hit(
                    score,
                    matcher.highlight(text),
                    partial(self._console.open_node, name),
                    help="Node screen",
                )
