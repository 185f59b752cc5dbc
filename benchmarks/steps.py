"""An engine in this process, for what a clock outside could not tell apart."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.ceilings import best
from kvops.models.checkpoint import open_checkpoint
from kvops.node.engine.cpu.decoder import block_bytes
from kvops.node.engine.engine import Engine
from kvops.node.sampling import SamplingParams
from kvops.node.wire import PoolPlan, Start, Submit

_POOL = PoolPlan(block_size=16, bytes=2**29, prefix_caching=False)


class Bench:
    def __init__(self, model: Path) -> None:
        self._spec = open_checkpoint(model).spec
        self._numbers = iter(range(10**9))
        start = Start(
            model_path=str(model), model_name="", revision="", max_context_length=None,
            weights_dtype="auto", pool=_POOL, max_batch_size=64, max_batched_tokens=1024, threads=None,
        )  # fmt: skip
        self._engine = Engine.load(start, lambda phase, detail: None)

    def decode_seconds(self, running: int, context: int) -> float:
        """Of a step in which `running` requests get one token each; median of 40."""
        self._begin(running, context)
        seconds = [self._timed(self._engine.step) for _ in range(40)]
        self._end()
        return statistics.median(seconds)

    def prefill_seconds(self, tokens: int) -> float:
        """From a prompt to its first token; the best of 4."""

        def once() -> None:
            self._add(tokens, 1)
            while self._engine.has_work():
                self._engine.step()

        return best(once, 4)

    def preparation_seconds(self, running: int) -> float:
        """Of a decode step, what is neither kernels nor sampling; median of 40."""
        runner: Any = self._engine._runner
        spent = [0.0]
        run, sample = runner.model._team.run, runner.sampler.sample
        runner.model._team.run = _counted(run, spent)
        runner.sampler.sample = _counted(sample, spent)
        self._begin(running, 150)
        seconds = []
        for _ in range(40):
            spent[0] = 0.0
            seconds.append(self._timed(self._engine.step) - spent[0])
        runner.model._team.run, runner.sampler.sample = run, sample
        self._end()
        return statistics.median(seconds)

    def bytes_per_step(self, context: int) -> int:
        """What a decode step must read: all weights once, and the keys and values of the context."""
        weights = self._engine.stats().memory.weights
        per_token = self._engine.info.bytes_per_block // self._engine.info.block_size
        return weights + context * per_token

    def tokens_held_ratio(self) -> float:
        return block_bytes(self._spec, 16, "float32") / block_bytes(self._spec, 16, "int8")

    def _begin(self, running: int, context: int) -> None:
        for _ in range(running):
            self._add(context, 100)
        while any(row.state != "decode" for row in self._engine.stats().requests):
            self._engine.step()
        self._engine.step()

    def _end(self) -> None:
        for row in self._engine.stats().requests:
            self._engine.cancel(row.request_id)
        while self._engine.has_work():
            self._engine.step()

    def _add(self, tokens: int, new: int) -> None:
        number = next(self._numbers)
        prompt = tuple((number * 7919 + i * 31) % self._spec.vocab_size for i in range(tokens))
        params = SamplingParams(max_tokens=new, temperature=0, ignore_eos=True)
        self._engine.add(
            Submit(
                request_id=str(number),
                prompt_token_ids=prompt,
                params=params,
                tenant="bench",
                salt=b"",
            )
        )

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun


def _counted(work: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return work(*arguments)
        finally:
            spent[0] += time.perf_counter() - begun

    return counted
