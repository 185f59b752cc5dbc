"""What the session of a run makes of one request, without a locust around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kvops.load import runs
from kvops.load.endpoint import discover
from kvops.load.exchange import Exchange
from kvops.load.locust_session import Call, Judge, Outcome, Session
from kvops.load.records import ClientSample, ErrorClass, RequestRecord
from tests.load.scripted import LIMIT, Reply, Request, node, serving


class Kept:
    """A sink that only keeps."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def record(self, record: RequestRecord) -> None:
        self.records.append(record)

    def sample(self, sample: ClientSample) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


def right(_: Exchange) -> Outcome:
    return Outcome()


def sent(url: str, judge: Judge, times: int = 1) -> list[RequestRecord]:
    kept, environment = Kept(), mock.MagicMock()
    info = runs.RunInfo(
        run="r", scenario="s", report="plain", options={}, users=1, seed=0, target=url, started_at=0.0,
    )  # fmt: skip
    endpoint = discover(url, "k3y")
    session = Session(info, environment, endpoint, kept, lambda *_: None)
    call = Call(name="one", user=0, judge=judge, asked_output=4)
    body = {"messages": [{"content": "is it 17?"}]}
    for _ in range(times):
        session.send(endpoint.client, "/v1/chat/completions", body, call)
    return kept.records


def counting(prompt: int, completion: int, **more: Any) -> Any:
    def respond(request: Request, reply: Reply) -> None:
        if request.path != "/v1/chat/completions":
            return node(request, reply)
        reply.stream()
        reply.content("17")
        reply.usage(prompt, completion, **more)
        return reply.done()

    return respond


@pytest.mark.parametrize(
    "counts",
    [
        SimpleNamespace(prompt=3, completion=5, more={}),
        SimpleNamespace(prompt=LIMIT, completion=1, more={}),
        SimpleNamespace(
            prompt=3, completion=1, more={"prompt_tokens_details": {"cached_tokens": 4}}
        ),
    ],
    ids=["over what was asked", "over the limit", "more cached than sent"],
)
def test_counts_that_cannot_be_are_no_numbers_of_a_run(counts: Any) -> None:
    with serving(counting(counts.prompt, counts.completion, **counts.more)) as server:
        (one,) = sent(server.url, right)
    assert (one.error_class, one.expected) == (ErrorClass.LENGTH_MISMATCH, False)
    assert (one.prompt_tokens, one.completion_tokens, one.cached_tokens) == (None, None, None)


def test_counts_within_all_bounds_are_kept() -> None:
    with serving(counting(LIMIT - 4, 4)) as server:
        (one,) = sent(server.url, right)
    assert (one.expected, one.prompt_tokens, one.completion_tokens) == (True, LIMIT - 4, 4)


def test_a_failure_that_the_scenario_found_keeps_its_own_class() -> None:
    wrong = Outcome(error_class=ErrorClass.WRONG_ANSWER, message="it is 18")
    with serving(counting(3, 5)) as server:
        (one,) = sent(server.url, lambda _: wrong)
    assert (one.error_class, one.completion_tokens) == (ErrorClass.WRONG_ANSWER, None)


def test_no_words_of_a_judge_bring_a_credential_into_a_record() -> None:
    wrong = Outcome(error_class=ErrorClass.WRONG_ANSWER, message="got k3y")
    with serving(node) as server:
        (one,) = sent(server.url, lambda _: wrong)
    assert one.error == "its words repeat a credential and are left out"
