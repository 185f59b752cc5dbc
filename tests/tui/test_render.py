"""Panels as text: pure functions from the real structures, so every panel is checked without a terminal."""

from __future__ import annotations

import re

import msgspec
import pytest
from rich.text import Text

from kvops.errors import NodeUnreachable
from kvops.telemetry.history import History
from kvops.telemetry.snapshot import Known, KvMap, MemoryLedger, NotExposed, Percentiles
from kvops.tui import theme
from kvops.tui.glyphs import ASCII, UNICODE, Glyphs
from kvops.tui.render import (
    chart,
    chrome,
    facts,
    fleet,
    kv,
    latency,
    memory,
    queue,
    requests,
    table,
)
from kvops.tui.render.report import percentile_words, report_lines
from kvops.tui.screens.node import map_rows_of
from kvops.tui.text import (
    NEEDED,
    age_text,
    bar,
    clean,
    cut,
    fit,
    in_a_row,
    latency_text,
    spark,
    spread,
)
from kvops.tui.view import Event, FleetView
from kvops.units import format_duration
from tests.telemetry.samples import GIB, NOW, make_map, make_snapshot, percentiles, request_row
from tests.tui.screen import node_view

BOTH = pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])


def plain(lines: list[Text]) -> str:
    return "\n".join(line.plain for line in lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.2, "0 s"), (18, "18 s"), (59.9, "59 s"), (100, "1m 40s"), (5999, "1h 39m"), (8e6, "92d 14h")],
)  # fmt: skip
def test_ages_are_durations_in_whole_seconds(seconds: float | None, text: str) -> None:
    assert age_text(seconds) == text
    assert len(text) <= 7


@pytest.mark.parametrize(
    "seconds",
    [0.0, 0.00085, 0.0047, 0.31, 0.9, 4.81, 41.1, 61.25, 720, 86399, 8e6],
)
def test_latencies_are_written_as_everywhere_and_fit_their_columns(seconds: float) -> None:
    assert latency_text(seconds, UNICODE) == format_duration(seconds)
    assert latency_text(None, UNICODE) == "—"
    assert latency_text(seconds, ASCII).isascii()
    assert len(latency_text(seconds, UNICODE)) <= 7


@pytest.mark.parametrize("ratio", [-1.0, 0.0, 0.001, 0.3, 0.999, 1.0, 7.0])
@BOTH
def test_a_bar_has_its_width_and_shows_any_use(ratio: float, glyphs: Glyphs) -> None:
    line = bar(ratio, 10, glyphs, "red")
    assert line.cell_len == 10
    if not glyphs.ascii:
        assert (line.plain != glyphs.bar_empty * 10) is (ratio > 0)


def test_a_spark_keeps_gaps_and_its_fixed_axis() -> None:
    assert spark([None, 0.0, 0.5, 1.0, None], UNICODE, top=1.0) == "·▁▅█·"
    assert spark([0.5, 0.51], UNICODE, top=1.0) == "▅▅"


def test_clean_takes_out_whatever_moves_the_cursor() -> None:
    assert clean("a\x1b[31m\nb\u202e\t") == "a [31m b  "
    assert len(clean("x" * 1000)) == 200


def test_cut_fit_and_spread_keep_their_width() -> None:
    assert cut("abcdef", 4) == "abc…"
    assert fit(Text("abc"), 5, "right").plain == "  abc"
    assert fit(Text("abcdef"), 4).cell_len == 4
    assert fit(Text("日本語"), 5).cell_len == 5
    assert spread(Text("ab"), Text("cd"), 6).plain == "ab  cd"
    assert spread(Text("abcd"), Text("cd"), 5).plain == "abcd "


def test_in_a_row_shows_whole_parts_only() -> None:
    assert in_a_row([("a", "1"), ("bb", "222222"), ("c", "3")], 9, UNICODE).plain == "a 1 · c 3"


# Memory


@BOTH
def test_memory_accounts_add_up_and_fill_the_bar(glyphs: Glyphs) -> None:
    lines = memory.memory_lines(make_snapshot(), 56, glyphs)
    assert len(lines) == 8
    assert {line.cell_len for line in lines} == {56}
    text = plain(lines)
    assert "weights" in text
    assert "60 % of the pool" in text
    shares = [float(line.plain.split("%")[0].split()[-1]) for line in lines[1:]]
    assert abs(sum(shares) - 100) <= 3


def test_a_tiny_account_still_has_a_cell() -> None:
    ledger = MemoryLedger("cpu", 100 * GIB, 1, GIB, 1, GIB, 98 * GIB - 2, 1, 0)
    bar_line = memory.memory_lines(make_snapshot(memory=Known(ledger, NOW)), 40, UNICODE)[0]
    assert bar_line.cell_len == 40
    for glyph in "█▓░▚╱·":
        assert glyph in bar_line.plain
    assert "▒" not in bar_line.plain


def test_memory_titles_name_the_device() -> None:
    assert memory.memory_title(make_snapshot(), UNICODE) == "RAM 24.0 GiB · cpu"
    ledger = MemoryLedger("cuda:0 [red]H200", 139 * GIB, 1, 1, 1, 1, 1, 1, 1)
    title = memory.memory_title(make_snapshot(memory=Known(ledger, NOW)), UNICODE)
    assert title == "VRAM 139 GiB · cuda:0 [red]H200"


def test_what_is_not_exposed_says_so_and_shows_no_number() -> None:
    reason = NotExposed("vllm 0.32 has no memory ledger")
    snapshot = make_snapshot(
        memory=reason,
        kv=reason,
        prefix_cache=reason,
        queue=reason,
        latency=reason,
        traffic=reason,
        tenants=reason,
    )
    history = History()
    shown = [
        plain(memory.memory_lines(snapshot, 80, UNICODE)),
        kv.kv_words(snapshot, history, NOW, 80, UNICODE).plain,
        kv.hit_words(snapshot, UNICODE).plain,
        plain(queue.queue_lines(snapshot, 80, 10, UNICODE)),
        plain(latency.latency_lines(snapshot, 80, UNICODE)),
        latency.traffic_line(snapshot, 80, UNICODE).plain,
    ]
    for text in shown:
        assert "not exposed" in text
        assert "has no memory ledger" in text
        assert "%" not in text
    row = fleet.fleet_row(
        table.choose(fleet.fleet_columns(UNICODE), 160), node_view(snapshot)
    ).plain
    assert row.count("—") >= 8
    assert "0%" not in row


# Block map


@pytest.mark.parametrize("cells", [0, 1, 7, 50, 400])
@pytest.mark.parametrize("size", [(56, 5), (38, 1), (3, 2), (1, 1)])
def test_the_map_never_leaves_its_panel_and_keeps_order(cells: int, size: tuple[int, int]) -> None:
    width, height = size
    rows = kv.map_rows(make_map(cells), width, height)
    assert len(rows) <= height
    assert all(len(row) <= width for row in rows)
    joined = "".join(rows)
    assert (
        list(dict.fromkeys(joined))
        == list(dict.fromkeys(make_map(cells).cells))[: len(set(joined))]
    )


def test_a_small_pool_fills_the_panel() -> None:
    rows = kv.map_rows(KvMap(4, 1, "spcf", NOW), 40, 1)
    assert rows == ["s" * 10 + "p" * 10 + "c" * 10 + "f" * 10]


@BOTH
def test_each_kind_of_cell_has_its_own_glyph_and_an_unknown_one_is_seen(glyphs: Glyphs) -> None:
    line = kv.map_lines(KvMap(6, 1, "spmcf!", NOW), 6, 1, glyphs, live=True)[0].plain
    assert len(set(line)) == 6
    assert line[-1] == "?"


def test_a_map_that_is_not_live_has_one_colour() -> None:
    line = kv.map_lines(KvMap(3, 1, "spf", NOW), 3, 1, UNICODE, live=False)[0]
    assert {span.style for span in line.spans} == {theme.STALE}


def test_map_rows_leave_room_for_words() -> None:
    assert [map_rows_of(height) for height in (0, 1, 2, 5, 8)] == [0, 1, 1, 3, 5]


# Queue and requests


@pytest.mark.parametrize("height", range(8))
def test_the_queue_panel_keeps_to_its_height(height: int) -> None:
    assert len(queue.queue_lines(make_snapshot(), 46, height, UNICODE)) <= height


def test_the_queue_names_tenants_and_marks_one_over_quota() -> None:
    from kvops.telemetry.snapshot import TenantUsage

    tenants = (
        TenantUsage("[red]x", 1, 2, 900, 500),
        *(TenantUsage(f"t{n}", 0, 0, n, None) for n in range(9)),
    )
    text = plain(queue.queue_lines(make_snapshot(tenants=Known(tenants, NOW)), 48, 10, UNICODE))
    assert "[red]x" in text
    assert "900 / 500" in text
    assert "▲" in text
    assert "TENANT 4/10" in text


def test_requests_are_ordered_with_ties_by_identity() -> None:
    rows = [request_row(1, kv_blocks=5), request_row(2, kv_blocks=9), request_row(0, kv_blocks=5)]
    ordered = requests.ordered_requests(rows, "KV blocks")
    assert [row.request_id[-1] for row in ordered] == ["2", "0", "1"]
    assert requests.ordered_requests(rows, "age")[0].request_id.endswith("2")


# Latency


def test_percentiles_from_too_few_samples_are_not_shown() -> None:
    lines = plain(latency.latency_lines(make_snapshot(samples=3), 60, UNICODE))
    assert "310 ms" not in lines
    assert "—" in lines
    lines = plain(latency.latency_lines(make_snapshot(samples=42), 60, UNICODE))
    assert "310 ms" in lines
    assert "1.55 s" not in lines


@pytest.mark.parametrize("width", [38, 40, 51, 52, 60])
def test_latency_lines_fit_without_cutting(width: int) -> None:
    for line in latency.latency_lines(make_snapshot(), width, UNICODE):
        assert line.cell_len == width
        assert "…" not in line.plain


def test_the_axis_moves_in_steps_only() -> None:
    tops = [latency.axis_top(value, 0.1) for value in (0.0, 0.1, 0.101, 0.3, 0.6, 1.0, 4.81, 99)]
    assert tops == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.6, 1.0, 5.0, 100.0])


# Chart


@BOTH
def test_a_chart_has_its_size(glyphs: Glyphs) -> None:
    points = chart.chart_points(20, glyphs)
    values = [None if n % 3 == 0 else n / points for n in range(points)]
    lines = chart.chart_lines(values, values, 4, 1.0, glyphs)
    assert [line.cell_len for line in lines] == [20] * 4


def test_a_chart_shows_gaps_as_gaps_and_zero_as_a_line() -> None:
    low = [None, None, 0.0, 0.0]
    lines = chart.chart_lines(low, [None] * 4, 2, 1.0, UNICODE)
    assert lines[1].plain == "·⣀"
    assert lines[0].plain == "  "


def test_a_full_value_fills_its_column_and_does_not_leave_the_chart() -> None:
    lines = chart.chart_lines([1.0, 1.0, 9.0, 9.0], [None] * 4, 2, 1.0, UNICODE)
    assert [line.plain for line in lines] == ["⣿⣿", "⣿⣿"]


def test_a_line_joins_its_points_but_not_over_a_gap() -> None:
    jump = chart.chart_lines([None] * 4, [0.0, 1.0, 1.0, 1.0], 2, 1.0, UNICODE)
    assert jump[1].plain[0] != " "
    assert jump[0].plain[0] != " "
    gap = chart.chart_lines([None] * 6, [0.0, 0.0, None, None, 1.0, 1.0], 2, 1.0, UNICODE)
    assert gap[1].plain == "⣀· "
    assert gap[0].plain == "  ⠉"


def test_a_trend_without_readings_says_so() -> None:
    lines = latency.trend_lines(node_view(), latency.TRENDS[0], 60, 5, 300, UNICODE)
    assert "no reading yet" in lines[0].plain
    assert {line.cell_len for line in lines} == {60}
    assert latency.trend_lines(node_view(), latency.TRENDS[0], 12, 5, 300, UNICODE) == []


# Fleet


def test_columns_go_by_rank_and_rows_keep_the_width() -> None:
    columns = fleet.fleet_columns(UNICODE)
    for width in (58, 78, 98, 118, 158):
        chosen = table.choose(columns, width)
        assert table.header(chosen).cell_len <= width
        assert fleet.fleet_row(chosen, node_view()).cell_len == table.header(chosen).cell_len
    narrow = [column.title for column in table.choose(columns, 58)]
    assert {"STATUS", "NODE", "KV USED", "WAIT", "AGE"} <= set(narrow)
    assert "PRE" not in narrow
    assert [column.title for column in table.choose(columns, 1)] == ["STATUS"]


def test_a_row_that_is_not_live_has_no_colour_but_its_status() -> None:
    view = node_view(error=NodeUnreachable("gone"), received_at=NOW - 60)
    assert view.status == "DOWN"
    columns = table.choose(fleet.fleet_columns(UNICODE), 118)
    row = fleet.fleet_row(columns, view)
    assert "✕ DOWN" in row.plain
    assert "1m 01s" in row.plain
    assert {str(span.style) for span in row.spans if span.start >= columns[0].width} == {
        theme.STALE
    }


def test_sorting_puts_the_gravest_first_and_unknown_values_last() -> None:
    down = node_view(error=NodeUnreachable("gone"), received_at=None, snapshot=None, name="a")
    well = node_view(name="b")
    assert [node.name for node in fleet.ordered([well, down], "severity")] == ["a", "b"]
    assert [node.name for node in fleet.ordered([down, well], "KV used")] == ["b", "a"]
    assert [node.name for node in fleet.ordered([well, down], "name")] == ["a", "b"]


def test_the_filter_matches_names_models_and_status() -> None:
    nodes = [node_view(name="gpu-1"), node_view(name="cpu-2")]
    assert [node.name for node in fleet.matching(nodes, "GPU")] == ["gpu-1"]
    assert [node.name for node in fleet.matching(nodes, "!gpu")] == ["cpu-2"]
    assert len(fleet.matching(nodes, "smollm")) == 2
    assert fleet.matching(nodes, "[") == []
    assert len(fleet.matching(nodes, "!")) == 2


def test_totals_count_live_nodes_only() -> None:
    gone = node_view(name="b", error=NodeUnreachable("gone"), received_at=NOW - 60)
    text = plain(facts.total_lines(FleetView(NOW, (node_view(), gone)), 44, UNICODE))
    assert "12 / 3" in text
    assert "1 down · 1 ok" in text
    assert "930 ms  gpu-1" in text


def test_why_names_the_error_and_its_remedy() -> None:
    view = node_view(
        error=NodeUnreachable("cannot reach [red]it", hint="look at its log"), received_at=None
    )
    text = plain(facts.why_lines(view, 80, 10, UNICODE))
    assert "UNKNOWN" in text
    assert "cannot reach [red]it" in text
    assert "next         look at its log" in text


def test_events_are_one_line_each() -> None:
    events = [Event(NOW, "CRIT", "gpu-1", "lost: [bold]x"), Event(NOW, "INFO", "gpu-1", "seen")]
    lines = facts.event_lines(events, 60, 1, UNICODE)
    assert len(lines) == 1
    assert lines[0].plain.startswith("08:00:00 CRIT gpu-1")
    assert "lost: [bold]x" in lines[0].plain


# Chrome


def test_the_banner_is_silent_when_all_is_well() -> None:
    assert chrome.banner_line(FleetView(NOW, (node_view(),)), 80, UNICODE) is None
    gone = node_view(error=NodeUnreachable("gone"), received_at=None)
    banner = chrome.banner_line(FleetView(NOW, (gone,)), 80, UNICODE)
    assert banner is not None
    assert "✕ DOWN gpu-1 no answer: gone" in banner.plain


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_header_always_says_rights_and_liveness(width: int) -> None:
    view = FleetView(NOW, tuple(node_view(name=f"n{n}") for n in range(40)))
    live = chrome.header_line(view, chrome.Mode(False, 1.0), width, UNICODE).plain
    assert "live" in live
    assert ("READ-ONLY" if width >= 80 else "RO") in live
    frozen = chrome.header_line(view, chrome.Mode(True, 1.0, 37.2), width, UNICODE).plain
    assert "WRITE" in frozen
    assert "(-37 s)" in frozen
    assert "live" not in frozen
    assert len(frozen) == width


def test_the_headline_says_when_the_engine_trails() -> None:
    fresh = chrome.node_line(node_view(), 120, UNICODE).plain
    assert "age 1 s" in fresh
    assert "older" not in fresh
    snapshot = make_snapshot()
    assert isinstance(snapshot.kv, Known)
    old = msgspec.structs.replace(snapshot, kv=Known(snapshot.kv.value, NOW - 12))
    assert "engine figures 12 s older" in chrome.node_line(node_view(old), 120, UNICODE).plain


# Report


@BOTH
def test_the_report_holds_the_whole_state(glyphs: Glyphs) -> None:
    text = plain(report_lines(make_snapshot(samples=42), 100, not glyphs.ascii))
    for word in (
        "gpu-1",
        "ready",
        "weights",
        "KV pool",
        "running",
        "acme",
        "p95 930 ms",
        "p99 needs 100 samples",
        "queue_full",
    ):
        assert word in text
    assert len(text.splitlines()) <= 40
    if glyphs.ascii:
        assert text.isascii()


def test_percentile_words_claim_nothing_from_too_few_samples() -> None:
    few = percentile_words(Percentiles(3, None, None, None, 0.2), UNICODE)
    assert few == "p50 needs 5 samples  p95 needs 20 samples  p99 needs 100 samples  (3 samples)"
    some = percentile_words(percentiles(NEEDED["p95"], 0.1), UNICODE)
    assert some.startswith("p50 100 ms   p95 300 ms   p99 needs 100 samples")


def test_the_report_leaves_nothing_out_and_cuts_nothing() -> None:
    from kvops.telemetry.snapshot import TenantUsage

    outcomes = {f"outcome_with_a_long_name_{n}": n + 1 for n in range(12)}
    tenants = tuple(TenantUsage(f"tenant-{n}", 0, 0, n, None) for n in range(30))
    snapshot = make_snapshot(tenants=Known(tenants, NOW))
    assert isinstance(snapshot.traffic, Known)
    traffic = msgspec.structs.replace(
        snapshot.traffic.value,
        requests_by_outcome=outcomes,
        rejections_by_reason={"context_length_exceeded": 3},
    )
    snapshot = msgspec.structs.replace(snapshot, traffic=Known(traffic, NOW))
    for width in (60, 100):
        text = plain(report_lines(snapshot, width))
        assert "…" not in text
        assert "context_length_exceeded 3" in text
        assert all(f"{name} {count}" in text for name, count in outcomes.items())
        assert all(tenant.tenant in text for tenant in tenants)


def test_a_table_without_rows_has_no_heading() -> None:
    snapshot = make_snapshot(tenants=Known((), NOW))
    assert "TENANT" not in plain(report_lines(snapshot, 100))
    assert "TENANT" not in plain(queue.queue_lines(snapshot, 46, 10, UNICODE))


def test_the_window_is_no_longer_than_the_node_is_up() -> None:
    young = make_snapshot(uptime_seconds=Known(14.3, NOW))
    assert latency.latency_title(young, UNICODE) == "Latency · last 14 s"
    assert "last 14 s\n" in plain(report_lines(young, 100))
    assert latency.latency_title(make_snapshot(), UNICODE) == "Latency · last 5m 00s"


def test_progress_says_how_long_ago_the_last_step_was() -> None:
    assert "last step 20 ms ago" in plain(queue.queue_lines(make_snapshot(), 46, 10, UNICODE))


@BOTH
def test_percentages_and_counts_have_one_form(glyphs: Glyphs) -> None:
    columns = table.choose(fleet.fleet_columns(glyphs), 158)
    shown = [
        *report_lines(make_snapshot(), 100, not glyphs.ascii),
        *memory.memory_lines(make_snapshot(), 60, glyphs),
        fleet.fleet_row(columns, node_view()),
        kv.kv_words(make_snapshot(), History(), NOW, 60, glyphs),
        chrome.node_line(node_view(), 120, glyphs),
    ]
    text = plain(shown)
    assert not re.search(r"\d%|\d,\d{3}\b|[A-Za-z( ]\d{4,} ", text)
    assert not re.search(r"\d(ms|µs|us)\b", text)


# What has no room


@pytest.mark.parametrize("width", [38, 42, 56, 100])
def test_reasons_and_events_are_wrapped_not_cut(width: int) -> None:
    error = NodeUnreachable(
        "cannot reach http://127.0.0.1:8001: Connection refused",
        hint="kvops node status lists what runs here",
    )
    view = node_view(error=error, received_at=None, snapshot=None)
    lines = facts.why_lines(view, width, 12, UNICODE)
    events = facts.event_lines([Event(NOW, "CRIT", "gpu-1", error.message)], width, 12, UNICODE)
    assert {line.cell_len for line in (*lines, *events)} == {width}
    for text, sentence in ((plain(lines), error.message), (plain(lines), error.hint)):
        assert all(word in text.split() for word in sentence.split())
    assert all(word in plain(events).split() for word in error.message.split())
    assert "…" not in plain([*lines, *events])


def test_an_event_without_room_says_that_it_goes_on() -> None:
    event = Event(NOW, "CRIT", "gpu-1", "lost: " + "word " * 30)
    lines = facts.event_lines([event, event], 42, 3, UNICODE)
    assert len(lines) == 3
    assert lines[-1].plain.rstrip().endswith("…")


def test_reasons_without_room_are_counted() -> None:
    view = node_view(error=NodeUnreachable("gone " * 40), received_at=None, snapshot=None)
    lines = facts.why_lines(view, 42, 4, UNICODE)
    assert len(lines) == 4
    assert re.fullmatch(r"\+ \d+ more lines: w *", lines[-1].plain)


def test_page_by_page_every_reason_can_be_read() -> None:
    words = [f"word{n}" for n in range(25)]
    view = node_view(error=NodeUnreachable(" ".join(words)), received_at=None, snapshot=None)
    seen, pages = "", 0
    while "from the start: w" not in seen:
        lines = facts.why_lines(view, 42, 4, UNICODE, pages)
        assert len(lines) == 4
        seen, pages = seen + plain(lines), pages + 1
        assert pages < 40
    assert [word for word in (*words, "retrying") if word not in seen] == []
    assert facts.why_lines(view, 42, 4, UNICODE, pages) == facts.why_lines(view, 42, 4, UNICODE)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_headline_shows_whole_parts_only(width: int) -> None:
    words = chrome.node_line(node_view(), width, UNICODE).plain
    assert "…" not in words
    assert ("cfg f00dfeed" in words) is (width == 120)
    assert "cfg" not in words.replace("cfg f00dfeed", "")


@pytest.mark.parametrize("height", range(1, 9))
def test_every_account_is_named_where_its_row_has_no_room(height: int) -> None:
    lines = memory.memory_lines(make_snapshot(), 58, UNICODE, height)
    assert len(lines) <= height
    if height >= 3:
        for account in ("weights", "KV used", "KV cached", "KV idle", "other", "free"):
            assert account in plain(lines)
