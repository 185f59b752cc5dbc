"""What rounded weights and KV cost a model in quality, against the same model in float32: measured, never assumed.

A record holds nothing of the machine that measured it but the kind of device whose kernels computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kvops.units import format_whole

MOST_COST = 0.01
"""Perplexity that a default may cost, as a share of float32's."""

Verdict = Literal["exact", "within", "over", "inconclusive"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    weights: str
    kv: str
    device: str
    """`cpu` or `cuda`."""
    perplexity: float
    reference_perplexity: float
    """Of float32 weights with float32 KV, on the same tokens."""
    margin: float
    """Two standard errors of `cost`, from the paired losses of each token."""
    top1_agreement: float
    """Share of tokens after which both find the same next one likeliest."""
    tokens: int
    """Predicted tokens."""
    needles: int
    """Asked over all lengths and depths; 0 where the context has no room for one."""
    recalled: int
    reference_recalled: int
    corpus: str
    corpus_sha256: str
    files_sha256: str
    """`Manifest.digest` of the files that were evaluated."""
    evaluated_at: float
    """Unix seconds."""
    kvops_version: str

    @property
    def cost(self) -> float:
        """Perplexity over the reference's, less 1."""
        return self.perplexity / self.reference_perplexity - 1

    @property
    def verdict(self) -> Verdict:
        """`inconclusive`: on so few tokens the bound lies within the margin."""
        if is_exact(self.weights, self.kv):
            return "exact"
        if self.cost + self.margin <= MOST_COST:
            return "within"
        return "over" if self.cost - self.margin > MOST_COST else "inconclusive"

    @property
    def summary(self) -> str:
        """`+0.04 % perplexity on 4 096 tokens`."""
        return f"{format_cost(self.cost)} perplexity on {format_whole(self.tokens)} tokens"


def is_exact(weights: str, kv: str) -> bool:
    """float32 throughout is what all else is held against."""
    return (weights, kv) == ("float32", "float32")


def format_cost(cost: float) -> str:
    """`+0.04 %`; what rounds to nothing has no sign."""
    percent = f"{cost * 100:+.2f}"
    return f"{percent[1:] if float(percent) == 0 else percent} %"


def find(
    evaluations: Iterable[Evaluation], weights: str, kv: str, device: str
) -> Evaluation | None:
    """`device`: `cpu`, `cuda`, or with a number as in `cuda:0`."""
    wanted = (weights, kv, device.partition(":")[0])
    return next((one for one in evaluations if (one.weights, one.kv, one.device) == wanted), None)
