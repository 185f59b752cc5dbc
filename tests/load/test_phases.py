from __future__ import annotations

import random

import pytest

from kvops.load import conversations
from kvops.load.exchange import Exchange, Usage
from kvops.load.phases import Timetable
from kvops.load.refusals import LONGEST_WAIT, refused, retry_after

TABLE = Timetable.of(("before", 2.0), ("never", 0.0), ("storm", 3.0), ("after", 1.0))


@pytest.mark.parametrize(
    ("elapsed", "phase", "left"),
    [
        (0.0, "before", 2.0),
        (1.5, "before", 0.5),
        (2.0, "storm", 3.0),
        (4.9, "storm", 0.1),
        (5.0, "after", 1.0),
        (6.0, None, 0.0),
        (99.0, None, 0.0),
    ],
)
def test_a_moment_is_in_one_phase(elapsed: float, phase: str | None, left: float) -> None:
    assert TABLE.at(elapsed) == phase
    assert TABLE.left(elapsed) == pytest.approx(left)
    assert TABLE.seconds == 6.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("2", 2.0), ("0", 0.0), ("1.5", 1.5), ("9999", LONGEST_WAIT), ("", None), ("-1", None), ("nan", None),
     ("Fri, 31 Dec 1999 23:59:59 GMT", None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_nothing(header: str, seconds: float | None) -> None:
    assert retry_after(Exchange(status=429, headers={"retry-after": header})) == seconds
    assert retry_after(Exchange(status=429)) is None


def test_only_429_and_503_are_refusals() -> None:
    assert [refused(Exchange(status=status)) for status in (200, 400, 429, 503, 500, None)] == [
        False, False, True, True, False, False,
    ]  # fmt: skip


def test_a_conversation_sends_all_before_it_and_its_own_list_stays() -> None:
    talk = conversations.Conversation([conversations.system(random.Random(1), 60)])
    first = talk.ask("one")
    talk.answered(Exchange(text="1", usage=Usage(prompt=70, completion=2)))
    second = talk.ask("two")
    assert [one["role"] for one in first] == ["system", "user"]
    assert [one["role"] for one in second] == ["system", "user", "assistant", "user"]
    assert second[:2] == first
    assert conversations.Conversation().messages == []
    assert talk.used == 72
    assert talk.fits(20, 8, 72 + 28 + conversations.SLACK)
    assert not talk.fits(20, 9, 72 + 28 + conversations.SLACK)
    assert talk.fits(10**6, 8, None)


def test_agents_texts_differ_and_come_again_with_the_seed() -> None:
    texts = [conversations.tool_result(random.Random(seed), 1, 60) for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_pauses_have_their_mean_and_an_end() -> None:
    source = random.Random(1)
    found = [conversations.pauses(source, 2.0) for _ in range(4000)]
    assert sum(found) / len(found) == pytest.approx(2, rel=0.06)
    assert max(found) <= 20
    assert conversations.pauses(source, 0) == 0
