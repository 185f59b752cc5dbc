"""Answers that no sound server gives: each is that request's failure, with a class, and no number of a run."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from kvops.errors import KvopsError
from kvops.load import bounded
from kvops.load.client import Client, Timeouts
from kvops.load.endpoint import discover
from kvops.load.exchange import MAX_MESSAGE, Exchange, Usage
from kvops.load.records import ErrorClass
from tests.load.scripted import Reply, Request, Respond, serving

BODY = {"model": "m", "stream": True}
KEY = "k3y"


def ask(respond: Respond, timeouts: Timeouts | None = None, **headers: str) -> Exchange:
    with serving(respond) as server:
        client = Client(server.url, api_key=KEY, timeouts=timeouts).with_headers(headers)
        return client.complete("/v1/chat/completions", BODY)


def streamed(*events: Any) -> Respond:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        for event in events:
            reply.event(event)
        reply.done()

    return respond


def delta(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": "x"}} | choice]}


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        (500, ErrorClass.HTTP_5XX_OTHER),
        (429, ErrorClass.HTTP_429),
        (302, ErrorClass.BAD_ANSWER),
        (202, ErrorClass.BAD_ANSWER),
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_a_good_body_makes_no_success_of_another_status(
    status: int, wanted: ErrorClass, streams: bool
) -> None:
    def respond(_: Request, reply: Reply) -> None:
        if not streams:
            return reply.json(status, {"choices": [{"message": {"content": "x"}}]})
        reply.head(status, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")
        reply.content("x")
        return reply.done()

    got = ask(respond)
    assert (got.error_class, got.message, got.status) == (wanted, f"HTTP {status}", status)
    assert (got.text, got.ttft, got.done) == ("", None, False)


def test_an_error_object_is_no_success_under_the_status_of_one() -> None:
    got = ask(lambda _, reply: reply.json(200, {"error": {"code": "oom", "message": "no room"}}))
    assert (got.error_class, got.error["code"]) == (ErrorClass.BAD_ANSWER, "oom")
    assert "no room" in got.message


def test_a_refusal_whose_body_never_ends_is_still_that_refusal() -> None:
    release = threading.Event()

    def respond(_: Request, reply: Reply) -> None:
        reply.head(503, "Content-Type: application/json", "Content-Length: 1000")
        release.wait(20)

    got = ask(respond, Timeouts(first_token=0.2))
    release.set()
    assert got.error_class is ErrorClass.HTTP_503


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"delta": "abc"}]},
        {"choices": [{"message": [1]}]},
        {"choices": ["abc"]},
    ],
)
def test_a_choice_of_another_shape_is_a_bad_answer(event: dict[str, Any]) -> None:
    assert ask(streamed(event)).error_class is ErrorClass.BAD_ANSWER
    plain = ask(lambda _, reply: reply.json(200, event))
    assert plain.error_class is ErrorClass.BAD_ANSWER


def test_whatever_reading_raises_is_the_requests_own_failure() -> None:
    with mock.patch("kvops.load.asking.take_event", side_effect=AttributeError("no get")):
        got = ask(streamed(delta()))
    assert (got.error_class, got.message) == (ErrorClass.BAD_ANSWER, "AttributeError: no get")


@pytest.mark.parametrize("reason", [5, True, [], "x" * 65, {}])
def test_a_finish_reason_that_is_none_is_left_out(reason: Any) -> None:
    got = ask(streamed(delta(finish_reason=reason), delta(finish_reason=None)))
    assert (got.finish_reason, got.error_class, got.text) == (None, None, "xx")


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1},
        {"prompt_tokens": True},
        {"completion_tokens": 10**30},
        {"completion_tokens": 2**31 + 1},
        {"completion_tokens": 1.5},
        {"completion_tokens": "7"},
        {"truncated_tokens": -3},
        {"prompt_tokens_details": [1]},
        {"prompt_tokens_details": {"cached_tokens": -4}},
        True,
        [3],
    ],
)
@pytest.mark.parametrize("streams", [True, False])
def test_nonsense_counts_spoil_the_answer_and_none_is_kept(usage: Any, streams: bool) -> None:
    said = {"usage": {"prompt_tokens": 3, **usage} if isinstance(usage, dict) else usage}
    answer = said | {"choices": [{"message": {"content": "x"}}]}
    got = ask(
        streamed(delta(), said | {"choices": []})
        if streams
        else lambda _, reply: reply.json(200, answer)
    )
    assert (got.error_class, got.usage) == (ErrorClass.BAD_ANSWER, Usage())
    assert got.message.startswith("usage: ")


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (Usage(completion=9), "9 tokens of an answer that may have 8"),
        (Usage(prompt=60, completion=5), "65 tokens, and the node takes at most 64"),
        (Usage(prompt=5, cached=6), "6 cached tokens of 5"),
    ],
)
def test_counts_that_cannot_be(usage: Usage, words: str) -> None:
    assert words in (usage.impossible(8, 64) or "")
    assert Usage(prompt=56, completion=8, cached=56).impossible(8, 64) is None
    assert Usage(prompt=10**6, completion=9).impossible(None, None) is None


@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_a_credential_that_a_server_repeats_is_not_kept(header: str) -> None:
    def respond(request: Request, reply: Reply) -> None:
        reply.json(401, {"error": {"message": f"bad key {request.headers[header]}"}})

    got = ask(respond, **{"X-API-Key": "42"})
    assert got.error_class is ErrorClass.HTTP_401_403
    assert got.message == "its words repeat a credential and are left out"


@pytest.mark.parametrize("respond", [
    lambda _, reply: reply.raw(f"{'x' * 290}{KEY}\r\n\r\n".encode()),
    lambda _, reply: reply.json(400, {"error": {"message": "x" * 298 + KEY}}),
    streamed(delta(finish_reason=f"for {KEY}")),
], ids=["status line", "at the cut", "finish reason"])  # fmt: skip
def test_no_piece_of_a_credential_is_kept(respond: Respond) -> None:
    got = ask(respond)
    assert KEY[:2] not in got.message
    assert KEY not in (got.finish_reason or "")


@pytest.mark.parametrize("respond", [
    lambda _, reply: reply.raw(f"no HTTP but {KEY}\r\n\r\n".encode()),
    lambda _, reply: reply.json(503, {"error": {"message": f"not with {KEY}"}}),
], ids=["no HTTP", "not ready"])  # fmt: skip
def test_a_credential_is_not_said_before_the_run_either(respond: Respond) -> None:
    with serving(respond) as server, pytest.raises(KvopsError) as said:
        discover(server.url, KEY)
    assert KEY not in f"{said.value}{said.value.__cause__}"


def interim(reply: Reply) -> None:
    reply.raw(b"HTTP/1.1 100 Continue\r\n\r\n")


def drip(reply: Reply) -> None:
    reply.raw(b"X")


def size_of_a_chunk(reply: Reply) -> None:
    reply.raw(b"0")


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"", interim),
        (b"HTTP/1.1 200 OK\r\nX-", drip),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", size_of_a_chunk),
    ],
    ids=["interim answers", "headers", "size of a chunk"],
)
def test_a_head_that_drips_on_has_the_deadline_of_its_request(
    start: bytes, more: Callable[[Reply], None]
) -> None:
    """Each byte comes well within the bound of the whole: only one deadline for all ends it."""

    def respond(_: Request, reply: Reply) -> None:
        reply.raw(start)
        for _ in range(1000):
            more(reply)
            time.sleep(0.02)

    assert ask(respond, Timeouts(first_token=0.3)).error_class is ErrorClass.FIRST_TOKEN_TIMEOUT
    with serving(respond) as server, pytest.raises(TimeoutError):
        Client(server.url).fetch("GET", "/", timeout=0.3)


def test_a_flood_of_interim_answers_is_bounded_by_its_size() -> None:
    def respond(_: Request, reply: Reply) -> None:
        for _ in itertools.repeat(None):
            reply.raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    got = ask(respond)
    assert got.error_class is ErrorClass.BAD_ANSWER
    assert f"over {bounded.MAX_HEAD} bytes" in got.message


def test_of_a_message_of_megabytes_only_what_is_kept_is_searched() -> None:
    """Comparing all of it with the request would stop the client for minutes."""
    got = ask(lambda _, reply: reply.json(400, {"error": {"message": "x" * 4_000_000}}))
    assert got.message == "x" * MAX_MESSAGE
