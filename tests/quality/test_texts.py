"""The text and the needles that every evaluation uses: enough of them, within the context, the same each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.models.chat import ChatTemplate, load_chat_template
from kvops.models.tokenizer import Tokenizer, load_tokenizer
from kvops.quality.corpus import LONGEST_WINDOW, Corpus, shipped_corpus, windows
from kvops.quality.needles import ANSWER_TOKENS, DEPTHS, LENGTHS, questions


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="module")
def template(tiny_model: Path) -> ChatTemplate:
    return load_chat_template(tiny_model)


def predicted(pieces: tuple[tuple[int, ...], ...]) -> int:
    return sum(len(piece) - 1 for piece in pieces)


@pytest.mark.parametrize(
    ("tokens", "context", "pieces"),
    [(256, 512, 1), (1000, 512, 2), (5000, 8192, 3), (2048, 512, 4)],
)
def test_as_many_tokens_as_asked_for_in_windows_that_fit(
    tokens: int, context: int, pieces: int, tokenizer: Tokenizer
) -> None:
    cut = windows(shipped_corpus(), tokenizer, tokens, context)
    assert (len(cut), predicted(cut)) == (pieces, tokens)
    assert max(len(piece) - 1 for piece in cut) <= min(context, LONGEST_WINDOW)


def test_windows_are_of_the_text_spread_over_it_and_end_with_it(tokenizer: Tokenizer) -> None:
    corpus = Corpus("letters", " ".join(f"word {number}" for number in range(300)))
    ids = tokenizer.encode(corpus.text, special=False)
    halves = windows(corpus, tokenizer, 512, 256)
    assert halves[0] == tuple(ids[:257])
    middle = (len(ids) - 1) // 2
    assert halves[1] == tuple(ids[middle : middle + 257])
    everything = windows(corpus, tokenizer, 10**6, 256)
    assert predicted(everything) == len(ids) - 1
    assert everything[-1][-1] == ids[-1]


def test_a_window_begins_with_bos_where_the_model_was_trained_so(tokenizer: Tokenizer) -> None:
    knows = Tokenizer(tokenizer._inner, eos_token_ids=[], bos_token_id=0, add_bos=True)
    plain, begun = (windows(shipped_corpus(), each, 600, 512) for each in (tokenizer, knows))
    assert [piece[0] for piece in begun] == [0, 0]
    assert [piece[1:] for piece in begun] == [piece[:-1] for piece in plain]


def test_the_corpus_is_named_with_its_digest() -> None:
    corpus = shipped_corpus()
    assert "Python 3." in corpus.name
    assert len(corpus.text) > 200_000
    assert corpus.sha256 != Corpus(corpus.name, corpus.text[1:]).sha256


def test_a_needle_at_each_depth_of_each_length(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    asked = questions(tokenizer, template, 8192)
    assert [(q.cell.length, q.cell.depth) for q in asked] == [
        (length, depth) for length in LENGTHS for depth in DEPTHS
    ]
    for question in asked:
        assert question.cell.length * 0.95 < len(question.token_ids) <= question.cell.length
        assert question.prompt.tokens == len(question.token_ids)
        assert question.cell.needle.value in tokenizer.decode(question.token_ids)
        assert question.found_in(f"It is {question.cell.needle.value}.")
        assert not question.found_in("It is 1234567.")
    assert asked == questions(tokenizer, template, 8192)


def test_a_short_context_has_shorter_needles_or_none(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    assert {q.cell.length for q in questions(tokenizer, template, 512)} == {512 - ANSWER_TOKENS}
    assert questions(tokenizer, template, 100) == []


def test_without_a_chat_template_the_question_is_plain_text(tokenizer: Tokenizer) -> None:
    first = questions(tokenizer, ChatTemplate(None, {}), 600)[0]
    assert tokenizer.decode(first.token_ids) == first.prompt.text
