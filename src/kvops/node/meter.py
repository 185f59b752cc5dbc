"""Everything the daemon counts and times itself: outcomes, rejections, tokens, latencies. Never text, never a key."""

from __future__ import annotations

import time
from collections import Counter
from typing import Literal

import structlog
from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics

from kvops.node.wire import StepDone
from kvops.telemetry.snapshot import CLIENT_FAULTS, TTFT_BOUNDS, LatencyWindow, Traffic
from kvops.telemetry.window import RateWindow, SlidingWindow

Outcome = Literal["stop", "length", "cancelled", "timeout", "error"]
OUTCOMES: tuple[Outcome, ...] = ("stop", "length", "cancelled", "timeout", "error")
LATENCY_WINDOW = 300.0
RATE_WINDOW = 30
REFUSALS = (
    "queue_full", "tenant_limit", "kv_quota", "queue_timeout", "not_ready", "draining", "engine_restarted",
    "audit_unavailable", "template_timeout", "internal_error",
)  # fmt: skip
"""Reasons of the node's own for which it turns requests away; `/metrics` counts each from 0."""

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = TTFT_BOUNDS
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)

_TIERS = ((1024, "0-1k"), (4096, "1k-4k"), (16384, "4k-16k"))
_LONGEST = "16k+"

log = structlog.get_logger("kvops.engine")

disable_created_metrics()  # type: ignore[no-untyped-call]


def tier(prompt_tokens: int) -> str:
    """The length class of a prompt: latencies of short and long prompts do not belong into one histogram."""
    return next((name for bound, name in _TIERS if prompt_tokens <= bound), _LONGEST)


class Meter:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.started_at = time.monotonic()
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.rejections: Counter[str] = Counter()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.allocation_failures = 0
        self.stored_answers = 0
        self._make_histograms()
        self._ttft, self._gap, self._queue, self._duration = (
            SlidingWindow(LATENCY_WINDOW) for _ in range(4)
        )
        self._prompt_rate, self._generation_rate, self._requests, self._bad = (
            RateWindow(RATE_WINDOW) for _ in range(4)
        )

    def _make_histograms(self) -> None:
        def histogram(
            name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
        ) -> Histogram:
            return Histogram(f"kvops_{name}", text, labels, buckets=buckets, registry=self.registry)

        self.step = histogram("engine_step_seconds", "Duration of one engine step.", _FAST)
        self.ttft = histogram(
            "time_to_first_token_seconds", "Request received to first token.", _SLOW, ("tier",)
        )
        # A series that starts with its first request hides that request from a rate.
        for name in (*(name for _, name in _TIERS), _LONGEST):
            self.ttft.labels(name)
        self.gap = histogram(
            "inter_token_latency_seconds", "Time between two tokens of a request.", _FAST
        )
        self.per_token = histogram(
            "time_per_output_token_seconds", "Mean time per token after the first.", _FAST
        )
        self.queue = histogram(
            "request_queue_seconds", "Time a request waited for the engine.", _SLOW
        )
        self.duration = histogram(
            "request_duration_seconds", "Request received to answer complete.", _SLOW, ("tier",)
        )
        self.prompt_size = histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.output_size = histogram(
            "request_generation_tokens", "Generated tokens of a request.", _TOKENS
        )

    def step_done(self, step: StepDone) -> None:
        self.step.observe(step.seconds)
        if step.out_of_memory:
            self.allocation_failures += 1
            log.error("allocation_failed", steps=self.allocation_failures)

    def started(self, waited: float) -> None:
        self.queue.observe(waited)
        self._queue.add(waited, time.monotonic())

    def prompt_read(self, tokens: int) -> None:
        self.prompt_tokens += tokens
        self._prompt_rate.add(tokens, time.monotonic())

    def tokens(self, count: int, gap: float | None) -> None:
        """`count` new tokens of one request; `gap` since its last ones, None for the first."""
        now = time.monotonic()
        self.generation_tokens += count
        self._generation_rate.add(count, now)
        if gap is not None:
            self.gap.observe(gap)
            self._gap.add(gap, now)

    def first_token(self, seconds: float, prompt_tokens: int) -> None:
        self.ttft.labels(tier(prompt_tokens)).observe(seconds)
        self._ttft.add(seconds, time.monotonic())

    def ended(
        self, outcome: Outcome, seconds: float, prompt_tokens: int, output_tokens: int
    ) -> None:
        now = time.monotonic()
        self.outcomes[outcome] += 1
        self._requests.add(1, now)
        if outcome in ("timeout", "error"):
            self._bad.add(1, now)
        if outcome in ("stop", "length"):
            self.duration.labels(tier(prompt_tokens)).observe(seconds)
            self._duration.add(seconds, now)
            self.prompt_size.observe(prompt_tokens)
            self.output_size.observe(output_tokens)

    def answered_from_store(self, outcome: Outcome) -> None:
        """Nothing was computed: it is a request, but no sample of any latency."""
        self.outcomes[outcome] += 1
        self.stored_answers += 1
        self._requests.add(1, time.monotonic())

    def rejected(self, reason: str) -> None:
        now = time.monotonic()
        self.rejections[reason] += 1
        self._requests.add(1, now)
        if reason not in CLIENT_FAULTS:
            self._bad.add(1, now)

    def latency(self) -> LatencyWindow:
        now = time.monotonic()
        return LatencyWindow(
            window_seconds=LATENCY_WINDOW,
            ttft=self._ttft.percentiles(now),
            inter_token=self._gap.percentiles(now),
            queue=self._queue.percentiles(now),
            duration=self._duration.percentiles(now),
        )

    def traffic(self) -> Traffic:
        now = time.monotonic()
        window = min(float(RATE_WINDOW), max(now - self.started_at, 1.0))
        requests = self._requests.total(now)
        return Traffic(
            requests_by_outcome=dict(self.outcomes),
            rejections_by_reason=dict(self.rejections),
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            window_seconds=window,
            prompt_tokens_per_second=self._prompt_rate.total(now) / window,
            generation_tokens_per_second=self._generation_rate.total(now) / window,
            requests_per_second=requests / window,
            error_ratio=self._bad.total(now) / requests if requests else None,
            first_tokens_within=self._first_tokens_within(),
            allocation_failures=self.allocation_failures,
        )

    def _first_tokens_within(self) -> dict[str, dict[str, int]]:
        counts: dict[str, dict[str, int]] = {}
        for sample in next(iter(self.ttft.collect())).samples:
            if sample.name.endswith("_bucket"):
                within = counts.setdefault(sample.labels["tier"], {})
                within[sample.labels["le"]] = int(sample.value)
        return counts
