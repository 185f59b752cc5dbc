"""Stop strings and incremental text, with a hypothesis check against the plain definition."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from kvops.node.text import Transcript


class Letters:
    """A token stream in which token n is the n-th of some pieces."""

    def __init__(self, pieces: list[str], tail: str = "") -> None:
        self._pieces, self._tail = pieces, tail

    def push(self, ids: Iterable[int]) -> str:
        return "".join(self._pieces[i] for i in ids)

    def flush(self) -> str:
        return self._tail


def run(
    pieces: list[str], stops: list[str], tail: str = "", min_tokens: int = 0
) -> tuple[list[str], Transcript]:
    transcript = Transcript(Letters(pieces, tail), stops, min_tokens)
    sent = []
    for token in range(len(pieces)):
        sent.append(transcript.push(token))
        if transcript.stopped:
            return sent, transcript
    sent.append(transcript.finish())
    return sent, transcript


def test_text_passes_through_without_stops() -> None:
    sent, transcript = run(["he", "llo", ""], [])
    assert sent == ["he", "llo", "", ""]
    assert not transcript.stopped


def test_a_stop_string_across_three_tokens_is_never_shown() -> None:
    sent, transcript = run(["abc", "E", "N", "D", "xyz"], ["END"])
    assert sent == ["abc", "", "", ""]
    assert transcript.stopped
    assert transcript.emitted == 3


def test_held_text_is_released_when_it_does_not_become_a_stop() -> None:
    sent, _ = run(["a", "EN", "x"], ["END"])
    assert sent == ["a", "", "ENx", ""]


def test_held_text_is_released_at_the_end() -> None:
    sent, transcript = run(["a", "EN"], ["END"])
    assert "".join(sent) == "aEN"
    assert not transcript.stopped


def test_the_earliest_stop_wins() -> None:
    sent, _ = run(["one STOP two END"], ["END", "STOP"])
    assert sent == ["one "]


def test_a_stop_completed_by_the_flush_counts() -> None:
    sent, transcript = run(["aEN"], ["END"], tail="D")
    assert "".join(sent) == "a"
    assert transcript.stopped


def test_stops_are_not_looked_for_before_min_tokens() -> None:
    sent, transcript = run(["END", "b", "END"], ["END"], min_tokens=2)
    assert "".join(sent) == "ENDb"
    assert transcript.stopped


@given(
    st.lists(st.text("ab<>", max_size=4), max_size=12),
    st.lists(st.text("ab<>", min_size=1, max_size=5), max_size=3),
)
def test_it_is_the_text_before_the_first_stop_however_it_is_cut(
    pieces: list[str], stops: list[str]
) -> None:
    sent, transcript = run(pieces, stops)
    whole, got = "".join(pieces), "".join(sent)
    hit = any(stop in whole for stop in stops)
    assert transcript.stopped == hit
    assert whole.startswith(got)
    assert not any(stop in got for stop in stops)
    if hit:
        assert any(whole[len(got) :].startswith(stop) for stop in stops)
    else:
        assert got == whole
