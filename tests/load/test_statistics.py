from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.load.records import ClientSample, ErrorClass, RequestRecord
from kvops.load.reports.cells import seconds
from kvops.load.statistics import (
    Tally,
    quantile,
    saturation,
    series,
    summarize,
    tokens_between,
    tpot,
    wilson_lower,
)


def record(**changes: Any) -> RequestRecord:
    base = {
        "run": "r",
        "scenario": "s",
        "name": "n",
        "seq": 0,
        "user": 0,
        "t_send": 100.0,
        "e2e": 1.0,
        "expected": True,
    }
    return RequestRecord(**(base | changes))


@given(
    values=st.lists(st.floats(0, 1e6), min_size=100, max_size=300),
    share=st.sampled_from([0.50, 0.95, 0.99]),
)
def test_percentiles_are_the_nearest_rank_of_numpy(values: list[float], share: float) -> None:
    assert quantile(sorted(values), share) == np.quantile(values, share, method="inverted_cdf")


@pytest.mark.parametrize(("share", "least"), [(0.50, 5), (0.95, 20), (0.99, 100)])
def test_too_few_samples_give_no_percentile(share: float, least: int) -> None:
    assert quantile([1.0] * (least - 1), share) is None
    assert quantile([1.0] * least, share) == 1.0


def test_a_node_that_refuses_work_does_not_look_faster() -> None:
    alone, shedding = series([0.1] * 20), series([0.1] * 20, failures=2)
    assert alone.p95_with_failures == shedding.p95 == 0.1
    assert shedding.p95_with_failures == "inf"
    assert shedding.p50_with_failures == 0.1
    assert seconds(shedding.p95_with_failures, 0.95) == "failed"


def test_what_is_missing_says_how_many_samples_it_needs() -> None:
    few = series([0.1] * 7, failures=3)
    assert seconds(few.p95, 0.95) == "needs 20 samples"
    assert seconds(few.p99_with_failures, 0.99) == "needs 100 samples"
    assert seconds(few.p50, 0.50) == "100 ms"


@pytest.mark.parametrize(
    ("hits", "n", "lower"),
    [(10, 10, 0.722), (25, 25, 0.867), (50, 50, 0.929), (48, 50, 0.865), (95, 100, 0.888)],
)
def test_wilson_lower_bound(hits: int, n: int, lower: float) -> None:
    assert wilson_lower(hits, n) == pytest.approx(lower, abs=5e-4)


def test_wilson_without_samples_is_unknown() -> None:
    assert wilson_lower(0, 0) is None


def test_tpot_leaves_out_the_first_token() -> None:
    assert tpot(record(ttft=1.0, last=2.0, completion_tokens=11)) == pytest.approx(0.1)
    assert tpot(record(ttft=1.0, last=1.0, completion_tokens=1)) is None
    assert tpot(record(ttft=1.0, last=2.0)) is None


def test_summary_counts_each_request_once_and_spans_first_send_to_last_close() -> None:
    records = [
        record(
            t_send=100.0,
            e2e=2.0,
            ttft=0.5,
            last=1.5,
            itl=(0.5, 0.5),
            completion_tokens=6,
            prompt_tokens=10,
        ),
        record(
            t_send=101.0,
            e2e=3.0,
            ttft=0.5,
            last=2.5,
            itl=(2.0,),
            completion_tokens=2,
            prompt_tokens=20,
        ),
        record(t_send=101.5, e2e=0.1, expected=False, error_class=ErrorClass.HTTP_429, status=429),
        record(t_send=103.0, e2e=0.5, expected=False, error_class=ErrorClass.CLIENT_CANCEL),
    ]
    total = summarize(records)
    assert (total.requests, total.succeeded, total.failed, total.cancelled) == (4, 2, 1, 1)
    assert total.errors == {"http_429": 1}
    assert total.window_seconds == pytest.approx(4.0)
    assert total.output_tokens_per_second == pytest.approx(8 / 4)
    assert (total.itl.samples, total.ttft.samples, total.ttft.failures) == (3, 2, 1)


def test_no_records_is_not_zero() -> None:
    total = summarize([])
    assert total.window_seconds is None
    assert total.output_tokens_per_second is None
    assert total.ttft.max is None


def test_tokens_count_where_they_arrive() -> None:
    one = record(
        t_send=100.0, ttft=0.5, itl=(0.5, 1.0), completion_tokens=6
    )  # deltas at 100.5, 101.0, 102.0
    assert tokens_between([one], 100.0, 101.0) == pytest.approx(2)
    assert tokens_between([one], 101.0, 103.0) == pytest.approx(4)
    assert tokens_between([record(), record(ttft=1.0)], 0, math.inf) == 0


def test_a_busy_client_cannot_judge() -> None:
    calm, late, busy = (
        ClientSample(0, 1, 1, 0.1, 0.01),
        ClientSample(0, 1, 1, 0.1, 0.5),
        ClientSample(0, 1, 1, 1.0, 0.01),
    )
    assert saturation([]) is None
    assert saturation([calm] * 9 + [late]) is None
    assert "late" in (saturation([calm, late]) or "")
    assert "core" in (saturation([calm, busy]) or "")


def test_a_tally_of_a_growing_run_is_that_of_its_summary() -> None:
    records, tally = [], Tally()
    for number in range(60):
        failed = number % 7 == 0
        records.append(record(ttft=None if failed else number / 10, expected=not failed))
        if number % 5 == 0:
            tally.take(records)
    tally.take(records)
    total = summarize(records)
    assert (tally.requests, tally.failed, tally.ttft) == (total.requests, total.failed, total.ttft)
