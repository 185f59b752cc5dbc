"""Does the node survive whatever bytes it is sent, and say what is wrong with them?"""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
from pydantic import Field

from kvops.verify.api import Reply
from kvops.verify.check import Check, Outcome, Parameters, fail, require, warn
from kvops.verify.context import Context
from kvops.verify.judge import BUSY, Fault, advice, answered, error_faults, says
from kvops.verify.restarts import engine_restarts

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
REFUSED = (400, 413, 415, 422)
EXPECTED = "4xx with an error object for each, the same answer after"
CANARY = "The days of the week are"
HUGE = b"9" * 5000


_HARM = "anyone who may send a request can do this: keep such clients off until it is mended; see kvops node logs"
_TAKEN = (
    "clients do not learn of their mistakes: check requests before the node until it refuses them"
)


class MalformedParameters(Parameters):
    nesting: int = Field(default=20_000, ge=100, le=200_000)
    """Levels of the deepest body."""
    answer_within: float = Field(default=20.0, gt=0)
    """Seconds for each refusal."""


class Malformed(msgspec.Struct, frozen=True):
    name: str
    body: bytes
    path: str = COMPLETIONS
    also: tuple[int, ...] = ()
    """Statuses that say as much, beside those of every refusal."""
    may_be_taken: bool = False
    """Unusual, but nothing forbids it: an answer is as good as a refusal."""


def malformed(model: str, nesting: int) -> list[Malformed]:
    """Bodies that no client should send, and some do."""
    return [
        *_not_json(nesting),
        *_wrong_fields(model),
        *_wrong_messages(model),
    ]


def _not_json(nesting: int) -> list[Malformed]:
    deep = b"[" * nesting + b"]" * nesting
    objects = b'{"a":' * nesting + b"1" + b"}" * nesting
    return [
        Malformed("empty body", b""),
        Malformed("cut off", b'{"model": "x", "prompt": "a'),
        Malformed("two objects", b"{}{}"),
        Malformed("a bare string", b'"prompt"'),
        Malformed("bad UTF-8", b'{"model": "x", "prompt": "\xff\xfe\xc3("}'),
        Malformed("UTF-16", '{"model": "x"}'.encode("utf-16")),
        Malformed("null bytes", b"\x00" * 64),
        Malformed("binary", bytes(range(256))),
        Malformed("nested arrays", deep),
        Malformed("nested objects", objects),
    ]


def _wrong_fields(model: str) -> list[Malformed]:
    def sent(fields: str) -> bytes:
        return f'{{"model": {_json(model)}, "prompt": "Hi", {fields}}}'.encode()

    return [
        Malformed("max_tokens negative", sent('"max_tokens": -1')),
        Malformed("max_tokens a fraction", sent('"max_tokens": 1.5')),
        Malformed("max_tokens a list", sent('"max_tokens": [1]')),
        Malformed("max_tokens 1e308", sent('"max_tokens": 1e308')),
        Malformed("max_tokens of 5000 digits", sent(f'"max_tokens": {HUGE.decode()}')),
        Malformed("temperature NaN", sent('"max_tokens": 1, "temperature": NaN')),
        Malformed("temperature 1e999", sent('"max_tokens": 1, "temperature": 1e999')),
        Malformed("temperature negative", sent('"max_tokens": 1, "temperature": -5')),
        Malformed("temperature a word", sent('"max_tokens": 1, "temperature": "hot"')),
        Malformed("top_p 5", sent('"max_tokens": 1, "top_p": 5')),
        Malformed("n a million", sent('"max_tokens": 1, "n": 1000000')),
        Malformed("stop an object", sent('"max_tokens": 1, "stop": {"a": 1}')),
        Malformed("logit_bias of no token", sent('"max_tokens": 1, "logit_bias": {"-7": 1}')),
        Malformed("prompt an object", f'{{"model": {_json(model)}, "prompt": {{}}}}'.encode()),
        Malformed("prompt of no token", _prompt_of_ids(model, 2**40)),
        Malformed("model a number", b'{"model": 7, "prompt": "Hi", "max_tokens": 1}', also=(404,)),
        Malformed(
            "null character in a prompt",
            f'{{"model": {_json(model)}, "prompt": "a\\u0000b", "max_tokens": 1}}'.encode(),
            may_be_taken=True,
        ),
        Malformed(
            "half a surrogate pair",
            f'{{"model": {_json(model)}, "prompt": "a\\ud800b", "max_tokens": 1}}'.encode(),
            may_be_taken=True,
        ),
    ]


def _wrong_messages(model: str) -> list[Malformed]:
    def chat(messages: str) -> bytes:
        return f'{{"model": {_json(model)}, "max_tokens": 1, "messages": {messages}}}'.encode()

    return [
        Malformed("messages empty", chat("[]"), CHAT),
        Malformed("messages a string", chat('"Hi"'), CHAT),
        Malformed("a message that is null", chat("[null]"), CHAT),
        Malformed("a message without a role", chat('[{"content": "Hi"}]'), CHAT),
        Malformed("content a number", chat('[{"role": "user", "content": 7}]'), CHAT),
        Malformed("a role of no kind", chat('[{"role": "\\u0000", "content": "Hi"}]'), CHAT),
    ]


def _prompt_of_ids(model: str, token: int) -> bytes:
    return f'{{"model": {_json(model)}, "prompt": [{token}], "max_tokens": 1}}'.encode()


def _json(text: str) -> str:
    return msgspec.json.encode(text).decode()


async def malformed_check(context: Context, parameters: MalformedParameters) -> Outcome:
    restarts = await engine_restarts(context)
    before = await _canary(context)
    probes = malformed(context.model, parameters.nesting)
    wrong: dict[str, list[Fault]] = {}
    taken: list[str] = []
    for probe in probes:
        faults = await _faults(context, probe, parameters.answer_within)
        if says(faults) == ["status 200"] and not context.is_kvops:
            taken.append(probe.name)
        elif faults:
            wrong[probe.name] = faults
        await _require_no_restart(context, restarts, probe.name)
    require(
        not wrong,
        observed="; ".join(f"{name}: {', '.join(says(f))}" for name, f in list(wrong.items())[:3]),
        expected=EXPECTED,
        remedy=advice(fault for faults in wrong.values() for fault in faults),
        n=len(probes),
        faults={name: says(faults) for name, faults in wrong.items()},
    )
    await _require_unharmed(context, restarts, before)
    if taken:
        warn(
            observed=f"taken as if right: {', '.join(taken[:4])}",
            expected=EXPECTED,
            remedy="this engine is lenient: clients do not learn of their mistakes",
            n=len(probes),
            taken=taken,
        )
    return Outcome(
        verdict="pass",
        observed=f"{len(probes)} refused rightly, the same answer after",
        expected=EXPECTED,
        n=len(probes) + 2,
        evidence={"probes": [probe.name for probe in probes]},
    )


async def _require_no_restart(context: Context, restarts: int | None, after: str) -> None:
    """Asked after each: a node that is busy with restarts would not get through the rest in time."""
    now = await engine_restarts(context)
    require(
        restarts == now,
        observed=f"engine restarts went from {restarts} to {now}, the last body was: {after}",
        expected="no restart",
        remedy="malformed input kills the engine: keep such clients off, see kvops node logs",
    )


async def _faults(context: Context, probe: Malformed, within: float) -> list[Fault]:
    try:
        reply = await context.api.post(probe.path, probe.body, within=within)
        if reply.status in BUSY:
            # A node that is full refuses a good request too, and that leaves the check open.
            await _canary(context)
            reply = await context.api.post(probe.path, probe.body, within=within)
    except httpx.TimeoutException:
        return [Fault(f"no answer within {within:g} s", _HARM)]
    except httpx.TransportError as error:
        return [Fault(f"connection lost: {type(error).__name__}", _HARM)]
    return judged(reply, probe)


def judged(reply: Reply, probe: Malformed) -> list[Fault]:
    """What is wrong with the answer to a malformed body; `status 200` alone when it was taken."""
    if 200 <= reply.status < 300:
        return [] if probe.may_be_taken else [Fault("status 200", _TAKEN)]
    return error_faults(reply, (*REFUSED, *probe.also))


async def _canary(context: Context) -> str:
    reply: Any = await context.api.post(COMPLETIONS, context.completion(CANARY, 8))
    return answered(reply, "a good request").answer


async def _require_unharmed(context: Context, restarts: int | None, before: str) -> None:
    after = await _canary(context)
    await _require_no_restart(context, restarts, "the last one")
    if after == before:
        return
    lengths = {"characters_before": len(before), "characters_after": len(after)}
    observed = "the same greedy request is answered otherwise after the malformed ones"
    if not context.is_kvops:
        remedy = "this engine may batch differently; repeat the check, and compare answers"
        warn(observed=observed, expected="the same answer", remedy=remedy, **lengths)
    remedy = "malformed input leaves a trace in the engine: keep such clients off, restart the node, report the defect"
    fail(observed=observed, expected="the same answer", remedy=remedy, **lengths)


MALFORMED = Check(
    id="resp.malformed",
    title="Malformed input",
    purpose="Broken JSON, bytes, nesting and numbers are refused with a reason, and leave no trace.",
    parameters=MalformedParameters,
    run=malformed_check,
    area="V10",
    typical=2.0,
)
