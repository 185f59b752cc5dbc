from __future__ import annotations

import inspect

from kvops import errors
from kvops.errors import ContextLengthExceeded, KvopsError, QueueFull, RequestError


def all_errors() -> list[type[KvopsError]]:
    return [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, KvopsError)]


def test_the_drawn_tree_names_every_error() -> None:
    drawing = errors.__doc__ or ""
    assert [c.__name__ for c in all_errors() if c.__name__ not in drawing] == []


def test_every_429_and_503_says_when_to_come_back() -> None:
    answers = [c("x") for c in all_errors() if issubclass(c, RequestError)]
    assert [
        a.code for a in answers if a.http_status in (429, 503) and "Retry-After" not in a.headers()
    ] == []


def test_the_body_is_shaped_like_openai() -> None:
    error = ContextLengthExceeded(
        "too long", param="prompt", hint="Shorten it.", extra={"limit": 8, "prompt_tokens": 9}
    )
    assert error.body() == {
        "error": {
            "message": "too long Shorten it.",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "context_length_exceeded",
            "limit": 8,
            "prompt_tokens": 9,
        }
    }
    again = errors.refusal(error.body()["error"] | {"hint": "Shorten it."})
    assert isinstance(again, ContextLengthExceeded)
    assert (again.message, again.hint) == ("too long", "Shorten it.")
    for other in (None, [], {"message": 7}, {"message": "x", "code": "of another program"}):
        assert errors.refusal(other) is None
    assert QueueFull("full").headers() == {"Retry-After": "2"}
