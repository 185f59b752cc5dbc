"""Is a streamed answer a stream that every client can read to its end, and the same answer as without streaming?"""

from __future__ import annotations

from pydantic import Field

from kvops.units import format_duration
from kvops.verify.api import Reply
from kvops.verify.check import Check, Outcome, Parameters, require, warn
from kvops.verify.checks.responses import QUESTION
from kvops.verify.context import Context
from kvops.verify.judge import FINISH_REASONS, SEE_LOG, answered, usage_faults
from kvops.verify.streamed import StreamedAnswer, read_stream


class StreamParameters(Parameters):
    max_tokens: int = Field(default=24, ge=2, le=512)
    end_within: float = Field(default=60.0, gt=0)
    """Seconds until the stream must have ended."""


async def stream(context: Context, parameters: StreamParameters) -> Outcome:
    body = context.chat(QUESTION, parameters.max_tokens)
    path = "/v1/chat/completions"
    plain = answered(await context.api.post(path, body), path)
    usage = {"stream_options": {"include_usage": True}}
    streamed = await read_stream(context.api, path, body | usage, within=parameters.end_within)
    faults = stream_faults(streamed, parameters.max_tokens)
    require(
        not faults,
        observed="; ".join(faults),
        expected="text deltas, one finish_reason, a usage chunk, then [DONE]",
        remedy="clients that wait for the missing part hang or lose tokens",
        faults=faults,
    )
    assert streamed.first_delta_seconds is not None
    first = format_duration(streamed.first_delta_seconds)
    same = streamed.text == plain.answer and streamed.usage == plain.usage | _cached(streamed)
    _require_same(context, same, streamed, plain)
    return Outcome(
        verdict="pass",
        observed=f"{streamed.deltas} deltas, first after {first}; same text",
        expected="deltas, usage, [DONE]; the unstreamed text",
        n=2,
        evidence={
            "deltas": streamed.deltas,
            "role_deltas": streamed.roles,
            "first_delta_seconds": streamed.first_delta_seconds,
        },
    )


def stream_faults(streamed: StreamedAnswer, max_tokens: int) -> list[str]:
    """What is wrong with a stream that was asked for its usage and at most `max_tokens`."""
    if streamed.cut:
        # The rest of its form cannot be judged: it has no end.
        return [f"a stream without end: {streamed.cut}"]
    faults = _broken_events(streamed)
    if streamed.first_delta_seconds is None:
        faults.append("no text delta")
    if len(streamed.finish_reasons) != 1 or streamed.finish_reasons[0] not in FINISH_REASONS:
        faults.append(f"finish_reason {list(streamed.finish_reasons)}")
    if streamed.after_finish:
        faults.append(f"{streamed.after_finish} text deltas after finish_reason")
    faults += _usage_chunk_faults(streamed, max_tokens)
    if not streamed.done:
        faults.append("no [DONE] at the end")
    if streamed.after_done:
        faults.append(f"{streamed.after_done} events after [DONE]")
    return faults


def _broken_events(streamed: StreamedAnswer) -> list[str]:
    faults = []
    if streamed.error is not None:
        faults.append(f"ended with error {streamed.error}")
    if streamed.malformed:
        faults.append(f"{streamed.malformed} events are no JSON object")
    return faults


def _usage_chunk_faults(streamed: StreamedAnswer, max_tokens: int) -> list[str]:
    if not streamed.usage:
        return ["no usage chunk, though stream_options.include_usage asked for it"]
    faults = usage_faults(streamed.usage, max_tokens)
    completion = streamed.usage.get("completion_tokens")
    # A delta may hold several tokens, or hold one back until its character is whole, but never none.
    if isinstance(completion, int) and streamed.deltas > completion:
        faults.append(f"{streamed.deltas} text deltas for {completion} completion tokens")
    return faults


def _cached(streamed: StreamedAnswer) -> dict[str, object]:
    """The second request may find more of its prompt in the prefix cache: that part may differ."""
    key = "prompt_tokens_details"
    return {key: streamed.usage[key]} if key in streamed.usage else {}


def _require_same(context: Context, same: bool, streamed: StreamedAnswer, plain: Reply) -> None:
    lengths = {"streamed_characters": len(streamed.text), "plain_characters": len(plain.answer)}
    observed = "the streamed text or usage differs from the unstreamed greedy answer"
    if not same and not context.is_kvops:
        remedy = "this engine may batch the two differently; on a kvops node it would be a fault"
        warn(observed=observed, expected="the same", remedy=remedy, **lengths)
    require(same, observed=observed, expected="the same text", remedy=SEE_LOG, **lengths)


STREAM = Check(
    id="resp.stream",
    title="Streamed answer",
    purpose="A stream ends, brings text, usage and [DONE] in this order, and the greedy text of a plain answer.",
    parameters=StreamParameters,
    run=stream,
    area="V2",
    typical=2.0,
)
