"""Which answers are right: each case's judge against right answers, wrong ones, and none."""

from __future__ import annotations

import json

import pytest

from kvops.load import injection, malformed
from kvops.load.exchange import Exchange, Usage
from kvops.load.records import ErrorClass

LIMIT = 100


def case(name: str) -> injection.Case:
    every = [
        *injection.length_cases("m", LIMIT, seed=1),
        *injection.size_cases("m", 10_000),
        *malformed.cases("m"),
    ]
    return next(one for one in every if one.name == name)


def refused(status: int, error_class: ErrorClass, **error: object) -> Exchange:
    return Exchange(status=status, error_class=error_class, error=dict(error), message="refused")


TOO_LONG = refused(400, ErrorClass.HTTP_400_CONTEXT_LENGTH, prompt_tokens=100, limit=LIMIT)


@pytest.mark.parametrize(
    ("name", "total"),
    [("limit-1", 99), ("limit", 100), ("limit+1", 101), ("2x limit", 200)],
)
def test_length_cases_are_exact_and_leave_room_for_one_token(name: str, total: int) -> None:
    body = json.loads(case(name).body())
    assert len(body["prompt"]) + body["max_tokens"] == total


def test_an_answer_can_be_what_is_too_long() -> None:
    body = json.loads(case("answer over limit").body())
    assert (len(body["prompt"]), body["max_tokens"]) == (8, LIMIT)


def test_other_bodies_are_what_their_names_say() -> None:
    assert len(case("huge body").body()) >= 10_000
    assert list(injection.expectations())[:4] == ["limit-1", "limit", "limit+1", "2x limit"]
    with pytest.raises(UnicodeDecodeError):
        case("not UTF-8").body().decode()
    for name in ("malformed JSON", "empty body", "deep nesting"):
        with pytest.raises((ValueError, RecursionError)):
            json.loads(case(name).body())


def test_what_is_said_to_be_json_is_json_and_each_case_is_its_own() -> None:
    broken = {"malformed JSON", "empty body", "not UTF-8"}
    bodies = {one.name: one.body() for one in malformed.cases("m")}
    own = {(one.body(), one.path, one.content_type) for one in malformed.cases("m")}
    assert len(own) == len(bodies)
    for name, body in bodies.items():
        if name not in broken:
            json.loads(body)
    assert json.loads(bodies["null byte"])["prompt"] == "a\0b"
    assert json.loads(bodies["max_tokens of 31 digits"])["max_tokens"] == 10**30


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("limit", Exchange(status=200, usage=Usage(prompt=99))),
        ("limit+1", TOO_LONG),
        ("limit+1", Exchange(status=200, headers={"x-kvops-truncated": "1"})),
        ("2x limit", Exchange(status=200, usage=Usage(truncated=100))),
        ("huge body", refused(413, ErrorClass.HTTP_413)),
        ("malformed JSON", refused(400, ErrorClass.HTTP_400_OTHER)),
        (
            "unknown field",
            refused(400, ErrorClass.HTTP_400_OTHER, message="no_such_field is unknown"),
        ),
        ("deep nesting", refused(400, ErrorClass.HTTP_400_OTHER)),
        ("answer over limit", TOO_LONG),
        ("unsupported role", refused(400, ErrorClass.HTTP_400_OTHER)),
        ("unsupported role", refused(422, ErrorClass.HTTP_4XX_OTHER)),
        ("unknown model", refused(404, ErrorClass.HTTP_404_MODEL)),
        ("unknown path", refused(404, ErrorClass.HTTP_404_OTHER)),
        ("null byte", Exchange(status=200)),
        ("null byte", refused(400, ErrorClass.HTTP_400_OTHER)),
    ],
)
def test_right_answers(name: str, answer: Exchange) -> None:
    assert case(name).judge(answer) is None


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("limit", TOO_LONG, "within the limit"),
        ("limit", Exchange(status=200, usage=Usage(prompt=98)), "counts 98 prompt tokens of 99"),
        ("limit", Exchange(status=200, usage=Usage(prompt=99, truncated=3)), "was cut"),
        ("limit+1", Exchange(status=200), "without a mark of truncation"),
        ("limit+1", refused(500, ErrorClass.HTTP_5XX_OTHER), "got HTTP 500"),
        ("limit+1", refused(400, ErrorClass.HTTP_400_OTHER), "wanted 400 context_length_exceeded"),
        ("limit+1", refused(400, ErrorClass.HTTP_400_CONTEXT_LENGTH), "limit and prompt_tokens"),
        (
            "limit+1",
            refused(400, ErrorClass.HTTP_400_CONTEXT_LENGTH, prompt_tokens=1, limit=7),
            "says limit 7",
        ),
        ("huge body", Exchange(error_class=ErrorClass.CONNECTION_RESET), "got connection_reset"),
        ("malformed JSON", Exchange(status=200), "wanted 400 or 413 or 422, got HTTP 200"),
        ("unsupported role", Exchange(status=200), "got HTTP 200"),
        ("unknown model", Exchange(status=200), "wanted 404, got HTTP 200"),
        ("null byte", refused(500, ErrorClass.HTTP_5XX_OTHER), "got HTTP 500"),
        (
            "null byte",
            Exchange(status=200, error_class=ErrorClass.STREAM_TRUNCATED),
            "wanted an answer, or 400",
        ),
        ("a million choices", Exchange(error_class=ErrorClass.FIRST_TOKEN_TIMEOUT), "first_token"),
        ("unknown field", refused(400, ErrorClass.HTTP_400_OTHER), "does not name"),
    ],
)
def test_wrong_answers_say_what_is_wrong(name: str, answer: Exchange, words: str) -> None:
    assert words in (case(name).judge(answer) or "")


VLLM = {
    "message": "This model's maximum context length is 100 tokens. However, your prompt contains at least 101",
    "type": "BadRequestError",
    "param": "input_tokens",
    "code": 400,
}


@pytest.mark.parametrize("name", ["limit+1", "2x limit", "answer over limit"])
@pytest.mark.parametrize(
    ("status", "error_class"),
    [
        (400, ErrorClass.HTTP_400_OTHER),
        (400, ErrorClass.HTTP_400_CONTEXT_LENGTH),
        (413, ErrorClass.HTTP_413),
        (422, ErrorClass.HTTP_4XX_OTHER),
    ],
)
def test_of_another_engine_any_refusal_of_a_length_is_right(
    name: str, status: int, error_class: ErrorClass
) -> None:
    theirs = injection.length_cases("m", LIMIT, seed=1, contract=False)
    judge = next(one for one in theirs if one.name == name).judge
    answer = Exchange(status=status, error_class=error_class, error=VLLM, message=VLLM["message"])  # type: ignore[arg-type]
    assert judge(answer) is None
    assert case(name).judge(answer) is not None
    assert "without a mark" in (judge(Exchange(status=200)) or "")
    assert "got HTTP 500" in (judge(refused(500, ErrorClass.HTTP_5XX_OTHER)) or "")
    assert "got HTTP 404" in (judge(refused(404, ErrorClass.HTTP_404_OTHER)) or "")


def test_another_engine_need_not_name_the_field_that_it_does_not_know() -> None:
    theirs = malformed.cases("m", contract=False)
    judge = next(one for one in theirs if one.name == "unknown field").judge
    assert judge(refused(422, ErrorClass.HTTP_4XX_OTHER)) is None
    assert "got HTTP 200" in (judge(Exchange(status=200)) or "")


def test_only_a_node_that_is_known_for_ours_is_held_to_our_words() -> None:
    assert not injection.has_contract(None)
