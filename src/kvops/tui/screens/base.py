"""What both screens share: header, banner and tabs above, keys below, and one way to be drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from kvops.tui.render.chrome import banner_line, header_line, tab_line
from kvops.tui.session import Session
from kvops.tui.view import FleetView
from kvops.tui.widgets.lines import Lines

WIDTHS = [(0, "-narrow"), (80, "-normal"), (110, "-wide")]
HEIGHTS = [(0, "-short"), (30, "-tall")]
TABS = (("1", "Fleet"), ("2", "Node"))


class ViewScreen(Screen[None]):
    """Draws a view when told to; holds no readings of its own."""

    TAB: ClassVar[str]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def compose(self) -> ComposeResult:
        yield Lines(id="header", classes="chrome")
        yield Lines(id="banner", classes="chrome")
        yield Lines(id="tabs", classes="chrome")
        yield from self.panels()
        yield Footer(compact=True, show_command_palette=False)

    def panels(self) -> Iterable[Widget]:
        """The widgets between the tabs and the footer."""
        raise TypeError(f"{type(self).__name__} has no panels")

    def draw(self, view: FleetView) -> None:
        """Bring the panels up to date with `view`."""

    def on_mount(self) -> None:
        """Lay out for this size at once: Textual would do so after a first paint for another."""
        for size, thresholds in ((self.app.size.width, WIDTHS), (self.app.size.height, HEIGHTS)):
            self.add_class([name for least, name in thresholds if size >= least][-1])

    def show(self, view: FleetView) -> None:
        if self.size.width == 0:
            return
        # A late redraw may meet a screen that is not composed yet, or is being taken down.
        with contextlib.suppress(NoMatches):
            self._show(view)

    def _show(self, view: FleetView) -> None:
        width, glyphs = self.size.width, self.session.glyphs
        banner = banner_line(view, width, glyphs)
        with self.app.batch_update():
            self.query_one("#header", Lines).show(
                [header_line(view, self.session.mode, width, glyphs)]
            )
            self.query_one("#tabs", Lines).show([tab_line(self.TAB, TABS, width)])
            self._show_banner(self.query_one("#banner", Lines), banner is not None)
            self.query_one("#banner", Lines).show([banner] if banner else [])
            self.draw(view)

    @staticmethod
    def _show_banner(banner: Lines, wanted: bool) -> None:
        if banner.display != wanted:
            banner.display = wanted

    def redraw(self) -> None:
        self.show(self.session.view())

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def on_screen_resume(self) -> None:
        self.call_after_refresh(self.redraw)
