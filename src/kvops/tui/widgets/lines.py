"""A box of ready-made lines: repaints only when they differ, never asks for a new layout."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget

from kvops.tui.text import style_key
from kvops.tui.widgets.strips import retitle, strip_of


class Lines(Widget, can_focus=False):
    """Text is taken as it is: nothing in it is read as markup."""

    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[Text] = []
        self._title = ""

    def show(self, lines: Sequence[Text], title: str | None = None) -> None:
        self._title = retitle(self, title, self._title)
        if [style_key(line) for line in lines] != [style_key(line) for line in self._lines]:
            self._lines = list(lines)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        width, style = self.size.width, self.rich_style
        if y >= len(self._lines):
            return Strip.blank(width, style)
        return strip_of(self._lines[y], width, style, self.app.console)
