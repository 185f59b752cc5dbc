"""The queue panel: slots, waiting room, classes, forward progress, outcomes and tenants."""

from __future__ import annotations

from rich.text import Text

from kvops.telemetry.snapshot import Known, NodeSnapshot, QueueState, TenantUsage
from kvops.tui import theme
from kvops.tui.glyphs import Glyphs
from kvops.tui.text import (
    bar,
    clean,
    fit,
    in_a_row,
    in_rows,
    latency_text,
    usage_style,
)
from kvops.units import format_whole

CLASSES = ("online", "normal", "batch")


def queue_lines(snapshot: NodeSnapshot, width: int, height: int, glyphs: Glyphs) -> list[Text]:
    """At most `height` lines; tenants by what they hold. What does not fit goes: outcomes and progress first."""
    if not isinstance(snapshot.queue, Known):
        return [Text(f"not exposed: {clean(snapshot.queue.reason)}", theme.MUTED)]
    lines = _load_lines(snapshot.queue.value, width, glyphs)
    kept = 2 if isinstance(snapshot.tenants, Known) and snapshot.tenants.value else 0
    lines += _work_lines(snapshot, width, glyphs)[: max(0, height - len(lines) - kept)]
    room = height - len(lines) - 1
    if room > 0:
        lines += _tenant_lines(snapshot, width, room, glyphs)
    return [fit(line, width) for line in lines[:height]]


def all_queue_lines(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """The whole panel: nothing left out, every tenant, no line cut; `width` is where parts wrap."""
    if not isinstance(snapshot.queue, Known):
        return [Text(f"not exposed: {clean(snapshot.queue.reason)}", theme.MUTED)]
    return [
        *_load_lines(snapshot.queue.value, width, glyphs),
        *_work_lines(snapshot, width, glyphs),
        *_tenant_lines(snapshot, width, None, glyphs),
    ]


def summary_line(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> Text:
    """The panel in one line, for where it has no room."""
    if not isinstance(snapshot.queue, Known):
        return Text(f"queue not exposed: {clean(snapshot.queue.reason)}", theme.MUTED)
    queue = snapshot.queue.value
    parts = [
        ("running", f"{format_whole(queue.running)} / {format_whole(queue.max_running)}"),
        ("waiting", f"{format_whole(queue.waiting)} / {format_whole(queue.max_waiting)}"),
    ]
    return in_a_row(parts, width, glyphs)


def _work_lines(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> list[Text]:
    """Forward progress, and how requests ended since the node started."""
    lines = []
    if isinstance(snapshot.progress, Known):
        progress = snapshot.progress.value
        age = progress.last_step_age_seconds
        ago = latency_text(age, glyphs) + ("" if age is None else " ago")
        parts = (
            ("steps", format_whole(progress.steps)),
            ("last step", ago),
            ("restarts", format_whole(progress.engine_restarts)),
        )
        lines += in_rows(parts, width, glyphs)
    if isinstance(snapshot.traffic, Known):
        traffic = snapshot.traffic.value
        ended = (traffic.requests_by_outcome, traffic.rejections_by_reason)
        counted = [
            (clean(name, 60), format_whole(count))
            for counts in ended
            for name, count in counts.items()
            if count
        ]
        lines += in_rows(counted, width, glyphs) or [Text("no request has ended yet", theme.MUTED)]
    return lines


def _load_lines(queue: QueueState, width: int, glyphs: Glyphs) -> list[Text]:
    oldest = ("oldest", latency_text(queue.oldest_wait_seconds, glyphs))
    classes = ((name, str(queue.waiting_by_class.get(name, 0))) for name in _class_names(queue))
    return [
        _gauge("running", queue.running, queue.max_running, width, glyphs, full_is_bad=False),
        _gauge("waiting", queue.waiting, queue.max_waiting, width, glyphs, full_is_bad=True),
        *in_rows((oldest, *classes), width, glyphs),
    ]


def _class_names(queue: QueueState) -> list[str]:
    others = sorted(set(queue.waiting_by_class) - set(CLASSES))
    return [*CLASSES, *(clean(name, 16) for name in others)]


def _gauge(
    label: str, count: int, bound: int, width: int, glyphs: Glyphs, *, full_is_bad: bool
) -> Text:
    ratio = count / bound if bound else 0.0
    style = usage_style(ratio, 0.5, 0.9) if full_is_bad else theme.GOOD
    line = Text.assemble(
        (f"{label:<8} ", theme.LABEL), (f"{count:>4}", "bold"), (f" / {bound:<5} ", theme.LABEL)
    )
    return line.append_text(bar(ratio, max(4, min(24, width - line.cell_len)), glyphs, style))


def _tenant_lines(
    snapshot: NodeSnapshot, width: int, room: int | None, glyphs: Glyphs
) -> list[Text]:
    """At most `room` tenants, with their number where some have no place; None: all."""
    if not isinstance(snapshot.tenants, Known):
        return [Text(f"tenants not exposed: {clean(snapshot.tenants.reason)}", theme.MUTED)]
    if not snapshot.tenants.value:
        return []
    tenants = sorted(snapshot.tenants.value, key=lambda t: (-t.kv_blocks, -t.waiting, t.tenant))
    shown = tenants[:room]
    count = f" {len(shown)}/{len(tenants)}" if len(shown) < len(tenants) else ""
    name_width = max(8, min(16, width - 28))
    head = f"{'TENANT' + count:<{name_width}} {'RUN':>4} {'WAIT':>4} {'KV BLK':>7} / QUOTA"
    return [
        Text(head, theme.LABEL),
        *(_tenant_line(tenant, name_width, glyphs) for tenant in shown),
    ]


def _tenant_line(tenant: TenantUsage, name_width: int, glyphs: Glyphs) -> Text:
    quota = glyphs.none if tenant.kv_quota_blocks is None else format_whole(tenant.kv_quota_blocks)
    over = tenant.kv_quota_blocks is not None and tenant.kv_blocks > tenant.kv_quota_blocks
    line = fit(Text(clean(tenant.tenant)), name_width)
    line.append(
        f" {tenant.running:>4} {tenant.waiting:>4} {format_whole(tenant.kv_blocks):>7} / {quota:<6}"
    )
    return line.append(glyphs.mark if over else " ", theme.CRIT)
