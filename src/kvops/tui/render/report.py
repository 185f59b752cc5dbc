"""A snapshot as one screen of plain text, for `kvops snapshot`. Colours follow the reader's terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from kvops.telemetry.history import History
from kvops.telemetry.snapshot import Known, KvUsage, NodeSnapshot, Percentiles, Reading
from kvops.tui.findings import snapshot_findings
from kvops.tui.glyphs import ASCII, UNICODE, Glyphs
from kvops.tui.render.chrome import clock_text
from kvops.tui.render.kv import hit_words
from kvops.tui.render.latency import traffic_parts, window_seconds
from kvops.tui.render.memory import memory_lines, memory_title
from kvops.tui.render.queue import all_queue_lines
from kvops.tui.text import NEEDED, clean, in_rows, latency_text, span_text
from kvops.units import format_bytes, format_missing, format_ratio, format_whole


def report_lines(snapshot: NodeSnapshot, width: int, unicode: bool = True) -> list[Text]:
    """Headline, findings, memory, KV pool, queue, latency, traffic."""
    glyphs = UNICODE if unicode else ASCII
    lines = [
        *_headline(snapshot, glyphs),
        *_findings(snapshot),
        *_section(memory_title(snapshot, glyphs), memory_lines(snapshot, width - 2, glyphs)),
        *_section("KV pool", list(_kv(snapshot, glyphs))),
        *_section("Queue", all_queue_lines(snapshot, width - 2, glyphs)),
        *_section("Latency", list(_latency(snapshot, glyphs))),
        *_section("Traffic", list(_traffic(snapshot, width - 2, glyphs))),
    ]
    for line in lines:
        line.rstrip()
    return lines


def _section(title: str, lines: list[Text]) -> list[Text]:
    return [Text(title, "bold"), *(Text.assemble("  ", line) for line in lines)]


def _headline(snapshot: NodeSnapshot, glyphs: Glyphs) -> Iterator[Text]:
    reason = f" ({clean(snapshot.state_reason)})" if snapshot.state_reason else ""
    line = Text.assemble((clean(snapshot.node), "bold"), f"  {snapshot.state}{reason}")
    if isinstance(snapshot.uptime_seconds, Known):
        line.append(f"  up {span_text(snapshot.uptime_seconds.value)}")
    yield line.append(f"  at {clock_text(snapshot.taken_at)}")
    yield Text(f"{clean(snapshot.engine)} {clean(snapshot.engine_version)}  {clean(snapshot.url)}")
    if isinstance(snapshot.model, Known):
        model = snapshot.model.value
        yield Text(
            f"{clean(model.name)}  {clean(model.family)} {model.parameters / 1e6:.1f} M parameters  "
            f"weights {clean(model.weights_dtype)}, KV {clean(model.kv_dtype)}  "
            f"context {format_whole(model.max_model_len)}"
        )


def _findings(snapshot: NodeSnapshot) -> Iterator[Text]:
    for finding in snapshot_findings(snapshot, History(60), snapshot.taken_at):
        line = Text.assemble((f"{finding.level} {finding.title}: ", "bold"), clean(finding.detail))
        yield line.append(f" (next: {clean(finding.remedy)})" if finding.remedy else "")


def _kv(snapshot: NodeSnapshot, glyphs: Glyphs) -> Iterator[Text]:
    if not isinstance(snapshot.kv, Known):
        yield _missing(snapshot.kv)
        return
    kv = snapshot.kv.value
    yield Text(
        f"used {format_whole(kv.used_blocks)} ({format_ratio(kv.usage_ratio)}), "
        f"cached {format_whole(kv.cached_blocks)}, "
        f"free {format_whole(kv.free_blocks)} of {format_whole(kv.total_blocks)} blocks"
    )
    yield Text(
        f"{kv.block_size} tokens or {format_bytes(kv.bytes_per_block)} a block, waste {format_ratio(kv.waste_ratio)}, "
        f"{_fragmentation(kv)}"
        f"{format_whole(kv.preemptions)} preemptions, {format_whole(kv.evictions)} evictions"
    )
    yield hit_words(snapshot, glyphs)


def _fragmentation(kv: KvUsage) -> str:
    ratio = kv.fragmentation_ratio
    return "" if ratio is None else f"partly filled {format_ratio(ratio)}, "


def _latency(snapshot: NodeSnapshot, glyphs: Glyphs) -> Iterator[Text]:
    if not isinstance(snapshot.latency, Known):
        yield _missing(snapshot.latency)
        return
    window = snapshot.latency.value
    yield Text(f"last {span_text(window_seconds(snapshot, window))}", "dim")
    for label, values in (
        ("time to first token", window.ttft),
        ("inter-token", window.inter_token),
        ("in the queue", window.queue),
        ("whole request", window.duration),
    ):
        yield Text(f"{label:<20} {percentile_words(values, glyphs)}")


def percentile_words(values: Percentiles, glyphs: Glyphs) -> str:
    """`p50 310 ms  p95 930 ms  p99 needs 100 samples  (42 samples)`."""
    stated = (
        f"{which} {format_missing(needed) if value is None else latency_text(value, glyphs):<7}"
        for which, needed in NEEDED.items()
        for value in (getattr(values, which),)
    )
    samples = f"({format_whole(values.samples)} sample{'' if values.samples == 1 else 's'})"
    return "  ".join([*stated, samples])


def _traffic(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> Iterator[Text]:
    if not isinstance(snapshot.traffic, Known):
        yield _missing(snapshot.traffic)
        return
    traffic = snapshot.traffic.value
    yield from in_rows(traffic_parts(traffic, glyphs), width, glyphs)
    yield Text(f"since start: {_counts(traffic.requests_by_outcome) or 'no request yet'}")
    if traffic.rejections_by_reason:
        yield Text(f"rejected: {_counts(traffic.rejections_by_reason)}")


def _counts(counters: dict[str, int]) -> str:
    return ", ".join(
        f"{clean(name, 60)} {format_whole(count)}" for name, count in sorted(counters.items())
    )


def _missing(reading: Reading[object]) -> Text:
    return Text("" if isinstance(reading, Known) else f"not exposed: {clean(reading.reason)}")
