"""Screen 2: one node in full: memory, block map, queue, latency and the requests in flight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widget import Widget

from kvops.telemetry.snapshot import Known, NodeSnapshot, NotExposed
from kvops.tui import theme
from kvops.tui.render import kv, latency, memory, queue, requests, table
from kvops.tui.render.chrome import node_line
from kvops.tui.screens.base import ViewScreen
from kvops.tui.session import Session
from kvops.tui.text import clean, dimmed, wrapped
from kvops.tui.view import FleetView, NodeView
from kvops.tui.widgets.lines import Lines
from kvops.tui.widgets.rows import Rows

TREND_SECONDS = 300
MAX_CELLS = 2000
MAP_INDENT = 2
NARROW, LOW = 80, 18
"""Below both there is no room for the requests: a line says how many there are."""


class NodeScreen(ViewScreen):
    TAB = "Node"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.switch_mode('fleet')", "back", id="node-back"),
        Binding("n", "step(1)", "next", show=False, id="node-next"),
        Binding("N", "step(-1)", "previous", show=False, id="node-previous"),
        Binding("m", "measure", "chart", id="node-measure"),
        Binding("s", "sort", "sort", id="node-sort"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._trend = 0
        self._sort = 0
        self._columns = requests.request_columns(session.glyphs)

    def panels(self) -> Iterable[Widget]:
        yield Lines(id="headline", classes="chrome")
        with Horizontal(id="storage"):
            yield Lines(id="memory", classes="panel")
            yield Lines(id="map", classes="panel")
        with Horizontal(id="service"):
            yield Lines(id="queue", classes="panel")
            yield Lines(id="latency", classes="panel")
        yield Rows(marker=self.session.glyphs.cursor, empty="no request in flight", id="requests")
        yield Lines(id="rest", classes="chrome")

    def on_mount(self) -> None:
        super().on_mount()
        self._make_room()
        self.query_one("#requests").focus()

    def on_resize(self) -> None:
        self._make_room()
        super().on_resize()

    def _make_room(self) -> None:
        size = self.app.size
        self.set_class(size.width < NARROW and size.height < LOW, "-low")

    def on_screen_suspend(self) -> None:
        self.session.store.ask_for_map(None, 0)

    def draw(self, view: FleetView) -> None:
        node = self.session.selected(view)
        if node is None:
            self._show_nothing("no node yet: kvops node start")
            return
        self._ask_for_map(node)
        headline = self.query_one("#headline", Lines)
        headline.show([node_line(node, headline.size.width, self.session.glyphs)])
        if node.snapshot is None:
            reason = node.poll.error.message if node.poll.error else "waiting for the first answer"
            self._show_nothing(clean(reason))
            return
        self._draw_memory(node, node.snapshot)
        self._draw_map(node, node.snapshot)
        self._draw_queue(node, node.snapshot)
        self._draw_latency(node, node.snapshot)
        self._draw_requests(node, node.snapshot)
        self._draw_rest(node, node.snapshot)

    def _show_nothing(self, reason: str) -> None:
        for panel, title in (
            ("memory", "Memory"),
            ("map", "KV blocks"),
            ("queue", "Queue"),
            ("latency", "Latency"),
        ):
            self.query_one(f"#{panel}", Lines).show([Text(reason, theme.MUTED)], title)
        self.query_one("#requests", Rows).show(Text(), [], "Requests")
        self.query_one("#rest", Lines).show([])

    def _ask_for_map(self, node: NodeView) -> None:
        """One cell for each character that the panel has for the map."""
        width, height = self.query_one("#map", Lines).size
        self.session.store.ask_for_map(node.name, min(MAX_CELLS, width * map_rows_of(height)))

    def _put(self, panel: str, lines: list[Text], title: str, node: NodeView) -> None:
        shown = lines if node.fresh else [dimmed(line) for line in lines]
        self.query_one(f"#{panel}", Lines).show(shown, title)

    def _draw_memory(self, node: NodeView, snapshot: NodeSnapshot) -> None:
        glyphs, (width, height) = self.session.glyphs, self.query_one("#memory").size
        self._put(
            "memory",
            memory.memory_lines(snapshot, width, glyphs, height),
            memory.memory_title(snapshot, glyphs),
            node,
        )

    def _draw_map(self, node: NodeView, snapshot: NodeSnapshot) -> None:
        glyphs = self.session.glyphs
        width, height = self.query_one("#map").size
        room = map_rows_of(height)
        reading = node.poll.kv_map
        kv_map = reading.value if isinstance(reading, Known) else None
        lines = (
            kv.map_lines(kv_map, width, room, glyphs, live=node.fresh)
            if kv_map
            else wrapped(_missing_map(node), width, MAP_INDENT)
        )
        words = [
            kv.kv_words(snapshot, node.history, node.now, width, glyphs),
            kv.hit_words(snapshot, glyphs),
            kv.legend(width, glyphs),
        ]
        padding = [Text()] * (room - len(lines))
        self._put(
            "map",
            [*lines[:room], *padding, *words][:height],
            kv.kv_title(snapshot, kv_map, glyphs),
            node,
        )

    def _draw_queue(self, node: NodeView, snapshot: NodeSnapshot) -> None:
        width, height = self.query_one("#queue").size
        self._put(
            "queue", queue.queue_lines(snapshot, width, height, self.session.glyphs), "Queue", node
        )

    def _draw_latency(self, node: NodeView, snapshot: NodeSnapshot) -> None:
        glyphs = self.session.glyphs
        width, height = self.query_one("#latency").size
        lines = latency.latency_lines(snapshot, width, glyphs)
        if height > len(lines):
            lines.append(latency.traffic_line(snapshot, width, glyphs))
        room = height - len(lines)
        if room >= 3:
            trend = latency.TRENDS[self._trend]
            lines += latency.trend_lines(node, trend, width, room, TREND_SECONDS, glyphs)
        self._put("latency", lines[:height], latency.latency_title(snapshot, glyphs), node)

    def _draw_requests(self, node: NodeView, snapshot: NodeSnapshot) -> None:
        rows, dot = self.query_one("#requests", Rows), self.session.glyphs.dot
        if not isinstance(snapshot.requests, Known):
            reason = Text(f"not exposed: {clean(snapshot.requests.reason)}", theme.MUTED)
            rows.show(reason, [], "Requests")
            return
        columns = table.choose(self._columns, rows.line_width)
        ordered = requests.ordered_requests(snapshot.requests.value, requests.SORTS[self._sort])
        lines = [(row.request_id, table.line(columns, row)) for row in ordered]
        if not node.fresh:
            lines = [(key, dimmed(line)) for key, line in lines]
        count = f"{rows.room} of {len(ordered)}" if len(ordered) > rows.room else str(len(ordered))
        title = f"Requests {count} {dot} by {requests.SORTS[self._sort]}"
        rows.show(table.header(columns), lines, title)

    def _draw_rest(self, node: NodeView, snapshot: NodeSnapshot) -> None:
        """In one line what the panels would say that a narrow screen has no room for."""
        rest = self.query_one("#rest", Lines)
        line = Text(" ").append_text(
            queue.summary_line(snapshot, rest.size.width - 2, self.session.glyphs)
        )
        if isinstance(snapshot.requests, Known) and not self.query_one("#requests").display:
            count = len(snapshot.requests.value)
            line.append(f" {self.session.glyphs.dot} {count} requests, not listed", theme.LABEL)
        rest.show([line if node.fresh else dimmed(line)])

    def action_step(self, step: int) -> None:
        self.session.step_selection(step)
        self.redraw()

    def action_measure(self) -> None:
        self._trend = (self._trend + 1) % len(latency.TRENDS)
        self.redraw()

    def action_sort(self) -> None:
        self._sort = (self._sort + 1) % len(requests.SORTS)
        self.redraw()


def map_rows_of(height: int) -> int:
    """Of a map panel's lines, those for the map: the words below it get up to three, the last first to go."""
    return max(0, height - min(3, height // 2))


def _missing_map(node: NodeView) -> Text:
    reading = node.poll.kv_map
    if isinstance(reading, NotExposed):
        reason = reading.reason
    else:
        reason = "not fetched yet" if node.fresh else "none was fetched while the node answered"
    return Text(f"block map: {clean(reason)}", theme.MUTED)
