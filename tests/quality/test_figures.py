"""Perplexity, its cost and the verdict over them, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvops.models.evaluation import Evaluation, find, format_cost
from kvops.quality.figures import agreement, cost, perplexity


def made(perplexity: float = 10.0, margin: float = 0.002, **changed: Any) -> Evaluation:
    """int8 weights with bfloat16 KV on a CPU, against a reference of 10."""
    fields: dict[str, Any] = {
        "weights": "int8",
        "kv": "bfloat16",
        "device": "cpu",
        "perplexity": perplexity,
        "reference_perplexity": 10.0,
        "margin": margin,
        "top1_agreement": 0.97,
        "tokens": 4096,
        "needles": 15,
        "recalled": 15,
        "reference_recalled": 15,
        "corpus": "a text",
        "corpus_sha256": "c" * 64,
        "files_sha256": "f" * 64,
        "evaluated_at": 1.0,
        "kvops_version": "0",
    }
    return Evaluation(**(fields | changed))


def test_perplexity_is_the_inverse_geometric_mean_of_the_probabilities() -> None:
    losses = [-math.log(p) for p in (1 / 2, 1 / 4, 1 / 8)]
    assert perplexity(losses) == pytest.approx((2 * 4 * 8) ** (1 / 3))


def test_cost_is_of_pairs() -> None:
    reference = [1.0, 2.0, 5.0, 8.0]
    found = cost([1.1, 2.3, 5.1, 8.3], reference)
    assert found.perplexity / found.reference == pytest.approx(math.exp(0.2))
    # Differences .1 .3 .1 .3: their deviation is sqrt(.04 / 3), of which the mean of four has half.
    assert found.margin == pytest.approx(2 * math.sqrt(0.04 / 3) / 2 * math.exp(0.2))
    same = cost(reference, reference)
    assert (same.perplexity, same.margin) == (same.reference, 0.0)


def test_what_makes_a_text_hard_is_no_doubt_about_the_cost() -> None:
    reference = [0.0, 10.0] * 50
    assert cost([loss + 0.01 for loss in reference], reference).margin == pytest.approx(0, abs=1e-9)


def test_agreement_counts_places() -> None:
    assert agreement([1, 2, 3, 4], [1, 2, 4, 3]) == 0.5
    with pytest.raises(ValueError, match="zip"):
        agreement([1, 2], [1])


@pytest.mark.parametrize(
    ("perplexity", "margin", "verdict"),
    [
        (10.05, 0.002, "within"),
        (9.9, 0.002, "within"),
        (10.2, 0.002, "over"),
        (10.05, 0.02, "inconclusive"),
        (10.2, 0.02, "inconclusive"),
        (10.11, 0.002, "inconclusive"),
    ],
)
def test_the_verdict_leaves_out_what_it_cannot_tell(
    perplexity: float, margin: float, verdict: str
) -> None:
    assert made(perplexity, margin).verdict == verdict


def test_float32_is_exact_and_only_with_its_own_kv() -> None:
    assert made(weights="float32", kv="float32").verdict == "exact"
    assert made(weights="float32", kv="int8").verdict == "within"


def test_the_summary_is_what_a_start_cites() -> None:
    assert made(10.02).summary == "+0.20 % perplexity on 4 096 tokens"
    assert [format_cost(cost) for cost in (0.00001, -0.00001, -0.002)] == [
        "0.00 %",
        "0.00 %",
        "-0.20 %",
    ]


def test_found_by_formats_and_kind_of_device() -> None:
    known = [made(), made(device="cuda"), made(kv="int8")]
    assert find(known, "int8", "bfloat16", "cuda:1") is known[1]
    assert find(known, "int8", "int8", "cpu") is known[2]
    assert find(known, "bfloat16", "bfloat16", "cpu") is None
