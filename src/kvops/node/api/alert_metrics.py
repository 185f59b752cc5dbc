"""What `/metrics` says for alerting: the node's own alerts, and readings that a rule elsewhere needs."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from kvops.telemetry.snapshot import AlertsState, Known, NodeSnapshot


def alert_metrics(snapshot: NodeSnapshot) -> Iterator[Metric]:
    if isinstance(snapshot.alerts, Known):
        yield from _alerts(snapshot.alerts.value)
    if isinstance(snapshot.upkeep, Known):
        upkeep = snapshot.upkeep.value
        room = "Bytes free on the disk that holds the node's state."
        yield GaugeMetricFamily("kvops_disk_free_bytes", room, upkeep.disk_free)
        stale = "Watched files of which what was before is still in force."
        yield GaugeMetricFamily("kvops_stale_files", stale, len(upkeep.stale_files))
    if isinstance(snapshot.queue, Known):
        most = "Requests that may wait."
        yield GaugeMetricFamily(
            "kvops_queue_limit_requests", most, snapshot.queue.value.max_waiting
        )
    if isinstance(snapshot.latency, Known) and snapshot.latency.value.ttft.p95 is not None:
        latency = snapshot.latency.value
        yield GaugeMetricFamily(
            "kvops_recent_time_to_first_token_p95_seconds",
            f"Exact 95th percentile of the last {latency.window_seconds:g} s; absent with too few requests.",
            latency.ttft.p95,
        )


def _alerts(alerts: AlertsState) -> Iterator[Metric]:
    firing = {alert.rule for alert in alerts.active if alert.phase == "firing"}
    active = GaugeMetricFamily(
        "kvops_alert_active", "1 while the rule's alert fires.", labels=["rule"]
    )
    for rule in alerts.rules:
        active.add_metric([rule], float(rule in firing))
    yield active
    attempts = CounterMetricFamily(
        "kvops_alert_deliveries",
        "Attempts to deliver an alert message.",
        labels=["channel", "outcome"],
    )
    for channel, outcomes in alerts.deliveries.items():
        for outcome, count in outcomes.items():
            attempts.add_metric([channel, outcome], count)
    yield attempts
    yield GaugeMetricFamily(
        "kvops_alert_undelivered_seconds",
        "Age of the oldest alert message that no receiver took, 0 when there is none.",
        alerts.oldest_undelivered_seconds,
    )
    yield GaugeMetricFamily(
        "kvops_alert_evaluated_timestamp_seconds",
        "When the rules were last looked at.",
        alerts.evaluated_at,
    )
    drill = GaugeMetricFamily(
        "kvops_alert_drill", "1 while a delivery drill is on.", labels=["nonce"]
    )
    drill.add_metric([alerts.drill], float(bool(alerts.drill)))
    yield drill
