"""Drives an engine from a test: load, submit, step until idle, collect what came out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvops.node.engine.engine import Engine
from kvops.node.sampling import SamplingParams
from kvops.node.wire import PoolPlan, Start, Submit, TokenDelta, TokenLogprobs


def start(path: Path, *, pool: PoolPlan | None = None, **settings: Any) -> Start:
    defaults: dict[str, Any] = {
        "max_context_length": None,
        "weights_dtype": "float32",
        "max_batch_size": 16,
        "max_batched_tokens": 256,
        "threads": 1,
    }
    pool = pool or PoolPlan(block_size=16, blocks=256)
    return Start(
        model_path=str(path), model_name=path.name, revision="", pool=pool, **(defaults | settings)
    )


def load(path: Path, **settings: Any) -> Engine:
    return Engine.load(start(path, **settings), lambda phase, detail: None)


def small_pool(blocks: int, **settings: Any) -> PoolPlan:
    return PoolPlan(block_size=16, blocks=blocks, **settings)


def submit(
    request_id: str,
    prompt: Sequence[int],
    *,
    max_tokens: int = 16,
    tenant: str = "a",
    salt: bytes = b"salt-a",
    priority: Any = "normal",
    leader: str | None = None,
    **params: Any,
) -> Submit:
    """Greedy and deaf to end-of-sequence, unless `params` say otherwise."""
    chosen: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True} | params
    return Submit(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(max_tokens=max_tokens, **chosen),
        tenant=tenant,
        salt=salt,
        priority=priority,
        leader=leader,
    )


@dataclass
class Result:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    ends: list[TokenDelta] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def finish(self) -> str:
        assert len(self.ends) == 1
        return str(self.ends[0].finish)

    def take(self, delta: TokenDelta) -> None:
        self.tokens += delta.token_ids
        self.logprobs += delta.logprobs
        self.cached_tokens += delta.cached_tokens
        if delta.finish is not None:
            self.ends.append(delta)


def collect(engine: Engine, results: dict[str, Result]) -> None:
    """One step."""
    for delta in engine.step().deltas:
        results.setdefault(delta.request_id, Result()).take(delta)


def drain(engine: Engine) -> dict[str, Result]:
    """Step until nothing is left to do, with the pool's invariants checked on the way."""
    results: dict[str, Result] = {}
    for count in range(100_000):
        if not engine.has_work():
            assert engine.check() == []
            return results
        collect(engine, results)
        if count % 16 == 0:
            assert engine.check() == []
    raise AssertionError("the engine does not come to an end")


def outputs(engine: Engine, submits: Iterable[Submit]) -> dict[str, list[int]]:
    for request in submits:
        engine.add(request)
    return {request_id: result.tokens for request_id, result in drain(engine).items()}
