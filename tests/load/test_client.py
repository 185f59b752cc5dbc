"""The client against a scripted server: times are checked against the moments the server itself wrote."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import time

import pytest

from kvops.load.client import Client, Leave, Timeouts
from kvops.load.exchange import Exchange, classify
from kvops.load.records import ErrorClass
from tests.load.scripted import Reply, Request, Respond, serving

BODY = {"model": "m", "stream": True}
PAUSE = 0.05


def ask(
    respond: Respond, timeouts: Timeouts | None = None, body: dict[str, object] | bytes = BODY
) -> Exchange:
    with serving(respond) as server:
        return Client(server.url, timeouts=timeouts).complete("/v1/chat/completions", body)


def test_times_tokens_and_text_of_a_whole_stream() -> None:
    seen: list[Reply] = []

    def respond(_: Request, reply: Reply) -> None:
        seen.append(reply)
        reply.stream()
        reply.role()
        for text in ("Hello", " wide", " world"):
            time.sleep(PAUSE)
            reply.content(text)
        reply.content("", finish="stop")
        reply.usage(11, 7, prompt_tokens_details={"cached_tokens": 4})
        reply.done()

    got = ask(respond)
    written = [at - seen[0].sent[0] for at in seen[0].sent]
    assert (got.text, got.finish_reason, got.error_class, got.status) == (
        "Hello wide world",
        "stop",
        None,
        200,
    )
    assert (got.usage.prompt, got.usage.completion, got.usage.cached) == (11, 7, 4)
    assert len(got.deltas) == 3, "a role, an empty delta and a usage event bring no content"
    assert got.ttft is not None
    assert got.ttft >= PAUSE, "the first token is the first content, not the role"
    assert all(at >= sent for at, sent in zip(got.deltas, written[1:4], strict=True))
    assert got.e2e >= got.deltas[-1]
    assert len(got.gaps) == 2


def test_chunks_are_not_tokens() -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        reply.content("four tokens at once")
        reply.usage(5, 4)
        reply.done()

    got = ask(respond)
    assert (len(got.deltas), got.usage.completion, got.gaps) == (1, 4, ())


def test_a_server_without_usage_leaves_the_counts_unknown() -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        reply.content("x")
        reply.done()

    assert ask(respond).usage.completion is None


def test_events_joined_and_cut_by_the_network() -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        data = b': ping\n\ndata: {"choices":[{"delta":{"content":"\xc3\xa9"}}]}\n\ndata: [DONE]\n\n'
        for at in range(len(data)):
            reply.chunk(data[at : at + 1])
        reply.raw(b"0\r\n\r\n")

    assert ask(respond).text == "é"


def test_an_error_that_quotes_the_request_is_not_kept_in_its_words() -> None:
    def respond(request: Request, reply: Reply) -> None:
        reply.stream()
        reply.event({"error": {"message": f"cannot read {request.body.decode()[:200]}"}})
        reply.done()

    got = ask(respond)
    assert got.error_class is ErrorClass.STREAM_ERROR_EVENT
    assert got.message == "its words repeat the request and are left out"


def test_an_error_after_the_first_token_ends_the_stream() -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        reply.content("half")
        reply.event({"error": {"code": "engine_restarted", "message": "the engine restarted"}})
        reply.done()

    got = ask(respond)
    assert got.error_class is ErrorClass.STREAM_ERROR_EVENT
    assert got.error["code"] == "engine_restarted"
    assert got.text == "half"


@pytest.mark.parametrize("ending", [b"", b"0\r\n\r\n", b"20\r\ndata: {"])
def test_a_stream_that_stops_short_is_truncated(ending: bytes) -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        reply.content("half")
        reply.raw(ending)

    got = ask(respond)
    assert got.error_class is ErrorClass.STREAM_TRUNCATED
    assert got.text == "half"


@pytest.mark.parametrize(
    ("status", "code", "wanted"),
    [
        (400, "context_length_exceeded", ErrorClass.HTTP_400_CONTEXT_LENGTH),
        (400, "invalid_request", ErrorClass.HTTP_400_OTHER),
        (401, "invalid_api_key", ErrorClass.HTTP_401_403),
        (404, "model_not_found", ErrorClass.HTTP_404_MODEL),
        (404, "not_found", ErrorClass.HTTP_404_OTHER),
        (413, "too_large", ErrorClass.HTTP_413),
        (422, "x", ErrorClass.HTTP_4XX_OTHER),
        (429, "queue_full", ErrorClass.HTTP_429_QUEUE_FULL),
        (429, "tenant_limit", ErrorClass.HTTP_429_TENANT_LIMIT),
        (429, "kv_quota", ErrorClass.HTTP_429_KV_QUOTA),
        (429, "rate_limit_exceeded", ErrorClass.HTTP_429),
        (500, "queue_full", ErrorClass.HTTP_5XX_OTHER),
        (503, "queue_timeout", ErrorClass.HTTP_503_QUEUE_TIMEOUT),
        (503, "not_ready", ErrorClass.HTTP_503_NOT_READY),
        (503, "draining", ErrorClass.HTTP_503_DRAINING),
        (503, "engine_restarted", ErrorClass.HTTP_503_ENGINE_RESTARTED),
        (503, "x", ErrorClass.HTTP_503),
        (504, "request_timeout", ErrorClass.HTTP_504),
    ],
)
def test_a_refusal_has_a_class_and_keeps_its_error_object(
    status: int, code: str, wanted: ErrorClass
) -> None:
    got = ask(
        lambda _, reply: reply.json(status, {"error": {"code": code, "message": "no", "limit": 3}})
    )
    assert (got.error_class, got.status, got.message, got.error["limit"]) == (
        wanted,
        status,
        "no",
        3,
    )
    assert got.ttft is None


@pytest.mark.parametrize(
    "data",
    [b"data: {broken\n\n", b"data: 17\n\n", b"data: " + b"x" * (2**20 + 10)],
    ids=["json", "shape", "line"],
)
def test_nonsense_in_a_stream_is_a_bad_answer(data: bytes) -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        reply.chunk(data)
        reply.done()

    assert ask(respond).error_class is ErrorClass.BAD_ANSWER


def test_something_that_is_not_http_is_a_bad_answer() -> None:
    assert (
        ask(lambda _, reply: reply.raw(b"SSH-2.0-none\r\n\r\n")).error_class
        is ErrorClass.BAD_ANSWER
    )


def test_a_connection_closed_without_a_word() -> None:
    assert ask(lambda _, reply: None).error_class is ErrorClass.CONNECTION_RESET


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    got = Client(f"http://127.0.0.1:{port}").complete("/v1/completions", BODY)
    assert (got.error_class, got.status) == (ErrorClass.CONNECT_REFUSED, None)


@pytest.mark.parametrize(
    ("bounds", "tokens", "wanted"),
    [
        (Timeouts(first_token=0.1), 0, ErrorClass.FIRST_TOKEN_TIMEOUT),
        (Timeouts(stall=0.1), 1, ErrorClass.STALL_TIMEOUT),
        (Timeouts(total=0.1), 1, ErrorClass.TOTAL_TIMEOUT),
    ],
)
def test_every_wait_is_bounded(bounds: Timeouts, tokens: int, wanted: ErrorClass) -> None:
    release = threading.Event()

    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        for _ in range(tokens):
            reply.content("x")
        release.wait(20)

    got = ask(respond, bounds)
    release.set()
    assert got.error_class is wanted
    assert len(got.deltas) == tokens


@pytest.mark.parametrize(
    ("bounds", "tokens", "wanted"),
    [
        (Timeouts(first_token=0.2), 0, ErrorClass.FIRST_TOKEN_TIMEOUT),
        (Timeouts(stall=0.2), 1, ErrorClass.STALL_TIMEOUT),
    ],
)
def test_a_drip_of_comments_does_not_hide_that_no_token_comes(
    bounds: Timeouts, tokens: int, wanted: ErrorClass
) -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        for _ in range(tokens):
            reply.content("x")
        while True:
            reply.chunk(b": ping\n\n")
            time.sleep(0.02)

    assert ask(respond, bounds).error_class is wanted


def test_a_plain_answer_that_drips_is_bounded_too() -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.head(200, "Content-Type: application/json", "Content-Length: 100000")
        while True:
            reply.raw(b" ")
            time.sleep(0.02)

    assert ask(respond, Timeouts(total=0.2)).error_class is ErrorClass.TOTAL_TIMEOUT


def test_a_refusal_that_comes_before_the_body_was_read_is_still_heard() -> None:
    """The server answers after the headers and closes with most of the body unread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        sock, _ = listener.accept()
        sock.recv(1024)
        Reply(sock).json(413, {"error": {"code": "too_large", "message": "too large"}})
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
        sock.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    got = Client(url).complete("/v1/completions", b"x" * 10_000_000)
    thread.join(10)
    listener.close()
    assert got.error_class is ErrorClass.HTTP_413


def test_a_servers_words_are_one_line_without_control_characters() -> None:
    message = "no\x1b]0;owned\x07 room\n\u202eleft"
    got = ask(lambda _, reply: reply.json(500, {"error": {"message": message}}))
    assert got.error_class is ErrorClass.HTTP_5XX_OTHER
    assert got.message == "no ]0;owned  room  left"


def test_the_key_travels_in_the_header() -> None:
    with serving(lambda _, reply: reply.json(200, {})) as server:
        Client(server.url + "/prefix/", api_key="s3cret").fetch("GET", "/v1/models")
        request = server.requests[0]
    assert (request.path, request.headers["authorization"]) == (
        "/prefix/v1/models",
        "Bearer s3cret",
    )


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:8000", "http://", ""])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http"):
        Client(url)


@pytest.mark.parametrize("leave", [Leave(deltas=2), Leave(after=0.2), Leave(deltas=900, after=0.2)])
def test_a_client_leaves_when_it_was_told_to(leave: Leave) -> None:
    """The server goes on until the closed connection stops it."""
    left = threading.Event()

    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        try:
            for _ in range(1000):
                reply.content("x")
                time.sleep(0.02)
        except OSError:
            left.set()

    with serving(respond) as server:
        got = Client(server.url).complete("/v1/chat/completions", BODY, leave=leave)
        assert left.wait(10), "the connection was dropped"
    assert (got.left, got.error_class, got.done) == (True, None, False)
    assert len(got.deltas) >= 2
    assert len(got.deltas) < 900


def test_a_stream_that_ends_before_the_client_leaves_was_not_left() -> None:
    def respond(_: Request, reply: Reply) -> None:
        reply.stream()
        reply.content("x")
        reply.done()

    with serving(respond) as server:
        got = Client(server.url).complete("/v1/chat/completions", BODY, leave=Leave(deltas=2))
    assert (got.left, got.done, got.error_class) == (False, True, None)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (socket.gaierror(-2, "Name or service not known"), ErrorClass.CONNECT_FAILED),
        (OSError(errno.EHOSTUNREACH, "No route to host"), ErrorClass.CONNECT_FAILED),
        (OSError(errno.EMFILE, "Too many open files"), ErrorClass.CLIENT_SATURATED),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), ErrorClass.CLIENT_SATURATED),
        (ConnectionRefusedError(), ErrorClass.CONNECT_REFUSED),
        (TimeoutError(), ErrorClass.CONNECT_TIMEOUT),
        (ConnectionResetError(), ErrorClass.CONNECTION_RESET),
        (ssl.SSLCertVerificationError(), ErrorClass.TLS),
    ],
)
def test_what_keeps_a_connection_from_standing_has_a_class(
    error: OSError, wanted: ErrorClass
) -> None:
    """A want of descriptors or ports is the client's own, never the node's failure."""
    got = Exchange()
    classify(got, error)
    assert got.error_class is wanted
