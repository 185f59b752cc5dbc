"""Screen 1: all nodes in one table, why the chosen one is as it is, totals and what happened last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Input

from kvops.tui.render import facts, fleet, latency, table
from kvops.tui.screens.base import ViewScreen
from kvops.tui.session import Session
from kvops.tui.text import clean
from kvops.tui.view import FleetView, NodeView
from kvops.tui.widgets.lines import Lines
from kvops.tui.widgets.rows import Rows

NO_NODE = "no node yet: kvops node start"
TREND_SECONDS = 300
RESORT_SECONDS = 5.0
"""Rows keep their places at least this long, so that nothing moves under the cursor."""


class FleetScreen(ViewScreen):
    TAB = "Fleet"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open_node", "open", key_display="enter", id="fleet-open"),
        Binding("slash", "filter", "filter", key_display="/", id="fleet-filter"),
        Binding("s", "sort", "sort", id="fleet-sort"),
        Binding(facts.MORE_KEY, "more", "more of why", show=False, id="fleet-more"),
        Binding("escape", "clear_filter", "clear filter", show=False, id="fleet-clear"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sort = 0
        self._page = 0
        self._pattern = ""
        self._order: list[str] = []
        self._sorted_at = 0.0
        self._columns = fleet.fleet_columns(session.glyphs)

    def panels(self) -> Iterable[Widget]:
        yield Rows(marker=self.session.glyphs.cursor, empty=NO_NODE, id="nodes")
        yield Input(
            placeholder="name, model, engine or status; ! inverts", id="filter", compact=True
        )
        with Horizontal(id="facts"):
            yield Lines(id="why", classes="panel")
            yield Lines(id="totals", classes="panel")
        with Horizontal(id="past"):
            yield Lines(id="events", classes="panel")
            yield Lines(id="trends", classes="panel")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#nodes").focus()

    def on_screen_resume(self) -> None:
        chosen = self.session.selected(self.session.view())
        if chosen is not None:
            self.query_one("#nodes", Rows).move_to(chosen.name)
        super().on_screen_resume()

    def draw(self, view: FleetView) -> None:
        self._draw_table(view)
        self._draw_facts(view)
        events = self.query_one("#events", Lines)
        width, height = events.size
        events.show(facts.event_lines(view.events, width, height, self.session.glyphs), "Events")
        self._draw_trends(view)

    def _draw_table(self, view: FleetView) -> None:
        rows = self.query_one("#nodes", Rows)
        columns = table.choose(self._columns, rows.line_width)
        nodes = self._placed(fleet.matching(view.nodes, self._pattern), view.now)
        lines = [(node.name, fleet.fleet_row(columns, node)) for node in nodes]
        title = self._title(len(nodes), len(view.nodes))
        rows.show(table.header(columns), lines, title, self._empty(len(view.nodes)))
        if rows.key is not None:
            self.session.select(rows.key)

    def _empty(self, known: int) -> str:
        if not known or not self._pattern:
            return NO_NODE
        return f"no node matches {clean(self._pattern, 30)!r}; escape shows all {known}"

    def _title(self, shown: int, known: int) -> str:
        dot = self.session.glyphs.dot
        title = f"Fleet {dot} by {fleet.SORTS[self._sort]}"
        return (
            f"{title} {dot} {shown} of {known} match {clean(self._pattern, 30)!r}"
            if self._pattern
            else title
        )

    def _placed(self, nodes: list[NodeView], now: float) -> list[NodeView]:
        """In the chosen order, renewed every few seconds or when nodes come and go."""
        names = {node.name for node in nodes}
        if names != set(self._order) or not 0 <= now - self._sorted_at < RESORT_SECONDS:
            self._order = [node.name for node in fleet.ordered(nodes, fleet.SORTS[self._sort])]
            self._sorted_at = now
        return sorted(nodes, key=lambda node: self._order.index(node.name))

    def _draw_facts(self, view: FleetView) -> None:
        glyphs = self.session.glyphs
        why, totals = self.query_one("#why", Lines), self.query_one("#totals", Lines)
        node = view.node(self.query_one("#nodes", Rows).key)
        if node is None:
            why.show([], "Why")
        else:
            lines = facts.why_lines(node, why.size.width, why.size.height, glyphs, self._page)
            why.show(lines, f"{clean(node.name, 40)} {glyphs.dot} why {node.status}")
        totals.show(facts.total_lines(view, totals.size.width, glyphs), "Fleet totals, live nodes")

    def _draw_trends(self, view: FleetView) -> None:
        """The chosen node's TTFT and output, one above the other, where there is room."""
        trends, glyphs = self.query_one("#trends", Lines), self.session.glyphs
        width, height = trends.size
        node = view.node(self.query_one("#nodes", Rows).key)
        if node is None or not trends.display or height < 6:
            trends.show([], "Trends")
            return
        lines = latency.trend_lines(
            node, latency.TRENDS[0], width, height - height // 2, TREND_SECONDS, glyphs
        )
        lines += latency.trend_lines(
            node, latency.TRENDS[2], width, height // 2, TREND_SECONDS, glyphs
        )
        trends.show(lines, f"{clean(node.name, 40)} {glyphs.dot} trends")

    def on_rows_moved(self, event: Rows.Moved) -> None:
        self.session.select(event.key)
        self._page = 0
        self.redraw()

    def on_rows_opened(self, event: Rows.Opened) -> None:
        self.session.select(event.key)
        self.app.switch_mode("node")

    def action_open_node(self) -> None:
        self.query_one("#nodes", Rows).open()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(fleet.SORTS)
        self._order = []
        self.redraw()

    def action_more(self) -> None:
        """The next part of why the chosen node is as it is."""
        self._page += 1
        self.redraw()

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._pattern = event.value
        self.redraw()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def action_clear_filter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#nodes").focus()
