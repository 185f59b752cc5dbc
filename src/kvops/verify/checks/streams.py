"""Is a streamed answer a stream that every client can read to its end, and the same answer as without streaming?"""

from __future__ import annotations

from pydantic import Field

from kvops.units import format_duration
from kvops.verify.api import Reply
from kvops.verify.check import Check, Outcome, Parameters, fail, warn
from kvops.verify.checks.responses import QUESTION
from kvops.verify.context import Context
from kvops.verify.judge import (
    FINISH_REASONS,
    SEE_LOG,
    Fault,
    answered,
    require_none,
    usage_faults,
)
from kvops.verify.streamed import StreamedAnswer, read_stream

_HANGS = "clients that wait for the end of the stream hang: give them a timeout until it is mended"
_NO_TEXT = "the stream brings no word: are model and chat template those that were meant?"
_NO_REASON = (
    "clients cannot tell a whole answer from a cut one: the engine has to say stop or length, once"
)
_LATE = "clients stop reading there and lose what comes after: report the defect"
_NO_JSON = (
    "clients break at such an event: does something before the node change or cut the stream?"
)
_NO_USAGE = "streaming clients cannot be billed or trim: turn usage on in the engine, or let the gateway count"
_UNCOUNTED = "more is sent than is counted: do not bill streams by completion_tokens"


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
    require_none(faults, expected="text deltas, one finish_reason, a usage chunk, then [DONE]")
    assert streamed.first_delta_seconds is not None
    first = format_duration(streamed.first_delta_seconds)
    _require_same(context, streamed, plain)
    return Outcome(
        verdict="pass",
        observed=f"{streamed.deltas} deltas, first after {first}; same {streamed.said.kind}",
        expected="deltas, usage, [DONE]; the unstreamed text",
        n=2,
        evidence={
            "deltas": streamed.deltas,
            "role_deltas": streamed.roles,
            "first_delta_seconds": streamed.first_delta_seconds,
        },
    )


def stream_faults(streamed: StreamedAnswer, max_tokens: int) -> list[Fault]:
    """What is wrong with a stream that was asked for its usage and at most `max_tokens`."""
    if streamed.cut:
        # The rest of its form cannot be judged: it has no end.
        return [Fault(f"a stream without end: {streamed.cut}", _HANGS)]
    faults = _broken_events(streamed)
    if streamed.first_delta_seconds is None:
        faults.append(Fault("no text delta", _NO_TEXT))
    if len(streamed.finish_reasons) != 1 or streamed.finish_reasons[0] not in FINISH_REASONS:
        faults.append(Fault(f"finish_reason {list(streamed.finish_reasons)}", _NO_REASON))
    if streamed.after_finish:
        faults.append(Fault(f"{streamed.after_finish} text deltas after finish_reason", _LATE))
    faults += _usage_chunk_faults(streamed, max_tokens)
    if not streamed.done:
        faults.append(Fault("no [DONE] at the end", _HANGS))
    if streamed.after_done:
        faults.append(Fault(f"{streamed.after_done} events after [DONE]", _LATE))
    return faults


def _broken_events(streamed: StreamedAnswer) -> list[Fault]:
    faults = []
    if streamed.error is not None:
        faults.append(Fault(f"ended with error {streamed.error}", SEE_LOG))
    if streamed.malformed:
        faults.append(Fault(f"{streamed.malformed} events are no JSON object", _NO_JSON))
    return faults


def _usage_chunk_faults(streamed: StreamedAnswer, max_tokens: int) -> list[Fault]:
    if not streamed.usage:
        wrong = "no usage chunk, though stream_options.include_usage asked for it"
        return [Fault(wrong, _NO_USAGE)]
    faults = usage_faults(streamed.usage, max_tokens)
    completion = streamed.usage.get("completion_tokens")
    # A delta may hold several tokens, or hold one back until its character is whole, but never none.
    if isinstance(completion, int) and streamed.deltas > completion:
        said = f"{streamed.deltas} text deltas for {completion} completion tokens"
        faults.append(Fault(said, _UNCOUNTED))
    return faults


def _cached(streamed: StreamedAnswer) -> dict[str, object]:
    """The second request may find more of its prompt in the prefix cache: that part may differ."""
    key = "prompt_tokens_details"
    return {key: streamed.usage[key]} if key in streamed.usage else {}


def _require_same(context: Context, streamed: StreamedAnswer, plain: Reply) -> None:
    same_text = streamed.said == plain.said
    if same_text and streamed.usage == plain.usage | _cached(streamed):
        return
    lengths = {
        "streamed_characters": len(streamed.said.all),
        "plain_characters": len(plain.said.all),
    }
    what = "usage" if same_text else "text"
    observed = f"the streamed {what} differs from that of the unstreamed greedy answer"
    if not context.is_kvops:
        remedy = "this engine may batch the two differently; on a kvops node it would be a fault"
        warn(observed=observed, expected="the same", remedy=remedy, **lengths)
    remedy = "clients get another answer, or bill, when they stream: do not mix the two until it is mended"
    fail(observed=observed, expected="the same text and usage", remedy=remedy, **lengths)


STREAM = Check(
    id="resp.stream",
    title="Streamed answer",
    purpose="A stream ends, brings text, usage and [DONE] in this order, and the greedy text of a plain answer.",
    parameters=StreamParameters,
    run=stream,
    area="V2",
    typical=2.0,
)
