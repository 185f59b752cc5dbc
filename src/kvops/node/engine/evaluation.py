"""Measures a model in one pair of formats after another: what it predicts in a text, and what it answers.

`python -m kvops.node.engine.evaluation` reads a line, an `Assignment`, and writes messages (`kvops.node.evaluation`)
as long as its stdin is open. The text is read in chunks through the paged pool, so every prediction rests on keys and
values as the pool keeps them.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import torch
from torch.nn import functional

from kvops.errors import ConfigError, KvopsError, ModelError
from kvops.models.checkpoint import open_checkpoint
from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.engine import Engine
from kvops.node.engine.loading import device_of, load
from kvops.node.engine.preference import settle
from kvops.node.engine.runner import Model
from kvops.node.evaluation import ASSIGNMENT, Assignment, Combination, Doing, Measured, Message
from kvops.node.sampling import SamplingParams
from kvops.node.wire import Fatal, KvDtype, PoolPlan, Start, Submit, WeightsDtype

CHUNK = 256
"""Tokens of a text that are read at once, with the logits of all of them."""
BLOCK_SIZE = 16
_TOGETHER = 2
"""Prompts of the greatest length that the pool has room for."""

Say = Callable[[Message], None]
Advance = Callable[[int], None]


def evaluate(assignment: Assignment, say: Say) -> None:
    """Say a `Measured` for each combination. Raises ConfigError, NodeStartError or a ModelError."""
    for start in _starts(assignment):
        say(_measure(start, assignment, say))
        gc.collect()  # two models need not be in memory at once


def _starts(assignment: Assignment) -> list[Start]:
    """The reference first, none twice, `auto` resolved. Raises ConfigError for what this machine does not compute."""
    spec = open_checkpoint(Path(assignment.model_path)).spec
    device = device_of("auto")
    pairs = {("float32", "float32"): None}
    for asked in assignment.combinations or _every_combination():
        try:
            formats = settle(_start(assignment, asked), spec, device)
        except ConfigError:
            if assignment.combinations:
                raise
            continue
        pairs[formats.weights, formats.kv] = None
    return [_start(assignment, Combination(*pair)) for pair in pairs]  # type: ignore[arg-type]


def _every_combination() -> list[Combination]:
    kinds = product(get_args(WeightsDtype), get_args(KvDtype))
    return [Combination(*kind) for kind in kinds if "auto" not in kind]


def _start(assignment: Assignment, combination: Combination) -> Start:
    longest = max(
        *(len(window) - 1 for window in assignment.windows),
        *(len(prompt) + assignment.answer_tokens for prompt in assignment.prompts),
        1,
    )
    pool = PoolPlan(
        block_size=BLOCK_SIZE,
        blocks=_TOGETHER * -(-longest // BLOCK_SIZE),
        watermark=0.0,
        prefix_caching=False,
        dtype=combination.kv,
    )
    return Start(
        model_path=assignment.model_path,
        model_name="",
        revision="",
        max_context_length=None,
        weights_dtype=combination.weights,
        pool=pool,
        max_batch_size=8,
        max_batched_tokens=2 * CHUNK,
        threads=None,
        evaluations=assignment.evaluations,
    )


def _measure(start: Start, assignment: Assignment, say: Say) -> Measured:
    began = time.perf_counter()
    texts, prompts = assignment.windows, assignment.prompts
    total = sum(len(text) - 1 for text in texts) + sum(map(len, prompts))
    progress = _Progress(f"{start.weights_dtype} weights, {start.pool.dtype} KV", total, say)
    progress.advance(0)
    loaded = load(start, lambda phase, detail: None)
    losses, likeliest = predict(loaded.runner.model, texts, progress.advance)
    engine = Engine(loaded, start)
    answers = answer(engine, prompts, assignment.answer_tokens, progress.advance)
    return Measured(
        weights=loaded.info.weights_dtype,
        kv=loaded.info.kv_dtype,
        device=torch.device(loaded.info.device).type,
        seconds=time.perf_counter() - began,
        losses=tuple(losses),
        likeliest=tuple(likeliest),
        answers=tuple(answers),
    )


class _Progress:
    def __init__(self, what: str, total: int, say: Say) -> None:
        self._what, self._total, self._say = what, total, say
        self._done = 0

    def advance(self, tokens: int) -> None:
        self._done += tokens
        self._say(Doing(self._what, self._done, self._total))


@torch.inference_mode()
def predict(
    model: Model, windows: Sequence[Sequence[int]], advance: Advance
) -> tuple[list[float], list[int]]:
    """Loss and likeliest token in the place of every token but each window's first. Raises ModelError."""
    losses: list[float] = []
    likeliest: list[int] = []
    for window in windows:
        for at, tokens, targets in _chunks(window):
            logits = _logits(model, at, tokens)
            wanted = torch.tensor(targets, device=logits.device)
            losses += functional.cross_entropy(logits, wanted, reduction="none").tolist()
            likeliest += logits.argmax(dim=-1).tolist()
            if not all(map(_is_finite, losses[-len(tokens) :])):
                raise ModelError("the model gave no finite number for a token of the text")
            advance(len(tokens))
    return losses, likeliest


def _chunks(window: Sequence[int]) -> Iterator[tuple[int, list[int], list[int]]]:
    """(position, tokens, the token after each)."""
    for at in range(0, len(window) - 1, CHUNK):
        targets = list(window[at + 1 : at + CHUNK + 1])
        yield at, list(window[at : at + len(targets)]), targets


def _logits(model: Model, at: int, tokens: list[int]) -> torch.Tensor:
    """[T, vocabulary] of `tokens` at the positions from `at` on; the pool's first blocks hold what is before."""
    context = at + len(tokens)
    table = list(range(-(-context // BLOCK_SIZE)))
    batch = PagedBatch([len(tokens)], [context], [table])
    return model.logits(tokens, batch, list(range(len(tokens))))


def _is_finite(loss: float) -> bool:
    return loss - loss == 0


def answer(
    engine: Engine, prompts: Sequence[tuple[int, ...]], most: int, advance: Advance
) -> list[tuple[int, ...]]:
    """Greedy answers of at most `most` tokens. Raises ModelError."""
    params = SamplingParams(max_tokens=most, temperature=0.0)
    for number, prompt in enumerate(prompts):
        engine.add(
            Submit(
                request_id=str(number), prompt_token_ids=prompt, params=params, tenant="", salt=b""
            )
        )
    answers: list[list[int]] = [[] for _ in prompts]
    while engine.has_work():
        step = engine.step()
        for delta in step.deltas:
            if delta.finish == "error":
                raise ModelError(delta.error)
            answers[int(delta.request_id)] += delta.token_ids
        advance(step.prefill_tokens)
    return [tuple(tokens) for tokens in answers]


def _end_with_reader() -> None:
    """Whoever wants the results holds the other end of stdin open; however they end, it closes."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main() -> int:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal's Ctrl-C is the other side's to act on

    def say(message: Message) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    assignment = ASSIGNMENT.decode(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_reader, daemon=True).start()
    try:
        evaluate(assignment, say)
    except KvopsError as error:
        say(Fatal(error.code, error.message, error.hint))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
