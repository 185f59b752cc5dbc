"""How the next token is chosen: filters, penalties, seeds, logprobs, and rows that are no numbers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvops.node.engine.request import Request
from kvops.node.engine.sampler import Sample, Sampler
from tests.engine.driving import submit

EOS = 3
PROBABILITIES = [0.4, 0.3, 0.15, 0.1, 0.05]


def request(
    arrival: int = 0, output: tuple[int, ...] = (), prompt: tuple[int, ...] = (0,), **params: Any
) -> Request:
    made = Request.from_submit(submit(str(arrival), prompt, max_tokens=9, **params), arrival)
    made.tokens += output
    return made


def logits(rows: int = 1) -> torch.Tensor:
    return torch.tensor([PROBABILITIES] * rows).log()


def sample(table: torch.Tensor, *requests: Request) -> list[Sample]:
    return Sampler([EOS]).sample(table, requests)


def drawn(count: int = 400, **params: Any) -> Counter[int | None]:
    params = {"temperature": 1.0} | params
    requests = [request(seed, seed=seed, **params) for seed in range(count)]
    return Counter(one.token for one in sample(logits(count), *requests))


def test_greedy() -> None:
    assert [one.token for one in sample(logits(2), request(), request())] == [0, 0]


def test_draws_follow_the_distribution() -> None:
    count = 4000
    tokens = drawn(count)
    for token, probability in enumerate(PROBABILITIES):
        spread = math.sqrt(probability * (1 - probability) / count)
        assert abs(tokens[token] / count - probability) < 5 * spread


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 1}, {0}),
        ({"top_p": 0.5}, {0, 1}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.3}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.5}, {0, 1}),
        ({"top_k": 2, "top_p": 0.57}, {0}),
        ({"top_k": 4, "min_p": 0.3}, {0, 1, 2}),
        ({"logit_bias": {0: -100.0}}, {1, 2, 3, 4}),
        ({"min_tokens": 1}, {0, 1, 2, 4}),
        ({"min_tokens": 1, "stop_token_ids": (0,)}, {1, 2, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
    ],
)
def test_filters_keep_exactly(params: dict[str, Any], kept: set[int]) -> None:
    assert set(drawn(**params)) == kept


def test_a_low_temperature_is_greedy_and_finite() -> None:
    assert set(_at(1e-30)) == {0}
    assert len(_at(1e6)) == 5


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.9, "min_p": 0.1}])
@pytest.mark.parametrize("temperature", [1e-320, 1e-46, 1e-38, 1e-6])
def test_what_float32_cannot_hold_is_greedy(temperature: float, params: dict[str, Any]) -> None:
    assert drawn(50, **params | {"temperature": temperature}).keys() == {0}


@pytest.mark.parametrize("penalty", [1e-320, 1e-46, 1e-40, 1e-30])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tiny_repetition_penalty_stays_finite(penalty: float, temperature: float) -> None:
    table = torch.tensor([[9.0, -2.0, 1.0, 0.5, -1.0]])
    (one,) = sample(table, request(repetition_penalty=penalty, temperature=temperature))
    assert one.token == 0
    assert torch.isfinite(table).all()


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 2}])
def test_a_row_that_its_rules_leave_empty_fails_alone(params: dict[str, Any]) -> None:
    empty = request(min_tokens=5, stop_token_ids=(0, 1, 2, 4), **params)
    spoilt, good = sample(logits(2), empty, request(**params, seed=1))
    assert spoilt == Sample(None)
    assert good.token is not None


def _at(temperature: float) -> Counter[int | None]:
    requests = [request(seed, temperature=temperature, seed=seed) for seed in range(300)]
    return Counter(one.token for one in sample(logits(300), *requests))


def test_penalties() -> None:
    one = request(output=(0, 0, 1), frequency_penalty=0.5, presence_penalty=0.25, logprobs=5)
    table = logits()
    result = sample(table, one)[0]
    expected = torch.tensor(PROBABILITIES).log() - torch.tensor([1.25, 0.75, 0, 0, 0])
    torch.testing.assert_close(table[0], expected)
    assert result.logprobs is not None
    raw = dict(result.logprobs.top)
    assert raw[0] == pytest.approx(math.log(0.4), abs=1e-5), "logprobs are of the raw distribution"


def test_repetition_covers_the_prompt_and_both_signs() -> None:
    table = torch.tensor([[2.0, -2.0, 1.0, 0.5, -1.0]])
    sample(table, request(prompt=(0,), output=(1,), repetition_penalty=2.0))
    assert table[0].tolist() == [1.0, -4.0, 1.0, 0.5, -1.0]


def test_logprobs() -> None:
    none, chosen, two = sample(logits(3), request(), request(logprobs=0), request(logprobs=2))
    assert none.logprobs is None
    assert chosen.logprobs is not None
    assert chosen.logprobs.logprob == pytest.approx(math.log(0.4), abs=1e-5)
    assert chosen.logprobs.top == ()
    assert two.logprobs is not None
    assert [token for token, _ in two.logprobs.top] == [0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_row_fails_alone(bad: float) -> None:
    table = logits(3)
    table[1, 2] = bad
    rows = [request(), request(temperature=1.0, logprobs=1), request(temperature=1.0, top_k=2)]
    good, spoilt, other = sample(table, *rows)
    assert good.token == 0
    assert spoilt == Sample(None)
    assert other.token in (0, 1)


def test_stops() -> None:
    sampler = Sampler([EOS])
    assert sampler.stops(request(ignore_eos=False), EOS)
    assert not sampler.stops(request(ignore_eos=True), EOS)
    assert sampler.stops(request(stop_token_ids=(1,)), 1)


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.7, 1.5]),
        "top_k": st.sampled_from([0, 1, 40, 700]),
        "top_p": st.sampled_from([1.0, 0.9, 0.3]),
        "min_p": st.sampled_from([0.0, 0.05]),
        "seed": st.integers(-(2**63), 2**64),
        "frequency_penalty": st.sampled_from([0.0, 1.0]),
    }
)


@settings(max_examples=25, deadline=None)
@given(st.lists(PARAMS, min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_the_same_alone_and_in_a_batch(params: list[dict[str, Any]], noise: int) -> None:
    table = torch.randn(len(params), 3000, generator=torch.Generator().manual_seed(noise)) * 3
    requests = [request(i, (1, 2, 2), **one) for i, one in enumerate(params)]
    together = [one.token for one in sample(table.clone(), *requests)]
    alone = [sample(table[i : i + 1].clone(), one)[0].token for i, one in enumerate(requests)]
    assert together == alone


def test_noise_differs_by_seed_and_position() -> None:
    rows = [
        request(i, tuple(range(n)), temperature=1.0, seed=s)
        for i, (n, s) in enumerate([(0, 1), (1, 1), (0, 2)])
    ]
    flat = torch.zeros(3, 100_000)
    assert len({one.token for one in sample(flat, *rows)}) == 3


def test_a_request_without_a_seed_gets_its_own() -> None:
    assert request(temperature=1.0).seed != request(temperature=1.0).seed
