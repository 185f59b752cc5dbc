from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvops.node import wire
from kvops.node.sampling import SamplingParams

SUBMIT = wire.Submit(
    request_id="r-1",
    prompt_token_ids=(1, 2, 3),
    params=SamplingParams(max_tokens=4, logit_bias={5: -1.0}, stop_token_ids=(7,)),
    tenant="acme",
    salt=b"\x00secret",
    priority="batch",
)


@pytest.mark.parametrize(
    "message", [SUBMIT, wire.Cancel("r-1"), wire.GetKvMap(1, 400), wire.Stop()]
)
def test_a_message_to_the_engine_survives_the_trip(message: wire.ToEngine) -> None:
    [body] = wire.FrameBuffer().feed(wire.frame(message))
    assert wire.TO_ENGINE.decode(body) == message


def test_a_step_survives_the_trip() -> None:
    delta = wire.TokenDelta(
        request_id="r",
        token_ids=(9,),
        logprobs=(wire.TokenLogprobs(-0.5, ((9, -0.5),)),),
        finish="stop",
    )
    step = wire.StepDone(seconds=0.1, deltas=(delta,))
    [body] = wire.FrameBuffer().feed(wire.frame(step))
    assert wire.FROM_ENGINE.decode(body) == step


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(1, 40), max_size=200))
def test_frames_are_cut_wherever_the_stream_was_split(picks: list[int], sizes: list[int]) -> None:
    messages = [(SUBMIT, wire.Cancel("x"), wire.Stop(), wire.GetKvMap(2, 9))[i] for i in picks]
    stream = b"".join(wire.frame(m) for m in messages)
    buffer, seen, position = wire.FrameBuffer(), [], 0
    for size in [*sizes, len(stream)]:
        seen += buffer.feed(stream[position : position + size])
        position += size
    assert [wire.TO_ENGINE.decode(body) for body in seen] == messages


def test_a_length_over_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="bound"):
        wire.FrameBuffer().feed((wire.MAX_FRAME + 1).to_bytes(4, "little"))
