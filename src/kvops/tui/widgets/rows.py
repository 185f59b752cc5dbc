"""A table of ready-made lines with a cursor that follows its row, whatever the order becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from kvops.tui.text import style_key
from kvops.tui.widgets.strips import retitle, strip_of


class Rows(Widget, can_focus=True):
    """Its height grows with its rows where the style sheet says `auto`; otherwise it scrolls with its cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False, id="row-down"),
        Binding("up,k", "move(-1)", "up", show=False, id="row-up"),
        Binding("pagedown,ctrl+d", "move(10)", "page down", show=False, id="row-page-down"),
        Binding("pageup,ctrl+u", "move(-10)", "page up", show=False, id="row-page-up"),
        Binding("home,g", "move(-1000000)", "first", show=False, id="row-first"),
        Binding("end,G", "move(1000000)", "last", show=False, id="row-last"),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--cursor"}
    ALLOW_SELECT = False

    @dataclass
    class Moved(Message):
        """The cursor stands on another row."""

        rows: Rows
        key: str

        @property
        def control(self) -> Rows:
            return self.rows

    @dataclass
    class Opened(Message):
        rows: Rows
        key: str

        @property
        def control(self) -> Rows:
            return self.rows

    def __init__(self, *, marker: str, empty: str, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marker, self._empty = marker, empty
        self._header = Text()
        self._rows: list[tuple[str, Text]] = []
        self._key: str | None = None
        self._top = 0
        self._title = ""

    @property
    def key(self) -> str | None:
        """The row under the cursor."""
        return self._key

    @property
    def room(self) -> int:
        """Rows that are seen at once."""
        return max(0, self.size.height - 1)

    @property
    def line_width(self) -> int:
        """Cells for a row; one is the cursor's, one is left free."""
        return max(0, self.size.width - 2)

    def show(
        self,
        header: Text,
        rows: Sequence[tuple[str, Text]],
        title: str | None = None,
        empty: str | None = None,
    ) -> None:
        """`title` and `empty`, the words for no rows, stay as they were where they are None."""
        self._title = retitle(self, title, self._title)
        grown = len(rows) != len(self._rows)
        empty = self._empty if empty is None else empty
        if (empty, self._looks(header, rows)) == (
            self._empty,
            self._looks(self._header, self._rows),
        ):
            return
        self._empty, self._header, index = empty, header, self._index
        self._rows = list(rows)
        self._keep_cursor(index)
        self.refresh(layout=grown and self.styles.height is not None and self.styles.height.is_auto)

    @staticmethod
    def _looks(header: Text, rows: Sequence[tuple[str, Text]]) -> tuple[object, ...]:
        return (style_key(header), [(key, style_key(text)) for key, text in rows])

    @property
    def _index(self) -> int:
        return next((index for index, (key, _) in enumerate(self._rows) if key == self._key), 0)

    def _keep_cursor(self, old_index: int) -> None:
        keys = [key for key, _ in self._rows]
        if self._key not in keys:
            self._key = keys[min(old_index, len(keys) - 1)] if keys else None
        self._scroll_to_cursor()

    def _scroll_to_cursor(self) -> None:
        room = max(1, self.room)
        self._top = max(min(self._top, self._index), self._index - room + 1, 0)
        self._top = min(self._top, max(0, len(self._rows) - room))

    def on_resize(self) -> None:
        self._scroll_to_cursor()

    def move_to(self, key: str) -> None:
        if key != self._key and any(key == known for known, _ in self._rows):
            self._key = key
            self._scroll_to_cursor()
            self.refresh()
            self.post_message(self.Moved(self, key))

    def action_move(self, step: int) -> None:
        if self._rows:
            self.move_to(self._rows[min(max(self._index + step, 0), len(self._rows) - 1)][0])

    def open(self) -> None:
        if self._key is not None:
            self.post_message(self.Opened(self, self._key))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        row = self._top + offset.y - 1 if offset is not None and offset.y > 0 else -1
        if 0 <= row < len(self._rows):
            key = self._rows[row][0]
            if key == self._key and event.chain > 1:
                self.open()
            self.move_to(key)

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(len(self._rows), 1) + 1

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self.rich_style
        if y == 0:
            return strip_of(Text(" ").append_text(self._header), width, base, self.app.console)
        index = self._top + y - 1
        if index >= len(self._rows):
            text = Text(f" {self._empty}") if not self._rows and y == 1 else Text()
            return strip_of(text, width, base + Style(dim=not self._rows), self.app.console)
        key, text = self._rows[index]
        marker = self._marker if key == self._key else " "
        return strip_of(
            Text(marker).append_text(text), width, self._row_style(key, base), self.app.console
        )

    def _row_style(self, key: str, base: Style) -> Style:
        return (
            base + self.get_component_rich_style("rows--cursor")
            if key == self._key and self.has_focus
            else base
        )
