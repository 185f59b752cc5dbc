"""Whatever a node says in place of a number or an object, no check breaks on it: each says what it saw."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from kvops.telemetry import prometheus
from kvops.telemetry.targets import Target
from kvops.verify import api
from kvops.verify.check import Outcome, Parameters
from kvops.verify.checks.metrics import histogram_faults
from kvops.verify.context import Context
from kvops.verify.judge import status_and_code, usage_faults
from kvops.verify.profile import load_profile
from kvops.verify.prompts import CannotFit, PromptFitter
from tests.verify import made
from tests.verify.foreign import Foreign, foreign
from tests.verify.test_foreign import ask, just

COUNTING = (
    "reach.",
    "resp.near_limit",
    "resp.over_length",
    "resp.short",
    "resp.usage",
    "resp.stream",
    "disconnect.frees",
    "perf.ttft_by_length",
)
NONSENSE: dict[str, Any] = {
    "missing": None,
    "constant": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    "truth": {"prompt_tokens": True, "completion_tokens": True, "total_tokens": True},
    "text": {"prompt_tokens": "7", "completion_tokens": "1", "total_tokens": "8"},
    "negative": {"prompt_tokens": -7, "completion_tokens": -1, "total_tokens": -8},
    "endless": {"prompt_tokens": 2**62, "completion_tokens": 2**62, "total_tokens": 2**63},
    "fractions": {"prompt_tokens": 7.5, "completion_tokens": 1e300, "total_tokens": 7.5},
    "list": [1, 2, 3],
    "nested": {"prompt_tokens": {"a": 1}, "completion_tokens": [], "total_tokens": {}},
}


@pytest.fixture(params=NONSENSE)
def nonsense(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the node says that it used; nobody else's counts are there to ask for."""
    said = NONSENSE[request.param]
    monkeypatch.setattr("tests.verify.foreign._usage", lambda prompt, completion: said)
    return str(request.param)


def test_a_node_that_cannot_count_leaves_open_what_needs_counts(nonsense: str) -> None:
    with foreign() as node:
        found = ask(node, load_profile("golive"), COUNTING)
    assert not {i: c.observed for i, c in found.items() if c.verdict == "error"}
    for name in ("resp.near_limit", "resp.over_length"):
        assert found[name].verdict == "inconclusive", found[name]
        assert "count" in str(found[name].observed)
        assert "resp.usage" in found[name].remedy
    assert found["resp.usage"].verdict == "fail", "the check whose matter it is"
    assert "count" in str(found["resp.usage"].observed)


def test_a_node_that_is_busy_while_prompts_are_counted_is_not_said_to_count_nothing() -> None:
    with foreign() as node:
        node.places = 0
        found = ask(node, just("resp.near_limit"))["resp.near_limit"]
    assert found.verdict == "inconclusive"
    assert "answered 503" in str(found.observed)
    assert "idle node" in found.remedy


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        (lambda words: words, None),
        (lambda words: 5, "counts 5 tokens for 32 words and 5 for 96"),
        (lambda words: 1 + words // 90, "counts 1 tokens for 32 words and 2 for 96"),
        (lambda words: 1000 - words, "counts"),
        (lambda words: words * 1000, "no prompt fits into 100 tokens"),
        (lambda words: words if words in (32, 96) else 10**6, "could be fitted"),
        (lambda words: 2**31 + 1, "counts nothing"),
        (lambda words: True, "counts nothing"),
    ],
)
def test_a_prompt_is_fitted_or_it_is_said_why_not(
    counts: Any, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(path: str, body: dict[str, Any]) -> api.Reply:
        count = counts(body["prompt"].count(" one"))
        usage = {"usage": {"prompt_tokens": count}}
        told = {"count": count} if path == "/v1/tokenize" else usage
        return api.Reply(status=200, headers={}, text="", body=told, seconds=0.0)

    node = api.Api(Target(name="n", url="http://127.0.0.1:9"))
    monkeypatch.setattr(node, "post", post)
    fitting = PromptFitter(node, "words").fit(100)
    if says is None:
        assert asyncio.run(fitting).tokens == 100
        return
    with pytest.raises(CannotFit, match=says):
        asyncio.run(fitting)


def test_what_cannot_be_fitted_leaves_any_check_open() -> None:
    async def body(context: Context, parameters: Parameters) -> Outcome:
        await context.prompts.fit(100)
        raise AssertionError

    (found,) = made.run(made.planned("a.check", body)).checks
    assert (found.verdict, found.expected) == ("inconclusive", "a result")
    assert found.remedy
    assert "the check itself broke" not in found.remedy


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"choices":[{"text":"\\ud800"}]}', "half a surrogate pair"),
        (b'{"usage":{"prompt_tokens":1e999}}', "cannot be read"),
        (b'{"choices":[', "cannot be read, at character 12"),
        (b"[" * 100_000, "nested too deep"),
        (b"[1]", "no object"),
        (b"{}", "is empty"),
        (b" ", "its body is empty"),
        (b"\xff\xfe<html>", "cannot be read"),
        (b"1" * 5000, "cannot be read"),
    ],
)
def test_an_answer_that_cannot_be_read_is_said_to_be_that(
    body: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: Foreign, request: Any) -> Response:
        return Response(body, media_type="application/json")

    monkeypatch.setattr(Foreign, "completions", broken)
    with foreign() as node:
        found = ask(node, just("reach.health"))["reach.health"]
    assert found.verdict == "fail"
    assert says in str(found.observed)
    assert "<html>" not in str(found.observed)
    assert ("before the node change or cut it" in found.remedy) == body.startswith(b"{")


@pytest.mark.parametrize("limit", [True, 2**62, -1, "512", 1.5, [512], {"a": 1}])
def test_a_limit_that_is_none_is_not_believed(
    limit: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def models(self: Foreign, request: Any) -> Response:
        return JSONResponse({"data": [{"id": "words", "owned_by": "vllm", "max_model_len": limit}]})

    monkeypatch.setattr(Foreign, "models", models)
    with foreign() as node:
        found = ask(node, load_profile("golive"), ("reach.health", "resp.near_limit"))
    verdicts = {name: found[name].verdict for name in ("reach.health", "resp.near_limit")}
    assert verdicts == {"reach.health": "warn", "resp.near_limit": "skip"}


def test_a_count_that_no_node_can_have_is_a_fault_of_usage() -> None:
    for name, said in NONSENSE.items():
        if isinstance(said, dict) and name != "constant":
            assert usage_faults(said, 16), name


def test_a_word_of_the_node_is_repeated_in_part_alone() -> None:
    reply = api.Reply(
        status=400, headers={}, text="", body={"error": {"code": "x" * 10_000}}, seconds=0.0
    )
    assert len(status_and_code(reply)) < 100


def test_a_bucket_without_a_bound_is_a_fault() -> None:
    page = prometheus.parse('# TYPE a histogram\na_bucket{le="wide"} 1\na_count 1\na_sum 1\n')
    assert histogram_faults(page, "a")
