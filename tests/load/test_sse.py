from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.load.sse import MAX_LINE, EventReader, LineTooLong

TEXTS = st.lists(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1, max_size=8
)


@given(texts=TEXTS, size=st.integers(1, 40), newline=st.sampled_from([b"\n", b"\r\n"]))
def test_events_survive_any_cut_of_the_stream(texts: list[str], size: int, newline: bytes) -> None:
    bodies = [json.dumps({"t": text}, ensure_ascii=False).encode() for text in texts]
    stream = b"".join(b": ping" + newline + b"data: " + body + newline + newline for body in bodies)
    reader = EventReader()
    events = [
        event for at in range(0, len(stream), size) for event in reader.feed(stream[at : at + size])
    ]
    assert events == bodies


def test_line_separators_of_unicode_do_not_end_a_line() -> None:
    body = '{"t": "a\u2028b\u0085c"}'.encode()
    assert EventReader().feed(b"data: " + body + b"\n\n") == [body]


def test_several_data_lines_are_one_event_and_other_fields_are_skipped() -> None:
    assert EventReader().feed(b"event: x\nid: 1\ndata: a\ndata:b\n\n\n\n") == [b"a\nb"]


def test_a_line_without_an_end_is_bounded() -> None:
    reader = EventReader()
    reader.feed(b"data: " + b"x" * (MAX_LINE - 10))
    with pytest.raises(LineTooLong):
        reader.feed(b"x" * 20)
