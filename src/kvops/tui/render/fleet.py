"""The fleet table, its order and its filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.text import Text

from kvops.tui import theme
from kvops.tui.findings import KV_CRIT, KV_WARN
from kvops.tui.glyphs import Glyphs
from kvops.tui.render import table
from kvops.tui.render.memory import memory_summary
from kvops.tui.render.table import Column
from kvops.tui.render.values import (
    engine_name,
    hit_ratio,
    itl_p95,
    kv_usage,
    model_name,
    output_rate,
    precision,
    preemptions,
    running,
    ttft_p95,
    waiting,
)
from kvops.tui.text import (
    age_text,
    bar,
    clean,
    count_text,
    dimmed,
    fit,
    latency_text,
    percent_text,
    spark,
    speed_text,
    status_text,
    usage_style,
)
from kvops.tui.view import SEVERITY, NodeView

SORTS = ("severity", "name", "KV used", "waiting", "TTFT p95")


def ordered(nodes: Sequence[NodeView], sort: str) -> list[NodeView]:
    """By the sort's name; unknown values last, then by name."""
    if sort == "severity":
        return sorted(nodes, key=lambda node: (SEVERITY.index(node.status), node.name))
    value = {"KV used": kv_usage, "waiting": waiting, "TTFT p95": ttft_p95}.get(sort)
    if value is None:
        return sorted(nodes, key=lambda node: node.name)
    return sorted(nodes, key=lambda node: (-(value(node) or 0), value(node) is None, node.name))


def matching(nodes: Sequence[NodeView], pattern: str) -> list[NodeView]:
    """Nodes whose name, model, engine or status holds `pattern`; with a leading `!` those where none does."""
    inverse, wanted = pattern.startswith("!"), pattern.removeprefix("!").strip().lower()
    if not wanted:
        return list(nodes)
    return [node for node in nodes if (wanted in _searched(node)) is not inverse]


def _searched(node: NodeView) -> str:
    return " ".join(
        (node.name, node.status, model_name(node.snapshot), engine_name(node.snapshot))
    ).lower()


def fleet_columns(glyphs: Glyphs) -> list[Column[NodeView]]:
    plain = partial(_plain, glyphs)
    seconds = partial(_seconds, glyphs)
    return [
        Column(
            "STATUS", 6 if glyphs.ascii else 8, lambda n: status_text(n.status, glyphs), 0, "left"
        ),
        Column("NODE", 10, lambda n: Text(clean(n.name), "bold"), 1, "left", grow=14),
        Column("ENGINE", 11, plain(lambda n: engine_name(n.snapshot)), 12, "left"),
        Column("MODEL", 13, plain(lambda n: model_name(n.snapshot)), 8, "left", grow=16),
        Column("W/KV", 9, plain(lambda n: precision(n.snapshot)), 13, "left", grow=3),
        Column(
            "MEMORY",
            11,
            lambda n: memory_summary(n.snapshot, glyphs) if n.snapshot else Text(glyphs.none),
            11,
        ),
        Column("KV 60s", 8, lambda n: _kv_trend(n, glyphs), 10, "left"),
        Column("KV USED", 16, lambda n: _kv_bar(n, glyphs), 2, "left"),
        Column("RUN", 4, plain(lambda n: count_text(running(n), glyphs)), 5),
        Column("WAIT", 4, plain(lambda n: count_text(waiting(n), glyphs)), 3),
        Column("TTFT95", 7, seconds(ttft_p95), 6),
        Column("ITL95", 7, seconds(itl_p95), 7),
        Column("OUT/s", 5, plain(lambda n: speed_text(output_rate(n), glyphs)), 9),
        Column("HIT", 5, plain(lambda n: percent_text(hit_ratio(n), glyphs)), 14),
        Column("PRE", 4, plain(lambda n: count_text(preemptions(n), glyphs)), 15),
        Column("AGE", 7, lambda n: Text(age_text(n.age) or glyphs.none), 4),
    ]


def _plain(glyphs: Glyphs, value: Callable[[NodeView], str]) -> Callable[[NodeView], Text]:
    return lambda node: Text(value(node) or glyphs.none)


def _seconds(
    glyphs: Glyphs, value: Callable[[NodeView], float | None]
) -> Callable[[NodeView], Text]:
    return lambda node: Text(latency_text(value(node), glyphs))


def _kv_trend(node: NodeView, glyphs: Glyphs) -> Text:
    values = node.history.window("kv_usage", end=node.now, seconds=64, points=8)
    return Text(spark(values, glyphs, top=1.0), theme.BLUE)


def _kv_bar(node: NodeView, glyphs: Glyphs) -> Text:
    ratio = kv_usage(node)
    if ratio is None:
        return Text(glyphs.none)
    return Text(f"{percent_text(ratio, glyphs):>5} ").append_text(
        bar(ratio, 10, glyphs, usage_style(ratio, KV_WARN, KV_CRIT))
    )


def fleet_row(columns: Sequence[Column[NodeView]], node: NodeView) -> Text:
    """A node's line; what is not live is in one muted colour, but its status."""
    line = table.line(columns, node)
    if node.fresh:
        return line
    status = fit(columns[0].cell(node), columns[0].width)
    return status.append_text(dimmed(line[columns[0].width :]))
