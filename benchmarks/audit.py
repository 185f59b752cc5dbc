"""What the audit costs a request while its thread chains, writes and syncs; `benchmarks.access` has it with others."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row
from kvops.config.schema import Audit
from kvops.node.audit import AuditLog
from kvops.node.audit_verify import verify

REQUESTS = 5_000
PAUSE = 0.0005
"""Seconds between two requests, so that the thread of the audit has its turns as in a node."""


def rows() -> Iterator[Row]:
    yield audit_row()


def audit_row() -> Row:
    """Both records of a request. Raises RuntimeError where one is not on the disk in the end."""
    with tempfile.TemporaryDirectory(prefix="kvops-bench-") as folder:
        audit = AuditLog(Path(folder), Audit())
        spent = [_record(audit) for _ in range(REQUESTS)]
        audit.close(60)
        verdict = verify(Path(folder))
    if not verdict.whole or verdict.records != 2 * REQUESTS:
        raise RuntimeError(f"the audit holds {verdict.records} of {2 * REQUESTS} records")
    p95 = statistics.quantiles(spent, n=20)[-1] * 1e3
    return Row(
        "audit of a request, two records, p95",
        f"{p95:.4f} ms, median {statistics.median(spent) * 1e3:.4f} ms",
        f"{REQUESTS} requests, all chained and on the disk",
        p95,
        0.2,
        False,
        " ms",
    )


def _record(audit: AuditLog) -> float:
    """Seconds."""
    time.sleep(PAUSE)
    who = {"request_id": "req-0123456789abcdef01234567", "tenant": "acme", "key_id": "acme-1"}
    begun = time.perf_counter()
    audit.record(
        "accepted", **who, client="127.0.0.1", method="POST", route="/v1/chat/completions",
        priority="normal", prompt_tokens=500, choices=1, max_tokens=100,
    )  # fmt: skip
    audit.record(
        "finished", **who, client="127.0.0.1", outcome="stop", prompt_tokens=500, cached_tokens=0,
        output_tokens=100, first_token_seconds=0.1, seconds=1.5,
    )  # fmt: skip
    return time.perf_counter() - begun
