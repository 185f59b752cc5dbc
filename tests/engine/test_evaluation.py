"""What an evaluation measures: predictions as transformers makes them, from keys and values as the pool keeps them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from kvops.errors import ModelError
from kvops.models.tokenizer import load_tokenizer
from kvops.node.engine.evaluation import CHUNK, evaluate, predict
from kvops.node.engine.formats import choose
from kvops.node.engine.loading import load
from kvops.node.evaluation import Assignment, Combination, Doing, Measured, Message
from kvops.node.wire import PoolPlan
from kvops.quality.corpus import shipped_corpus, windows
from kvops.quality.figures import cost
from tests.engine import driving
from tests.engine.reference import reference_model

EXACT = Combination("float32", "float32")


@pytest.fixture(scope="module")
def texts(tiny_model: Path) -> tuple[tuple[int, ...], ...]:
    """Two windows, each longer than a chunk."""
    return windows(shipped_corpus(), load_tokenizer(tiny_model), CHUNK * 3, 512)


def measured(path: Path, *asked: Combination, **given: Any) -> tuple[list[Measured], list[Message]]:
    fields: dict[str, Any] = {"evaluations": (), "windows": (), "prompts": (), "answer_tokens": 8}
    said: list[Message] = []
    evaluate(Assignment(model_path=str(path), combinations=asked, **(fields | given)), said.append)
    return [message for message in said if isinstance(message, Measured)], said


def transformers_says(path: Path, window: tuple[int, ...]) -> list[tuple[float, int]]:
    """(loss, likeliest token) in the place of each token but the first."""
    model = reference_model(path)
    tokens = torch.tensor([window])
    with torch.inference_mode():
        logits = model(tokens[:, :-1]).logits[0]
    losses = functional.cross_entropy(logits, tokens[0, 1:], reduction="none")
    return list(zip(losses.tolist(), logits.argmax(-1).tolist(), strict=True))


def test_the_reference_predicts_as_transformers_does(
    tiny_model: Path, texts: tuple[tuple[int, ...], ...]
) -> None:
    (reference,), said = measured(tiny_model, EXACT, windows=texts)
    expected = [pair for one in texts for pair in transformers_says(tiny_model, one)]
    assert reference.losses == pytest.approx([loss for loss, _ in expected], abs=2e-3)
    assert reference.likeliest == tuple(token for _, token in expected)
    counts = [message.done for message in said if isinstance(message, Doing)]
    assert counts == sorted(counts)
    assert counts[-1] == sum(len(one) - 1 for one in texts)


def test_kv_is_read_back_as_the_pool_keeps_it(
    tiny_model: Path, texts: tuple[tuple[int, ...], ...]
) -> None:
    start = driving.start(tiny_model, pool=PoolPlan(block_size=16, blocks=32))
    if not choose(start, load(start, lambda *_: None).info.spec, torch.device("cpu")).compiled:
        pytest.skip("no kernels for this CPU, so no KV but float32 beside float32 weights")
    exact, rounded = measured(tiny_model, Combination("float32", "int8"), windows=texts[:1])[0]
    assert (exact.kv, rounded.kv) == ("float32", "int8")
    pairs = list(zip(exact.losses, rounded.losses, strict=True))
    # The first token has nothing but itself to look at; its own value is rounded too.
    for part in (pairs[1:CHUNK], pairs[CHUNK:]):
        assert sum(one != other for one, other in part) > 0.9 * len(part)
    found = cost(rounded.losses, exact.losses)
    assert found.perplexity == pytest.approx(found.reference, rel=0.05)


def test_answers_are_what_the_engine_generates(tiny_model: Path) -> None:
    prompts = ((1, 2, 3, 4), tuple(range(5, 300)))
    (reference,), _ = measured(tiny_model, EXACT, prompts=prompts)
    asked = [
        driving.submit(str(n), prompt, max_tokens=8, ignore_eos=False)
        for n, prompt in enumerate(prompts)
    ]
    expected = driving.outputs(driving.load(tiny_model), asked)
    assert reference.answers == tuple(tuple(expected[str(n)]) for n in range(2))


def test_the_reference_comes_first_and_nothing_twice(tiny_model: Path) -> None:
    auto, bfloat16 = Combination("auto", "auto"), Combination("bfloat16", "bfloat16")
    done, _ = measured(tiny_model, bfloat16, auto, EXACT, auto, windows=((1, 2, 3),))
    pairs = [(one.weights, one.kv) for one in done]
    assert pairs[:2] == [("float32", "float32"), ("bfloat16", "bfloat16")]
    assert len(set(pairs)) == len(pairs) <= 3


def test_a_number_that_is_none_ends_it(tiny_model: Path) -> None:
    model = load(
        driving.start(tiny_model, pool=PoolPlan(block_size=16, blocks=8)), lambda *_: None
    ).runner.model

    class Spoilt:
        def logits(self, *step: Any) -> torch.Tensor:
            return model.logits(*step).fill_(math.nan)

    with pytest.raises(ModelError, match="no finite number"):
        predict(Spoilt(), [[1, 2, 3]], lambda _: None)


@pytest.mark.model
def test_the_default_model_keeps_its_quality(default_model_home: Path) -> None:
    gguf = next((default_model_home / "data").rglob("*.gguf"))
    tokenizer = load_tokenizer(gguf)
    text = windows(shipped_corpus(), tokenizer, 512, 2048)
    prompt = tokenizer.encode(
        "<|im_start|>user\nThe code of the red door is 4071853. What is the code of the red door?"
        "<|im_end|>\n<|im_start|>assistant\n",
        special=True,
    )
    done, _ = measured(
        gguf,
        Combination("auto", "auto"),
        windows=text,
        prompts=(tuple(prompt),),
        answer_tokens=24,
    )
    for one in done:
        found = cost(one.losses, done[0].losses)
        assert 4 < found.perplexity < 40
        assert found.perplexity / found.reference == pytest.approx(1, abs=0.02)
        same = sum(a == b for a, b in zip(one.likeliest, done[0].likeliest, strict=True))
        assert same > 0.93 * len(one.likeliest)
        assert "4071853" in tokenizer.decode(one.answers[0])
