"""The bounds of a request: what is asked at the edge of each, and one past it. `LIMITS` are those of the node asked."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from kvops.node.api import gate
from tests.harness import RunningNode
from tests.node.conftest import HTTP, model_of

LIMITS = {
    "body_bytes": 64 * 1024, "body_timeout": 1.5, "json_depth": 16, "messages": 5, "stop_strings": 3, "n": 6,
    "logprobs": 7,
}  # fmt: skip
"""None of them a default: what is checked is the setting."""
OK = (200, None)
REFUSED = (400, "invalid_request")
TOO_LARGE = (400, "too_large")
TOO_LONG = (400, "context_length_exceeded")

Outcome = tuple[int, str | None]
Ask = Callable[[RunningNode], Outcome]


@dataclass(frozen=True)
class Bound:
    """`row` is what the table of bounds calls it; `edge` is still let through, `past` is not."""

    row: str
    edge: Ask
    past: Ask
    refusal: Outcome = REFUSED
    passes: Outcome = OK
    """How the edge ends; where something else than this bound refuses it, that shows that this one did not."""


def outcome(answer: httpx.Response) -> Outcome:
    error = answer.json().get("error") if answer.content else None
    return answer.status_code, error and error["code"]


def post(path: str, content: bytes, **headers: str) -> Ask:
    sent = {"Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    return lambda node: outcome(HTTP.post(node.url + path, content=content, headers=sent))


def completion(**given: Any) -> Ask:
    def ask(node: RunningNode) -> Outcome:
        body = {"model": model_of(node), "prompt": "x", "max_tokens": 1} | given
        return outcome(HTTP.post(f"{node.url}/v1/completions", json=body))

    return ask


def chat(**given: Any) -> Ask:
    def ask(node: RunningNode) -> Outcome:
        messages = [{"role": "user", "content": "x"}]
        body = {"model": model_of(node), "messages": messages, "max_tokens": 1} | given
        return outcome(HTTP.post(f"{node.url}/v1/chat/completions", json=body))

    return ask


def control(method: str, path: str, **given: Any) -> Ask:
    return lambda node: outcome(node.control(method, path, **given))


def body_of(size: int) -> Ask:
    """A whole request, padded with blanks behind its JSON."""

    def ask(node: RunningNode) -> Outcome:
        text = json.dumps({"model": model_of(node), "prompt": "x", "max_tokens": 1})
        return post("/v1/completions", text.encode().ljust(size))(node)

    return ask


def chunked(size: int) -> Ask:
    """As `body_of` without saying the length beforehand."""

    def ask(node: RunningNode) -> Outcome:
        text = json.dumps({"model": model_of(node), "prompt": "x", "max_tokens": 1})
        data = text.encode().ljust(size)
        parts = (data[at : at + 5000] for at in range(0, size, 5000))
        headers = {"Content-Type": "application/json"}
        return outcome(HTTP.post(f"{node.url}/v1/completions", content=parts, headers=headers))

    return ask


def dripping(seconds: float) -> Ask:
    """A body that comes steadily, a blank every 50 ms, and is complete after so long."""

    def ask(node: RunningNode) -> Outcome:
        text = json.dumps({"model": model_of(node), "prompt": "x", "max_tokens": 1}).encode()
        ends = time.monotonic() + seconds

        def body() -> Iterator[bytes]:
            while time.monotonic() < ends:
                yield b" "
                time.sleep(0.05)
            yield text

        headers = {"Content-Type": "application/json"}
        return outcome(HTTP.post(f"{node.url}/v1/completions", content=body(), headers=headers))

    return ask


def headers_of(size: int) -> Ask:
    """A request whose path, header names and values have so many bytes together."""
    return lambda node: _bare(node, [("X-Pad", "p" * (size - len("/livez" + "Hostx" + "X-Pad")))])


def headers_count(count: int) -> Ask:
    return lambda node: _bare(node, [(f"X-{at}", "1") for at in range(count - 1)])


def _bare(node: RunningNode, headers: list[tuple[str, str]]) -> Outcome:
    """GET /livez with a Host of one byte and nothing else that is not asked for."""
    connection = http.client.HTTPConnection(node.url.removeprefix("http://"), timeout=30)
    connection.putrequest("GET", "/livez", skip_host=True, skip_accept_encoding=True)
    for name, value in [("Host", "x"), *headers]:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = json.loads(answer.read())
    connection.close()
    return answer.status, body.get("error", {}).get("code")


def nested(depth: int) -> Ask:
    """Only `logit_bias` may be anything until it is read, so the edge is refused for what it is instead."""
    return post(
        "/v1/completions", b'{"logit_bias":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"
    )


def messages(count: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}] * count}


def parts(count: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * count}]}


def digits(count: int) -> Ask:
    """Refused for its value, or for its length before it is one: told apart by the message."""

    def ask(node: RunningNode) -> Outcome:
        headers = {"Content-Type": "application/json"}
        content = b'{"max_tokens": ' + b"9" * count + b"}"
        answer = HTTP.post(f"{node.url}/v1/completions", content=content, headers=headers)
        return answer.status_code, "length" if "too many digits" in answer.text else "value"

    return ask


def within(
    field: str, low: float, high: float, *, past_low: float, past_high: float
) -> list[Bound]:
    row = "sampling fields"
    return [
        Bound(row, completion(**{field: low}), completion(**{field: past_low})),
        Bound(row, completion(**{field: high}), completion(**{field: past_high})),
    ]


BOUNDS = [
    Bound("body", body_of(65536), body_of(65537), refusal=(413, "too_large")),
    Bound("body", chunked(65536), chunked(65537), refusal=(413, "too_large")),
    Bound("time to send the body", dripping(0.3), dripping(20), refusal=(408, "body_timeout")),
    Bound("content coding", post("/v1/tokenize", b'{"prompt": "x"}', Content_Encoding="identity"),
          post("/v1/tokenize", b'{"prompt": "x"}', Content_Encoding="gzip")),
    Bound("content coding", post("/v1/tokenize", b'{"prompt": "x"}'),
          post("/v1/tokenize", b'{"prompt": "x"}', Content_Encoding="identity, br")),
    Bound("headers", headers_of(gate.MAX_HEADER_BYTES), headers_of(gate.MAX_HEADER_BYTES + 1),
          refusal=(431, "too_large")),
    Bound("headers", headers_count(gate.MAX_HEADERS), headers_count(gate.MAX_HEADERS + 1),
          refusal=(431, "too_large")),
    Bound("JSON nesting", nested(16), nested(17), refusal=TOO_LARGE, passes=REFUSED),
    Bound("digits of a number", digits(4300), digits(4301), refusal=(400, "length"), passes=(400, "value")),
    Bound("messages in a chat", chat(**messages(5)), chat(**messages(6))),
    Bound("messages in a chat", chat(**messages(1)), chat(**messages(0))),
    Bound("text parts in a message", chat(**parts(1024)), chat(**parts(1025)), passes=TOO_LONG),
    Bound("stop strings", completion(stop=["a", "b", "c"]), completion(stop=["a", "b", "c", "d"])),
    Bound("stop strings", completion(stop="s" * 256), completion(stop="s" * 257)),
    Bound("stop strings", completion(stop="s"), completion(stop="")),
    Bound("stop token ids", completion(stop_token_ids=[7] * 64), completion(stop_token_ids=[7] * 65)),
    Bound("stop token ids", completion(stop_token_ids=[321]), completion(stop_token_ids=[322])),
    Bound("`n`", completion(n=6), completion(n=7)),
    Bound("`n`", completion(n=1), completion(n=0)),
    Bound("prompts in one request; prompts × n", completion(prompt=["x"] * 64), completion(prompt=["x"] * 65)),
    Bound("prompts in one request; prompts × n", completion(prompt=["x"] * 32, n=4),
          completion(prompt=["x"] * 43, n=3)),
    Bound("`logprobs`, `top_logprobs`", completion(logprobs=7), completion(logprobs=8)),
    Bound("`logprobs`, `top_logprobs`", chat(logprobs=True, top_logprobs=7), chat(logprobs=True, top_logprobs=8)),
    Bound("`logit_bias`", completion(logit_bias={str(at): 1 for at in range(300)}),
          completion(logit_bias={str(at): 1 for at in range(301)})),
    Bound("`logit_bias`", completion(logit_bias={"321": 100}), completion(logit_bias={"322": 100})),
    Bound("`logit_bias`", completion(logit_bias={"7": -100}), completion(logit_bias={"7": -100.1})),
    Bound("`logit_bias`", completion(logit_bias={"7": 100}), completion(logit_bias={"7": 100.1})),
    Bound("`max_tokens`, `min_tokens`", completion(max_tokens=10_000_000), completion(max_tokens=10_000_001),
          passes=TOO_LONG),
    Bound("`max_tokens`, `min_tokens`", completion(max_tokens=1), completion(max_tokens=0)),
    Bound("`max_tokens`, `min_tokens`", completion(min_tokens=1), completion(min_tokens=2)),
    Bound("`max_tokens`, `min_tokens`", completion(min_tokens=0), completion(min_tokens=-1)),
    Bound("context", completion(prompt=[9] * 511), completion(prompt=[9] * 512), refusal=TOO_LONG),
    Bound("`seed`", completion(seed=2**63 - 1), completion(seed=2**63)),
    Bound("`seed`", completion(seed=-(2**63)), completion(seed=-(2**63) - 1)),
    Bound("names and labels", completion(model="m" * 512), completion(model="m" * 513),
          passes=(404, "model_not_found")),
    Bound("names and labels", completion(user="u" * 512), completion(user="u" * 513)),
    Bound("names and labels", chat(prompt_cache_key="u" * 512), chat(prompt_cache_key="u" * 513)),
    *within("temperature", 0, 2, past_low=-0.01, past_high=2.01),
    *within("top_p", 0.01, 1, past_low=0, past_high=1.01),
    *within("min_p", 0, 1, past_low=-0.01, past_high=1.01),
    *within("top_k", 0, 10_000_000, past_low=-1, past_high=10_000_001),
    *within("frequency_penalty", -2, 2, past_low=-2.01, past_high=2.01),
    *within("presence_penalty", -2, 2, past_low=-2.01, past_high=2.01),
    *within("repetition_penalty", 0.01, 2, past_low=0, past_high=2.01),
    Bound("control plane: `hz`, `cells`, `request_id`", control("GET", "/control/kv/map?cells=100000"),
          control("GET", "/control/kv/map?cells=100001")),
    Bound("control plane: `hz`, `cells`, `request_id`", control("GET", "/control/kv/map?cells=1"),
          control("GET", "/control/kv/map?cells=0")),
    Bound("control plane: `hz`, `cells`, `request_id`",
          control("POST", "/control/cancel", json={"request_id": "r" * 64}),
          control("POST", "/control/cancel", json={"request_id": "r" * 65})),
]  # fmt: skip
ELSEWHERE = {
    "time to send the head": "test_slow_clients.py::test_a_head_has_a_deadline_however_steadily_it_drips",
    "an idle connection": "test_slow_clients.py::test_an_idle_connection_is_closed",
    "a client that takes no byte of its answer": "test_slow_clients.py::test_a_slow_reader_keeps_its_connection",
    "a body still sent after its answer":
        "test_slow_clients.py::test_a_body_that_goes_on_after_its_answer_is_not_read_for_ever",
    "connections": "test_listener.py::test_connections_over_the_bound_are_told_and_closed",
    "TLS handshake": "test_tls.py::test_who_never_begins_the_handshake_is_cut_and_counts_till_then",
    "a prompt as token ids": "test_bounds.py::test_a_prompt_of_token_ids_has_a_bound_before_any_other",
    "control plane: `author`, `note`, `rule`, `by`, `reason`, `sink`":
        "test_bounds_complete.py::test_the_words_and_times_of_the_control_plane",
    "control plane: `seconds` of a silence, `timeout` of a drill":
        "test_bounds_complete.py::test_the_words_and_times_of_the_control_plane",
    "API keys": "test_bounds.py::test_the_bound_of_a_keys_file",
    "running at once": "test_lifecycle.py::test_queue_full_and_queue_timeout",
    "waiting (preempted ones too), beyond what fits into free batch slots and blocks":
        "test_answers.py::test_the_queue_counts_what_waits_beyond_the_free_slots",
    "in the node at once, running and waiting, all classes":
        "test_concurrent_bound.py::test_the_bound_is_of_all_that_is_in_the_node",
    "time in the queue": "test_lifecycle.py::test_queue_full_and_queue_timeout",
    "time of a request": "test_lifecycle.py::test_request_timeout_is_a_status_or_the_last_event",
    "chats that wait for their template":
        "test_bounds_complete.py::test_chats_that_wait_for_their_template",
    "time for a chat template": "test_rendering.py::test_a_hung_template_fails_alone_and_keeps_its_turn",
}  # fmt: skip
"""Bounds that take time, or a node of their own: the test that holds them."""
