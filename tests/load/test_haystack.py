from __future__ import annotations

import random

import pytest

from kvops.load import needle
from kvops.load.haystack import SHORTEST, build, make_needle
from tests.load.scripted import words

LENGTHS = (SHORTEST, 300, 2000)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("depth", [0.0, 25.0, 50.0, 100.0])
def test_length_and_depth_are_what_was_asked(length: int, depth: float) -> None:
    hidden = make_needle(random.Random(1))
    prompt = build(random.Random(2), hidden, length, depth, words)
    assert prompt.tokens == words(prompt.text)
    assert length - 4 < prompt.tokens <= length
    assert prompt.depth == pytest.approx(depth, abs=100 * 20 / (length - 60))
    assert prompt.needle_at == words(prompt.text.partition(hidden.sentence)[0]) - words("")


def test_the_number_is_in_the_document_once_and_nowhere_else() -> None:
    hidden = make_needle(random.Random(5))
    text = build(random.Random(6), hidden, 500, 40, words).text
    assert text.count(hidden.value) == 1
    assert sum(map(str.isdigit, text)) == 7


def test_the_control_asks_for_a_number_that_is_not_there() -> None:
    hidden = make_needle(random.Random(5))
    prompt = build(random.Random(6), hidden, 500, None, words)
    assert not any(map(str.isdigit, prompt.text))
    assert hidden.question in prompt.text
    assert (prompt.depth, prompt.needle_at) == (None, None)


def test_the_same_seed_gives_the_same_prompts_and_no_two_cells_start_alike() -> None:
    cells = needle.plan(7, [200, 400], [0, 50, 100], 2)
    texts = [needle.prompt_for(cell, 7, words).text for cell in cells]
    assert texts == [
        needle.prompt_for(cell, 7, words).text
        for cell in needle.plan(7, [200, 400], [0, 50, 100], 2)
    ]
    assert len({text[:200] for text in texts}) == len(texts) == 2 * (1 + 3 * 2)
    assert cells != needle.plan(8, [200, 400], [0, 50, 100], 2)


def test_too_short_for_a_needle() -> None:
    with pytest.raises(ValueError, match=f"the least is {SHORTEST}"):
        build(random.Random(0), make_needle(random.Random(0)), SHORTEST - 1, 50, words)


def test_a_tokenizer_that_leaves_no_room_for_the_needle() -> None:
    with pytest.raises(ValueError, match="too short for this tokenizer"):
        build(random.Random(0), make_needle(random.Random(0)), SHORTEST, 50, len)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("It is 1234567.", True),
        ("1,234,567", True),
        ("123 4567", True),
        ("12345678", True),
        ("1234576", False),
        ("", False),
    ],
)
def test_the_score_is_a_substring(answer: str, found: bool) -> None:
    cell = needle.Cell(200, 50, 0, needle.Needle("amber-falcon", "1234567"))
    prompt = needle.prompt_for(cell, 0, words)
    assert needle.score(cell, prompt, answer, ["7654321"], exact=True).found is found


def test_a_control_finds_any_number_of_the_run() -> None:
    cell = needle.Cell(200, None, 0, needle.Needle("amber-falcon", "1234567"))
    prompt = needle.prompt_for(cell, 0, words)
    assert needle.score(cell, prompt, "it is 7654321", ["1234567", "7654321"], exact=True).found
