"""Requests that no sound client sends, what a node must answer to each, and what it may.

A refusal is a 4xx of the kind wanted, so that the sender can see its own mistake; a 5xx, a reset or silence is the
node's. Where the standards leave it open (a null byte in a prompt), answering is as right as refusing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kvops.load.exchange import Exchange
from kvops.load.injection import COMPLETIONS, REFUSALS, Case, Judge, refuses, unexpected

CHAT = "/v1/chat/completions"
NESTING = 200
"""Closed brackets: few enough for most parsers, more than any field holds."""
TOO_LARGE_A_NUMBER = 10**30
MANY = 100_000
_USER = {"role": "user", "content": "Hello"}
INVALID = "400 invalid_request"
EITHER = "an answer, or 400"


def cases(model: str, *, contract: bool = True) -> list[Case]:
    """`contract`: the node is one of kvops, which names the field that it does not know."""
    return [
        *_broken_bodies(model),
        *_wrong_types(model),
        *_absurd_numbers(model),
        *_odd_text(model),
        *_wrong_messages(model),
        *_wrong_types_of_content(model),
        *_unknown_names(model, contract),
    ]


def expectations() -> dict[str, str]:
    """What each case expects, for readers, in the order of the run."""
    return {case.name: case.expects for case in cases("")}


def _broken_bodies(model: str) -> list[Case]:
    start = b'{"model": ' + msgspec.json.encode(model)
    bodies = {
        "empty body": b"",
        "malformed JSON": start + b', "prompt": "',
        "not an object": b"[1, 2, 3]",
        "null": b"null",
        "not UTF-8": start + b', "prompt": "\xff\xfe"}',
        "not a number": start + b', "prompt": "Hello", "temperature": NaN}',
        "closed nesting": start + b', "stop": ' + b"[" * NESTING + b"]" * NESTING + b"}",
        "no prompt": start + b"}",
    }
    return [_refused(name, lambda body=body: body) for name, body in bodies.items()]  # type: ignore[misc]


def _wrong_types(model: str) -> list[Case]:
    fields: dict[str, dict[str, Any]] = {
        "max_tokens as text": {"max_tokens": "many"},
        "prompt as object": {"prompt": {"text": "Hello"}},
        "stream as text": {"stream": "perhaps"},
        "temperature as list": {"temperature": [1]},
        "stop as object": {"stop": {"at": "."}},
    }
    return [_refused(name, _body(model, one)) for name, one in fields.items()]


def _absurd_numbers(model: str) -> list[Case]:
    fields: dict[str, dict[str, Any]] = {
        "negative max_tokens": {"max_tokens": -1},
        "negative temperature": {"temperature": -1},
        "top_p over 1": {"top_p": 2},
        "a million choices": {"n": 1_000_000},
        "negative token id": {"prompt": [-1, 5]},
        "token id out of the vocabulary": {"prompt": [2**31 - 1]},
    }
    body = msgspec.json.encode({"model": model, "prompt": "Hello"})
    huge = body[:-1] + f', "max_tokens": {TOO_LARGE_A_NUMBER}}}'.encode()
    return [
        *(_refused(name, _body(model, one)) for name, one in fields.items()),
        _refused("max_tokens of 31 digits", lambda: huge),
        _refused("too many stop texts", _body(model, {"stop": ["x"] * MANY})),
    ]


def _odd_text(model: str) -> list[Case]:
    """Text that JSON allows: the node may answer or refuse, but it must do one of them."""
    lone = (
        b'{"model": ' + msgspec.json.encode(model) + b', "prompt": "a \\ud800 b", "max_tokens": 1}'
    )
    return [
        _either("null byte", _body(model, {"prompt": "a\0b"})),
        _either("half a character", lambda: lone),
        _either("empty prompt", _body(model, {"prompt": ""})),
        _either("control characters", _body(model, {"prompt": "".join(map(chr, range(1, 32)))})),
        _either("text written backwards", _body(model, {"prompt": "\u202eolleH\u2066\ufeff"})),
    ]


def _wrong_messages(model: str) -> list[Case]:
    messages: dict[str, Any] = {
        "no messages": [],
        "messages as text": "Hello",
        "unsupported role": [{"role": "wizard", "content": "Hello"}],
        "message without a role": [{"content": "Hello"}],
        "content as number": [{"role": "user", "content": 7}],
        "message as list": [["user", "Hello"]],
    }
    return [
        _refused(name, _body(model, {"messages": one}, chat=True), path=CHAT)
        for name, one in messages.items()
    ]


def _wrong_types_of_content(model: str) -> list[Case]:
    """A sound body: a node may read it all the same."""
    kinds = {
        "content type text": "text/plain",
        "content type form": "application/x-www-form-urlencoded",
        "content type nonsense": "no/such; charset=none; ;;",
    }
    return [
        Case(
            name, _body(model, {}), _answered_or_refused, "an answer, 400 or 415", content_type=kind
        )
        for name, kind in kinds.items()
    ]


def _unknown_names(model: str, contract: bool) -> list[Case]:
    named = "400 naming the field"
    judge = _names("no_such_field") if contract else refuses(*REFUSALS)
    unknown_model = _body("no-such-model", {})
    return [
        Case("unknown field", _body(model, {"no_such_field": 1}), judge, named),
        Case("unknown model", unknown_model, refuses(404), "404 model_not_found"),
        Case(
            "unknown path", _body(model, {}), refuses(404), "404 not_found", path="/v1/no/such/path"
        ),
    ]


def _body(model: str, fields: dict[str, Any], *, chat: bool = False) -> Callable[[], bytes]:
    what: dict[str, Any] = {"messages": [_USER]} if chat else {"prompt": "Hello"}
    body = {"model": model, "max_tokens": 1, "temperature": 0} | what | fields
    return lambda: msgspec.json.encode(body)


def _refused(name: str, body: Callable[[], bytes], path: str = COMPLETIONS) -> Case:
    return Case(name, body, refuses(*REFUSALS), INVALID, path=path)


def _either(name: str, body: Callable[[], bytes]) -> Case:
    return Case(name, body, _answered_or_refused, EITHER)


def _answered_or_refused(got: Exchange) -> str | None:
    if got.status == 200 and got.error_class is None:
        return None
    return None if got.status in (400, 415, 422) else unexpected(got, EITHER)


def _names(field: str) -> Judge:
    def judge(got: Exchange) -> str | None:
        if got.status != 400:
            return unexpected(got, "400")
        return None if field in str(got.error) else f"the refusal does not name {field}"

    return judge
