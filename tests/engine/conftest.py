"""Engines over the tiny model, and prompts for it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kvops.node.engine.engine import Engine
from tests.engine.driving import load

VOCABULARY = 322


@pytest.fixture
def engine(tiny_model: Path) -> Engine:
    return load(tiny_model)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Of 1 to 180 tokens, at, below and above block borders; two share a long prefix."""
    source = random.Random(7)
    made = [
        [source.randrange(VOCABULARY) for _ in range(n)]
        for n in (1, 5, 15, 16, 17, 32, 63, 100, 180)
    ]
    return [*made, made[-1][:128] + made[1]]
