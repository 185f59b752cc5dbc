"""The command palette: open a node by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
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
            open_it = partial(self._console.open_node, name)
            yield DiscoveryHit(Text(f"Open {clean(name)}"), open_it, text=name, help="Node screen")

    async def search(self, query: str) -> Hits:
        """Names are not highlighted: the palette's highlighter would read them as markup."""
        matcher = self.matcher(query)
        for name in self._names():
            text = f"Open {clean(name)}"
            score = matcher.match(text)
            if score > 0:
                open_it = partial(self._console.open_node, name)
                yield Hit(score, Text(text), open_it, text=name, help="Node screen")
