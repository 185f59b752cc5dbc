from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.errors import NodeProtocolError
from kvops.telemetry import prometheus

PAGE = """# HELP kvops_steps_total Steps.
# TYPE kvops_steps_total counter
kvops_steps_total 7
# TYPE kvops_blocks gauge
kvops_blocks{state="used"} 3
kvops_blocks{state="free"} 5
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{le="1"} 1
vllm:iteration_tokens_total_bucket{le="+Inf"} 2
vllm:iteration_tokens_total_sum 9
vllm:iteration_tokens_total_count 2
# TYPE tgi_request_count counter
tgi_request_count 4
# TYPE nothing_yet_total counter
bare 1
"""


def test_types_come_from_the_type_line_and_counters_end_in_total() -> None:
    page = prometheus.parse(PAGE)
    assert page.types == {
        "kvops_steps_total": "counter",
        "kvops_blocks": "gauge",
        "vllm:iteration_tokens_total": "histogram",
        "tgi_request_count_total": "counter",
        "nothing_yet_total": "counter",
    }


def test_a_missing_series_is_none_and_never_zero() -> None:
    page = prometheus.parse(PAGE)
    assert page.value("kvops_steps_total") == 7
    assert page.value("kvops_blocks", state="used") == 3
    assert page.value("kvops_blocks") is None
    assert page.total("kvops_blocks") == 8
    assert page.total("kvops_blocks", state="cached") is None
    assert page.total("nothing_yet_total") is None
    assert page.labels("kvops_blocks") == {"state": "used"}
    assert page.labels("none") == {}
    assert page.duplicates == ()


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ('# TYPE b gauge\nb{x="1"} 1\nb{x="1"} 2\n', "b"),
        ("# TYPE b gauge\nb 1\n# TYPE c gauge\nc 1\n# TYPE b gauge\nb 1\n", "b"),
        ("bare 1\n", "bare"),
    ],
)
def test_what_is_stated_twice_is_named(extra: str, name: str) -> None:
    assert prometheus.parse(PAGE + extra).duplicates == (name,)


@pytest.mark.parametrize("text", ["a{b 1", "# TYPE a", "<html></html>", "a b c"])
def test_a_page_that_is_not_the_format_is_refused(text: str) -> None:
    with pytest.raises(NodeProtocolError, match="text format"):
        prometheus.parse(text + "\n")


def test_a_page_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_SAMPLES", 10)
    many = "\n".join(f"a{i} 1" for i in range(11))
    with pytest.raises(NodeProtocolError, match="more than 10 series"):
        prometheus.parse(many)
    monkeypatch.setattr(prometheus, "MAX_BYTES", 20)
    with pytest.raises(NodeProtocolError, match="over 20"):
        prometheus.parse(many)


@given(st.text(max_size=200))
def test_any_text_gives_a_page_or_the_protocol_error(text: str) -> None:
    with contextlib.suppress(NodeProtocolError):
        prometheus.parse(text)
