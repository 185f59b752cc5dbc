"""Tokens of an answer by the model's own tokenizer, beside what the server's usage says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.load import counting
from kvops.models.pull import pull
from kvops.models.sources import parse_source
from kvops.models.tokenizer import load_tokenizer


class Silent:
    def step(self, what: str, total: int | None) -> None: ...

    def advance(self, done: int) -> None: ...


def test_the_store_counts_for_the_very_weights_and_no_others(
    kvops_home: Path, tiny_model: Path
) -> None:
    manifest, _ = pull(parse_source(str(tiny_model), link=True), Silent(), name="tiny")
    counter = counting.of_revision(manifest.revision)
    assert counter is not None
    text = "the quick brown fox"
    assert counter.count(text) == len(load_tokenizer(tiny_model).encode(text, special=False))
    assert counting.of_revision("000000000000") is None
    assert counting.counter(None) is None


def test_counting_takes_a_bounded_share_of_the_time(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which each look costs a millisecond: each count takes one, and 1 % of the time allows it."""
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr(counting.time, "perf_counter", clock)
    counter = counting.Counter(load_tokenizer(tiny_model))
    counted = [counter.count("a word") is not None for _ in range(10_000)]
    assert counted[0]
    assert sum(counted) / now[0] == pytest.approx(10, rel=0.05), "1 ms each, ten a second are 1 %"
    assert counted.index(True, 5000) - 5000 < 200, "spread over the whole run"
    now[0] += 1e6
    assert counter.count("x" * (counting.MAX_TEXT + 1)) is None
    assert counter.count("a word") is not None
