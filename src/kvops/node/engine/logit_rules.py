"""What a request's parameters do to its logits before a token is chosen: penalties, bias, minimum length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from kvops.node.engine.request import Request

_LEAST_REPETITION_PENALTY = 1e-5
"""float32 turns a logit over anything much smaller into infinity."""


def apply_rules(row: Tensor, request: Request, eos: frozenset[int]) -> None:
    """Change one `[vocabulary]` row in place."""
    params = request.params
    if params.repetition_penalty != 1.0:
        _penalise_repetition(row, request)
    if params.frequency_penalty or params.presence_penalty:
        _penalise_output(row, request)
    if params.logit_bias:
        row[_ids(params.logit_bias, row)] += _values(params.logit_bias.values(), row)
    if request.generated < params.min_tokens:
        row[_ids(eos | set(params.stop_token_ids), row)] = -torch.inf


def _penalise_repetition(row: Tensor, request: Request) -> None:
    """Tokens of prompt and output: positive logits divided, negative multiplied (CTRL, arXiv:1909.05858)."""
    ids = _ids(set(request.tokens), row)
    penalty = max(request.params.repetition_penalty, _LEAST_REPETITION_PENALTY)
    logits = row[ids]
    row[ids] = torch.where(logits > 0, logits / penalty, logits * penalty)


def _penalise_output(row: Tensor, request: Request) -> None:
    """Tokens of the output: minus frequency × count, minus presence (OpenAI API reference)."""
    counts = Counter(request.output)
    params = request.params
    penalties = (
        params.presence_penalty + params.frequency_penalty * count for count in counts.values()
    )
    row[_ids(counts, row)] -= _values(penalties, row)


def _ids(ids: Iterable[int], row: Tensor) -> Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=row.device)


def _values(values: Iterable[float], row: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=row.dtype, device=row.device)
