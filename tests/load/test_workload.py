from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.load.needle import CHARACTERS_PER_TOKEN, TEMPLATE_TOKENS
from kvops.load.workload import LONGEST, Lengths, fitted, prompt


def draws(text: str, n: int = 4000, seed: int = 1) -> list[int]:
    lengths, source = Lengths.parse(text), random.Random(seed)
    return [lengths.draw(source) for _ in range(n)]


@pytest.mark.parametrize("text", ["200", "fixed:200", " fixed: 200 "])
def test_a_number_is_always_itself(text: str) -> None:
    assert set(draws(text, 20)) == {200}
    assert Lengths.parse(text).text == "200"


def test_normal_lengths_have_their_mean_and_spread() -> None:
    found = draws("normal:200,30")
    assert statistics.mean(found) == pytest.approx(200, abs=2)
    assert statistics.stdev(found) == pytest.approx(30, abs=2)


def test_lognormal_lengths_have_their_median_and_a_long_tail() -> None:
    found = draws("lognormal:200,0.8")
    assert statistics.median(found) == pytest.approx(200, rel=0.06)
    assert statistics.mean(found) > 1.25 * statistics.median(found)


def test_bounds_hold_and_do_not_pile_up() -> None:
    found = draws("lognormal:200,1.5,150-300")
    assert min(found) >= 150
    assert max(found) <= 300
    assert found.count(150) + found.count(300) < len(found) * 0.05


def test_a_bound_far_from_the_middle_still_ends() -> None:
    assert set(draws("normal:100,0,100-200", 10)) == {100}


def test_the_same_seed_draws_the_same() -> None:
    assert draws("lognormal:80,1") == draws("lognormal:80,1")
    assert draws("lognormal:80,1") != draws("lognormal:80,1", seed=2)


def test_lengths_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("10\n\n20\n 30 \n")
    lengths = Lengths.parse(f"file:{file}")
    assert set(draws(f"file:{file}", 100)) == {10, 20, 30}
    assert (lengths.low, lengths.high) == (10, 30)
    assert Lengths.parse(lengths.text) == lengths


def test_a_files_path_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.txt").write_text("5")
    monkeypatch.chdir(tmp_path)
    assert Lengths.parse("file:mine.txt").text == f"file:{tmp_path}/mine.txt"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a whole number"),
        ("many", "'many' is not a whole number"),
        ("0", "from 1 to"),
        (str(LONGEST + 1), "from 1 to"),
        ("9" * 400, "from 1 to"),
        ("-5", "not a whole number"),
        ("٣", "not a whole number"),
        ("uniform:1,2", "forms: 200, normal:"),
        ("normal:200", "takes two numbers"),
        ("normal:200,x", "'x' is not a number"),
        ("normal:nan,5", "'nan' is not a number"),
        ("normal:200,inf", "'inf' is not a number"),
        ("lognormal:200,9", "sigma of 9"),
        ("lognormal:200,0.8,9", "no bounds such as"),
        ("lognormal:200,0.8,900-8", "wrong way round"),
        ("lognormal:200,0.8,300-900", "outside its bounds"),
        ("lognormal:200,0.8,0-900", "from 1 to"),
        ("file:/no/such/file", "No such file"),
        ("file:/", "not a regular file"),
        ("file:\0", "not text"),
    ],
)
def test_what_is_no_length_says_so(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Lengths.parse(text)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "holds no length"), (b"5\nx\n", "line 2: 'x'"), (b"\xff\xfe", "not text")],
)
def test_a_broken_file_names_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "broken"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=words):
        Lengths.parse(f"file:{file}")


@given(st.integers(1, 3000), st.integers(0, 50))
def test_every_text_form_stands_for_itself(middle: int, spread: int) -> None:
    for text in (f"normal:{middle},{spread}", f"lognormal:{middle},0.{spread:02d}", str(middle)):
        assert Lengths.parse(Lengths.parse(text).text) == Lengths.parse(text)


def words(text: str) -> int:
    return len(text.split()) + 4


@pytest.mark.parametrize("tokens", [20, 64, 300, 2000])
def test_a_prompt_has_its_length(tokens: int) -> None:
    exact = prompt(random.Random(1), tokens, words)
    assert tokens - 2 <= words(exact) <= tokens
    about = prompt(random.Random(1), tokens)
    wanted = max(0, tokens - TEMPLATE_TOKENS) * CHARACTERS_PER_TOKEN
    assert len(about) <= max(wanted, 16)
    assert wanted - len(about) < 20


@pytest.mark.parametrize("tokens", [64, 300, 2000])
def test_a_count_fitted_to_two_answers_stands_for_all_others(tokens: int) -> None:
    asked: list[str] = []

    def node(text: str) -> int:
        asked.append(text)
        return words(text)

    count = fitted(node)
    made = prompt(random.Random(1), tokens, count)
    assert len(asked) == 2, "no prompt of a running load is counted by the node"
    assert words(made) == pytest.approx(tokens, rel=0.05)


def test_a_length_too_short_for_anything_gives_the_opening_alone() -> None:
    assert prompt(random.Random(1), 1) == prompt(random.Random(1), 1, words)
    assert prompt(random.Random(1), 1).startswith("Letter ")


def test_no_two_prompts_begin_alike_and_the_same_seed_gives_the_same() -> None:
    made = [prompt(random.Random(seed), 60) for seed in range(500)]
    assert len({text[:15] for text in made}) == 500
    assert made[7] == prompt(random.Random(7), 60)
