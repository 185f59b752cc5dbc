"""From logits to the next token of each request.

Noise is a function of (seed, tokens generated so far) alone, so a seeded request gets the same output alone,
in any batch and after a preemption. A row that is no distribution, before or after its rules, fails alone: never
a token is made of it. Logprobs are of the raw distribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvops import failpoints
from kvops.node.engine.logit_rules import apply_rules
from kvops.node.engine.request import Request
from kvops.node.sampling import SamplingParams
from kvops.node.wire import TokenLogprobs

_FIRST_CANDIDATES = 256
"""Tokens ranked at first for top-k and top-p: sorting a whole vocabulary costs 20 times as much."""
_LEAST_TOP_P = 1e-9
_LEAST_TEMPERATURE = 1e-5
"""Greedy below: float32 cannot tell such a quotient from infinity."""
_NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Sample:
    token: int | None
    """None if the row held no finite logits: its request ends with an error."""
    logprobs: TokenLogprobs | None = None


class Sampler:
    def __init__(self, eos_token_ids: Iterable[int]) -> None:
        self._eos = frozenset(eos_token_ids)

    def stops(self, request: Request, token: int) -> bool:
        """Does `token` end the request, as end of sequence or by its stop ids?"""
        params = request.params
        return token in params.stop_token_ids or (token in self._eos and not params.ignore_eos)

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[Sample]:
        """One sample a row of `[R, vocabulary]` float32 logits, which this may overwrite."""
        if failpoints.reach("engine.logits.nan"):
            logits.fill_(torch.nan)
        finite = _has_numbers(logits)
        raw = _raw_logprobs(logits, requests)
        for row, request in enumerate(requests):
            apply_rules(logits[row], request, self._eos)
        usable = (finite & _has_numbers(logits)).tolist()
        tokens = _choose(logits, requests)
        return [
            _sample(token if usable[row] else _NO_TOKEN, raw.get(row), requests[row].params)
            for row, token in enumerate(tokens)
        ]


def _sample(token: int, raw: Tensor | None, params: SamplingParams) -> Sample:
    if token == _NO_TOKEN:
        return Sample(None)
    return Sample(token, None if raw is None else _report(raw, token, params))


def _has_numbers(logits: Tensor) -> Tensor:
    """[R]: no NaN, nothing infinitely likely, and something that is possible."""
    return torch.isfinite(logits.amax(dim=-1))


def _raw_logprobs(logits: Tensor, requests: Sequence[Request]) -> dict[int, Tensor]:
    wanted = [row for row, request in enumerate(requests) if request.params.logprobs is not None]
    return {row: logits[row].log_softmax(dim=-1) for row in wanted}


def _report(logprobs: Tensor, token: int, params: SamplingParams) -> TokenLogprobs:
    values, ids = logprobs.topk(min(params.logprobs or 0, logprobs.shape[0]))
    return TokenLogprobs(
        float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True))
    )


def _choose(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """Greedy rows by one argmax, the others in at most two draws."""
    greedy = [row for row, request in enumerate(requests) if _is_greedy(request.params)]
    if len(greedy) == len(requests):
        return _ints(logits.argmax(dim=-1))
    ranked = [row for row, request in enumerate(requests) if _is_ranked(request.params)]
    others = sorted(set(range(len(requests))) - set(greedy) - set(ranked))
    tokens: dict[int, int] = {}
    for rows, pick in ((greedy, _greedy), (ranked, _draw_ranked), (others, _draw_whole)):
        if rows:
            tokens |= zip(rows, pick(logits[rows], [requests[row] for row in rows]), strict=True)
    return [tokens[row] for row in range(len(requests))]


def _is_greedy(params: SamplingParams) -> bool:
    return params.temperature < _LEAST_TEMPERATURE


def _is_ranked(params: SamplingParams) -> bool:
    return not _is_greedy(params) and (params.top_k > 0 or params.top_p < 1)


def _greedy(logits: Tensor, _: Sequence[Request]) -> list[int]:
    return _ints(logits.argmax(dim=-1))


def _draw_whole(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """No top-k and no top-p: every token is a candidate, in order of its id."""
    probabilities = _probabilities(logits, requests)
    return _ints(_invert(_apply_min_p(probabilities, requests), requests))


def _draw_ranked(logits: Tensor, requests: Sequence[Request]) -> list[int]:
    """Candidates likeliest first, top-k, then top-p of what is left, then min-p (the order of vLLM and HF)."""
    ranked, ids = _rank(_probabilities(logits, requests), requests)
    kept = _apply_top_p(_apply_top_k(ranked, requests), requests)
    chosen = _invert(_apply_min_p(kept, requests), requests)
    tokens = ids.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
    return _ints(tokens.where(chosen != _NO_TOKEN, _NO_TOKEN))


def _apply_top_k(ranked: Tensor, requests: Sequence[Request]) -> Tensor:
    """Rows with a top-k are cut and add up to 1 again; the others stay shares of the whole vocabulary."""
    top_k = _column([request.params.top_k for request in requests], ranked)
    kept = torch.where(torch.arange(ranked.shape[1], device=ranked.device) < top_k, ranked, 0)
    return torch.where(top_k > 0, kept / kept.sum(dim=-1, keepdim=True), ranked)


def _apply_top_p(ranked: Tensor, requests: Sequence[Request]) -> Tensor:
    """The likeliest candidates that together reach top-p; at least one."""
    top_p = _column([max(request.params.top_p, _LEAST_TOP_P) for request in requests], ranked)
    before = ranked.cumsum(dim=-1) - ranked
    return torch.where(before < top_p, ranked, 0)


def _rank(probabilities: Tensor, requests: Sequence[Request]) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of each row, as many as every row's top-k and top-p can keep."""
    vocabulary = probabilities.shape[1]
    count = min(_FIRST_CANDIDATES, vocabulary)
    while True:
        ranked, ids = probabilities.topk(count)
        mass = ranked.sum(dim=-1).tolist()
        if count == vocabulary or all(map(_is_enough, requests, mass, [count] * len(mass))):
            return ranked, ids
        count = min(count * 8, vocabulary)


def _is_enough(request: Request, mass: float, count: int) -> bool:
    params = request.params
    return 0 < params.top_k <= count or (params.top_k == 0 and mass >= params.top_p)


def _probabilities(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    # The maximum is taken off first: at a tiny temperature the quotients would overflow.
    above = logits - logits.amax(dim=-1, keepdim=True)
    temperature = _column([request.params.temperature for request in requests], logits)
    return (above / temperature).softmax(dim=-1)


def _apply_min_p(probabilities: Tensor, requests: Sequence[Request]) -> Tensor:
    least = _column([request.params.min_p for request in requests], probabilities)
    return probabilities * (probabilities >= least * probabilities.amax(dim=-1, keepdim=True))


def _invert(weights: Tensor, requests: Sequence[Request]) -> Tensor:
    """[R] columns: where each row's running sum of weights passes its noise; _NO_TOKEN for a row without weight."""
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    noise = torch.tensor(
        [[_noise(request)] for request in requests], dtype=torch.float64, device=weights.device
    )
    total = cumulative[:, -1]
    index = torch.searchsorted(cumulative, noise * total.unsqueeze(1), right=True).squeeze(1)
    chosen = index.clamp(max=weights.shape[1] - 1)
    return chosen.where(torch.isfinite(total) & (total > 0), _NO_TOKEN)


def _noise(request: Request) -> float:
    """Uniform in [0, 1), 53 bits."""
    key = f"{request.seed}:{request.generated}".encode()
    return (int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 11) / 2**53


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _ints(tensor: Tensor) -> list[int]:
    numbers: list[int] = tensor.tolist()
    return numbers
