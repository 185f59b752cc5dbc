"""What `auto` becomes once evaluations are known: the first choice unless it costs too much, then the next that is
known to cost less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec
import torch

from kvops.errors import ConfigError
from kvops.models.evaluation import Evaluation, find, format_cost, is_exact
from kvops.models.spec import ModelSpec
from kvops.node.engine.formats import Formats, choose
from kvops.node.wire import Start

_FINER = {
    "int8": ("int8", "bfloat16", "float32"),
    "fp8": ("fp8", "bfloat16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float32": ("float32",),
}
"""Each format, then those that round less."""


def settle(start: Start, spec: ModelSpec, device: torch.device) -> Formats:
    """As `choose`, where `auto` follows what was evaluated. Raises ConfigError."""
    first = choose(start, spec, device)
    if "auto" not in (start.weights_dtype, start.pool.dtype) or is_exact(first.weights, first.kv):
        return first
    known = find(start.evaluations, first.weights, first.kv, device.type)
    if known is None or known.verdict != "over":
        return replace(first, reason=_with_evidence(first.reason, known))
    return _finer(start, spec, device, first, known)


def _with_evidence(reason: str, known: Evaluation | None) -> str:
    if not reason:
        return ""
    if known is None:
        return f"{reason}, not evaluated for this model"
    doubt = "" if known.verdict == "within" else f", {known.verdict}"
    return f"{reason}, evaluated {known.summary}{doubt}"


def _finer(
    start: Start, spec: ModelSpec, device: torch.device, first: Formats, known: Evaluation
) -> Formats:
    """The next that an evaluation says is good enough, or that is exact; without either the one that rounds least."""
    dear = f"auto: {first.weights} with {first.kv} KV costs {format_cost(known.cost)} perplexity"
    last = first
    for last in _candidates(start, spec, device, first):
        if is_exact(last.weights, last.kv):
            return replace(last, reason=f"{dear}, float32 is exact")
        better = find(start.evaluations, last.weights, last.kv, device.type)
        if better is not None and better.verdict == "within":
            return replace(last, reason=f"{dear}, this {better.summary}")
    return replace(last, reason=f"{dear}, nothing finer that may be used was evaluated")


def _candidates(
    start: Start, spec: ModelSpec, device: torch.device, first: Formats
) -> Iterator[Formats]:
    """What this machine computes and the settings allow beyond the first choice, coarse to fine."""
    weights = _FINER[first.weights] if start.weights_dtype == "auto" else (first.weights,)
    kvs = _FINER[first.kv] if start.pool.dtype == "auto" else (first.kv,)
    for weight in weights:
        for kv in kvs:
            if (weight, kv) == (first.weights, first.kv):
                continue
            pool = msgspec.structs.replace(start.pool, dtype=kv)
            asked = msgspec.structs.replace(start, weights_dtype=weight, pool=pool)
            try:
                yield choose(asked, spec, device)
            except ConfigError:
                continue
