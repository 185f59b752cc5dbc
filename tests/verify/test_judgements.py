"""What the checks conclude from what they saw, without a node."""

from __future__ import annotations

import time
from email.utils import formatdate
from typing import Any

import pytest

from kvops.verify.api import Refusal, Reply
from kvops.verify.checks.alerts import Drill, Row, drill_faults
from kvops.verify.checks.auth_routes import Knock, is_open, knocks, spellings
from kvops.verify.checks.claims import LONGEST_PAUSE, pause_of
from kvops.verify.checks.isolation import faster
from kvops.verify.checks.malformed import Malformed, judged, malformed
from kvops.verify.checks.streams import stream_faults
from kvops.verify.checks.truncation import cut_faults
from kvops.verify.checks.usage import growth_faults
from kvops.verify.judge import says
from kvops.verify.streamed import StreamedAnswer

USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


def reply(status: int, body: dict[str, Any] | None = None, **headers: str) -> Reply:
    return Reply(status=status, headers=headers, text="", body=body or {}, seconds=0.0)


def streamed(**other: Any) -> StreamedAnswer:
    whole: dict[str, Any] = {
        "text": "abc", "deltas": 3, "first_delta_seconds": 0.1, "finish_reasons": ("length",), "usage": USAGE,
        "done": True, "malformed": 0, "error": None,
    }  # fmt: skip
    return StreamedAnswer(**whole | other)


def test_a_whole_stream_has_no_fault() -> None:
    assert stream_faults(streamed(roles=1), 3) == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"cut": "still going after 88 events", "done": False}, "a stream without end"),
        ({"finish_reasons": ("length", "stop")}, "finish_reason"),
        ({"finish_reasons": ()}, "finish_reason"),
        ({"after_finish": 2}, "2 text deltas after finish_reason"),
        ({"after_done": 1}, "1 events after [DONE]"),
        ({"done": False}, "no [DONE]"),
        ({"usage": {}}, "no usage chunk"),
        ({"deltas": 4}, "4 text deltas for 3 completion tokens"),
        ({"first_delta_seconds": None}, "no text delta"),
        ({"malformed": 1}, "no JSON object"),
        ({"error": "engine_restarted"}, "ended with error engine_restarted"),
    ],
)
def test_each_fault_of_a_stream_is_named(other: dict[str, Any], says: str) -> None:
    (fault,) = stream_faults(streamed(**other), 3)
    assert says in fault.says
    assert fault.remedy


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("2", 2.0), (" 30 ", 30.0), (str(int(LONGEST_PAUSE)), LONGEST_PAUSE)],
)
def test_a_retry_after_in_seconds_is_read(header: str, seconds: float) -> None:
    assert pause_of(Refusal(path="/", status=429, code=None, retry_after=header)) == seconds


def test_a_retry_after_as_a_date_is_read() -> None:
    header = formatdate(time.time() + 60, usegmt=True)
    found = pause_of(Refusal(path="/", status=503, code=None, retry_after=header))
    assert found == pytest.approx(60, abs=5)


@pytest.mark.parametrize("header", [None, "", "soon", "-1", "1.5", "inf", "²", "86401", "9" * 400])
def test_a_retry_after_of_no_use_is_none(header: str | None) -> None:
    assert pause_of(Refusal(path="/", status=429, code=None, retry_after=header)) is None


def test_hits_are_told_from_noise_by_all_of_them_and_by_far() -> None:
    cold = [1.0, 1.1, 0.9, 1.0, 1.2]
    assert faster([0.2, 0.3, 0.2, 0.2, 0.3], cold)
    assert not faster([0.2, 0.3, 0.2, 0.2, 0.95], cold), "one that was not faster"
    assert not faster([0.8, 0.8, 0.85, 0.8, 0.8], cold), "all faster, by little"
    assert not faster(cold, cold)


@pytest.mark.parametrize(
    ("counts", "right"),
    [
        ([40, 120, 300], True),
        ([40], True),
        ([40, 40], False),
        ([300, 40], False),
        ([40, None], False),
    ],
)
def test_longer_prompts_count_more(counts: list[Any], right: bool) -> None:
    assert (growth_faults(counts) == []) is right


@pytest.mark.parametrize(
    ("usage", "header", "says"),
    [
        ({"truncated_tokens": 900, "prompt_tokens": 100}, "900", ""),
        ({"truncated_tokens": 900, "prompt_tokens": 100}, "899", "usage says 900"),
        ({"truncated_tokens": 900, "prompt_tokens": 101}, "900", "the prompt has 1000 tokens"),
        ({"truncated_tokens": 0, "prompt_tokens": 1000}, "0", "truncated_tokens 0"),
        ({"prompt_tokens": 1000}, "", "truncated_tokens None"),
        ({"truncated_tokens": 488, "prompt_tokens": 512}, "488", "in a window of 512"),
    ],
)
def test_a_cut_has_to_add_up(usage: dict[str, int], header: str, says: str) -> None:
    faults = cut_faults(reply(200, {"usage": usage}, **{"x-kvops-truncated": header}), 1000, 512)
    assert says in "; ".join(faults)
    assert bool(faults) is bool(says)


@pytest.mark.parametrize(
    ("method", "target", "answer", "found"),
    [
        ("POST", "/invocations", reply(200), True),
        ("POST", "/tokenize", reply(422), True),
        ("POST", "/sleep", reply(400), True),
        ("GET", "/collective_rpc", reply(405), True),
        ("HEAD", "/v1/models", reply(200), True),
        ("POST", "/v1/completions", reply(503), True),
        ("POST", "/v1/completions", reply(401), False),
        ("POST", "/v1/completions", reply(403), False),
        ("GET", "/slots", reply(404), False),
        ("POST", "/v1/completions/", reply(307), False),
        ("POST", "//v1/completions", reply(400), False),
        ("POST", "/v1%2fcompletions", reply(400), False),
        ("OPTIONS", "/v1/completions", reply(405), False),
        ("OPTIONS", "/props", reply(200, {"a": 1}), True),
    ],
)
def test_what_only_a_route_can_answer_is_an_open_door(
    method: str, target: str, answer: Reply, found: bool
) -> None:
    assert is_open(Knock(method, target), answer) is found


def test_nothing_that_could_act_is_sent_to_a_route_that_acts() -> None:
    asked = knocks("words")
    for knock in asked:
        acts = any(
            knock.target.startswith(p)
            for p in ("/sleep", "/pause", "/abort", "/control", "/update", "/flush")
        )
        if acts and knock.method == "POST":
            assert knock.body == b'{"broken": '
    assert len(asked) == len({(knock.method, knock.target) for knock in asked})


def test_spellings_are_many_and_different() -> None:
    found = spellings("/v1/completions")
    assert len(set(found)) == len(found) >= 10
    assert {
        "//v1/completions",
        "/V1/COMPLETIONS",
        "/v1%2fcompletions",
        "/health/../v1/completions",
    } <= set(found)


def test_malformed_bodies_have_names_of_their_own() -> None:
    names = [probe.name for probe in malformed("words", 100)]
    assert len(set(names)) == len(names) >= 30


ERROR = {"error": {"message": "no", "type": "invalid_request_error", "code": "invalid_request"}}


@pytest.mark.parametrize(
    ("answer", "faults"),
    [
        (reply(400, ERROR), []),
        (reply(422, ERROR), []),
        (reply(200), ["status 200"]),
        (reply(500, ERROR), ["status 500 instead of 400 or 413 or 415 or 422"]),
        (reply(400), ["no error.message", "no error.type"]),
    ],
)
def test_a_malformed_body_is_refused_in_the_shape_of_an_error(
    answer: Reply, faults: list[str]
) -> None:
    assert says(judged(answer, Malformed("x", b""))) == faults


def test_an_unusual_body_may_be_taken_and_a_status_of_its_own_is_right() -> None:
    assert judged(reply(200), Malformed("x", b"", may_be_taken=True)) == []
    assert judged(reply(404, ERROR), Malformed("x", b"", also=(404,))) == []


TOOK, REFUSED = Row("oncall", True, 0.3), Row("oncall", False, None, "HTTP 500")


@pytest.mark.parametrize(
    ("drill", "sink", "arrived", "says"),
    [
        (Drill("n", 0.1, (TOOK,)), True, True, ""),
        (Drill("n", 0.1, (TOOK,)), False, False, ""),
        (Drill("n", 0.1, (TOOK,)), True, False, "did not arrive at the gate's sink"),
        (Drill("n", 0.1, (REFUSED,)), True, True, "oncall: HTTP 500"),
        (Drill("n", None, (REFUSED,)), True, False, "the rule did not fire in time"),
    ],
)
def test_an_alert_has_arrived_when_the_receiver_says_so(
    drill: Drill, sink: bool, arrived: bool, says: str
) -> None:
    faults = drill_faults(drill, sink, arrived)
    assert says in "; ".join(faults)
    assert bool(faults) is bool(says)
