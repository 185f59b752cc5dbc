"""The keys, and what the signs mean."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.render.kv import legend
from kvops.tui.text import status_text
from kvops.tui.view import Status
from kvops.tui.widgets.lines import Lines

KEYS = (
    ("1 2", "fleet, node"),
    ("enter / esc", "open the node / back"),
    ("j k g G", "down, up, first, last (arrows too)"),
    ("/", "filter the fleet; ! inverts; esc clears"),
    ("s  m", "sort; next measure in the chart"),
    ("n N", "next, previous node"),
    ("w", "more of why the node is as it is"),
    ("space", "freeze the picture; collecting goes on"),
    ("+ -", "poll faster, slower"),
    ("r", "retry now"),
    ("D U", "drain, resume (only with --write)"),
    ("S  ctrl+p", "screenshot; all commands"),
    ("q  ctrl+q", "quit"),
)
STATUSES: tuple[tuple[Status, str], ...] = (
    ("OK", "ready and within limits"),
    ("WARN", "a limit is near"),
    ("CRIT", "stalled, failed, or past a limit"),
    ("STALE", "no new reading: values are old"),
    ("DOWN", "does not answer"),
    ("DENIED", "refuses the token"),
    ("UNSEEN", "kvops was not told how to look at it"),
    ("DRAIN", "finishes its work, takes none"),
    ("LOAD", "loading, restarting or stopping"),
)


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,enter", "dismiss", "close", id="help-close"),
        Binding("j", "scroll(1)", "down", show=False, id="help-down"),
        Binding("k", "scroll(-1)", "up", show=False, id="help-up"),
    ]

    def __init__(self, glyphs: Glyphs) -> None:
        super().__init__()
        self._glyphs = glyphs

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="dialog"):
            yield Lines(id="help")

    def on_mount(self) -> None:
        lines = help_lines(self._glyphs)
        text = self.query_one("#help", Lines)
        text.styles.height = len(lines)
        text.show(lines)
        self.query_one("#dialog").border_title = Text("Keys and signs")
        self.call_after_refresh(self._say_that_it_scrolls)

    def on_resize(self) -> None:
        self.call_after_refresh(self._say_that_it_scrolls)

    def _say_that_it_scrolls(self) -> None:
        dialog = self.query_one("#dialog")
        more = "j k scroll: more below" if dialog.max_scroll_y > 0 else ""
        dialog.border_subtitle = Text(more)

    def action_scroll(self, lines: int) -> None:
        self.query_one("#dialog").scroll_relative(y=lines, animate=False)


def help_lines(glyphs: Glyphs) -> list[Text]:
    keys = [Text.assemble((f"{key:<12}", f"bold {theme.BLUE}"), words) for key, words in KEYS]
    signs = [_sign(status, words, glyphs) for status, words in STATUSES]
    return [*keys, Text(), *signs, Text(), legend(60, glyphs)]


def _sign(status: Status, words: str, glyphs: Glyphs) -> Text:
    sign = status_text(status, glyphs)
    return Text.assemble(sign, " " * (12 - sign.cell_len), words)
