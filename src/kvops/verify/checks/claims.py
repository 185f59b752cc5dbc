"""Does the node turn away what it cannot hold: at once, with the right code, and with word when to come back?"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from pydantic import Field

from kvops.telemetry.snapshot import Known
from kvops.units import format_duration
from kvops.verify.api import Refusal
from kvops.verify.check import Check, Outcome, Parameters, fail, inconclusive, require, skip, warn
from kvops.verify.context import Context
from kvops.verify.control import claims
from kvops.verify.crowd import Crowd, Guest, gathered, until
from kvops.verify.judge import BUSY

HELD_TOKENS = 2048
SETTLE_SECONDS = 0.5
LONGEST_PAUSE = 86_400.0
"""Seconds: a Retry-After beyond a day helps nobody."""


class BurstParameters(Parameters):
    running: int | None = Field(default=None, ge=1)
    waiting: int | None = Field(default=None, ge=0)
    """The bounds, where the node itself does not tell them."""
    surplus: int = Field(default=8, ge=1, le=256)
    """Requests beyond running + waiting."""
    most: int = Field(default=512, ge=2, le=1000)
    """Streams that are opened at most; a node with higher bounds is not tried."""
    refused_within: float = Field(default=10.0, gt=0)
    """Seconds from sending to the refusal of a request that has no place."""
    answer_within: float = Field(default=30.0, gt=0)
    """Seconds until those that waited get a token, once there is room."""


class Bounds(msgspec.Struct, frozen=True):
    running: int
    waiting: int

    @property
    def places(self) -> int:
        return self.running + self.waiting


async def queue_bound(context: Context, parameters: BurstParameters) -> Outcome:
    """More streams than there are places, all at once and held: only the surplus is refused, the rest answers."""
    bounds = await _bounds(context, parameters)
    async with gathered(context.api) as crowd:
        refused = await _overfill(context, crowd, bounds, parameters)
        _require_bounded(crowd, bounds, refused, parameters)
        _require_queue_full(context, refused, parameters.refused_within)
        served = await _require_served(crowd, parameters.answer_within)
    slowest = max(guest.seconds or 0.0 for guest in refused)
    return Outcome(
        verdict="pass",
        observed=f"{len(refused)} of {len(crowd.guests)} refused, the slowest after {format_duration(slowest)};"
        f" {served} that waited answered after",
        expected=f"at most {bounds.running} running + {bounds.waiting} waiting, the rest refused at once",
        n=len(crowd.guests),
        evidence={
            "sent": len(crowd.guests),
            "refused": len(refused),
            "slowest_refusal_seconds": round(slowest, 3),
            "codes": sorted({guest.error or "none" for guest in refused}),
            "served_after": served,
        },
    )


async def retry_after(context: Context, parameters: BurstParameters) -> Outcome:
    """Of every 429 and 503 that this run of the gate has seen; without any, those of a burst of its own."""
    if not context.api.refusals:
        bounds = await _bounds(context, parameters)
        async with gathered(context.api) as crowd:
            await _overfill(context, crowd, bounds, parameters)
    seen = context.api.refusals
    if not seen:
        inconclusive(
            "nothing was refused, so no refusal could be looked at",
            expected="a 429 or 503",
            remedy="see claims.queue_bound: the node's queue has no bound, or was not reached",
        )
    wrong = sorted({_spelled(refusal) for refusal in seen if pause_of(refusal) is None})
    if wrong:
        _no_pause(context, wrong, len(seen))
    pauses = sorted({pause_of(refusal) or 0.0 for refusal in seen})
    return Outcome(
        verdict="pass",
        observed=f"{len(seen)} refusals, Retry-After {_span(pauses)} s",
        expected="Retry-After on every 429 and 503",
        n=len(seen),
        evidence={"by_code": _by_code(seen), "seconds": pauses[:20]},
    )


def _span(pauses: list[float]) -> str:
    low, high = pauses[0], pauses[-1]
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _no_pause(context: Context, wrong: list[str], seen: int) -> None:
    observed = f"without a usable Retry-After: {', '.join(wrong[:4])}"
    expected = "Retry-After on every 429 and 503"
    remedy = "clients retry at once and keep the node full: let it, or the gateway before it, send Retry-After"
    # The header is a claim of kvops; OpenAI's protocol does not ask for it.
    end = fail if context.is_kvops else warn
    end(observed=observed, expected=expected, remedy=remedy, n=seen, refusals=wrong)


def pause_of(refusal: Refusal) -> float | None:
    """Seconds that a Retry-After asks for (RFC 9110 §10.2.3); None when it is missing or of no use."""
    text = (refusal.retry_after or "").strip()
    if text.isdigit() and text.isascii():
        seconds = float(text)
    else:
        try:
            seconds = max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if math.isfinite(seconds) and seconds <= LONGEST_PAUSE else None


def _spelled(refusal: Refusal) -> str:
    said = "none" if refusal.retry_after is None else f"{refusal.retry_after[:40]!r}"
    return f"{refusal.status} {refusal.code or 'without code'} ({said})"


def _by_code(refusals: Iterable[Refusal]) -> dict[str, int]:
    found: dict[str, int] = {}
    for refusal in refusals:
        name = f"{refusal.status} {refusal.code}"
        found[name] = found.get(name, 0) + 1
    return found


async def _bounds(context: Context, parameters: BurstParameters) -> Bounds:
    """From the profile, else from the node's settings or snapshot. Skips where nobody tells."""
    told = (await claims(context)).runtime
    running = parameters.running or told.max_running
    waiting = parameters.waiting if parameters.waiting is not None else told.max_queue
    if (running is None or waiting is None) and context.node is not None:
        queue = (await context.node.snapshot()).queue
        if isinstance(queue, Known):
            running = running or queue.value.max_running
            waiting = queue.value.max_waiting if waiting is None else waiting
    if running is None or waiting is None:
        skip(
            "the bounds of running and waiting requests are not known",
            remedy="name the control plane, or set running and waiting in the profile",
        )
    bounds = Bounds(running, waiting)
    if bounds.places + parameters.surplus > parameters.most:
        skip(f"{bounds.places} places are more than the profile fills: most {parameters.most}")
    return bounds


def held_body(context: Context, tokens: int = HELD_TOKENS) -> dict[str, Any]:
    """A short prompt whose answer of at most `tokens` does not end while one looks."""
    window = context.facts.max_model_len or 1024
    extra = {"ignore_eos": True} if context.facts.engine in ("kvops", "vllm") else {}
    return context.completion("Count:", min(tokens, max(1, window - 16)), **extra)


async def _overfill(
    context: Context, crowd: Crowd, bounds: Bounds, parameters: BurstParameters
) -> list[Guest]:
    """Fill every place and send the surplus; those that were refused by then."""
    crowd.invite(bounds.places + parameters.surplus, held_body(context))
    enough = parameters.surplus
    if await until(lambda: len(crowd.those("refused")) >= enough, parameters.refused_within):
        # One more refusal than there is surplus is to be seen, too.
        await asyncio.sleep(SETTLE_SECONDS)
    return crowd.those("refused")


def _require_bounded(
    crowd: Crowd, bounds: Bounds, refused: list[Guest], parameters: BurstParameters
) -> None:
    held, lost = crowd.in_flight, len(crowd.those("lost"))
    expected = f"at most {bounds.running} running + {bounds.waiting} waiting"
    require(
        not lost,
        observed=f"{lost} of {len(crowd.guests)} connections were lost",
        expected="an answer or a refusal for each",
        remedy="the node drops connections under a burst: see kvops node logs",
    )
    require(
        held <= bounds.places,
        observed=f"{held} requests held after {format_duration(parameters.refused_within)}, {len(refused)} refused",
        expected=expected,
        remedy="the queue has no bound: set runtime.max_queue, else a burst becomes minutes of waiting",
        n=len(crowd.guests),
        held=held,
    )
    taken = held + len(crowd.those("ended"))
    require(
        taken >= max(1, bounds.waiting),
        observed=f"{taken} of {len(crowd.guests)} requests were taken",
        expected=f"at least the {bounds.waiting} that may wait",
        remedy="the node turns requests away that it has room for: see its alerts and kvops node logs",
    )
    if len(refused) < parameters.surplus:
        inconclusive(
            f"{len(crowd.those('ended'))} requests ended before all places were taken",
            expected=expected,
            remedy="the model is too fast for this burst: set a larger surplus in the profile",
        )


def _require_queue_full(context: Context, refused: list[Guest], within: float) -> None:
    statuses = {guest.reply.status for guest in refused if guest.reply is not None}
    wrong = [code for code in statuses if code not in BUSY]
    codes = {guest.error for guest in refused}
    if context.is_kvops:
        wrong += [code for code in statuses if code != 429]
    require(
        not wrong and (codes == {"queue_full"} or not context.is_kvops),
        observed=f"the surplus was refused with {sorted(statuses)} {sorted(map(str, codes))}",
        expected="429 queue_full" if context.is_kvops else "429 or 503",
        remedy="clients cannot tell a full node from a broken one",
    )
    late = [guest.seconds for guest in refused if (guest.seconds or 0.0) > within]
    require(
        not late,
        observed=f"{len(late)} refusals came after more than {format_duration(within)}",
        expected="a refusal at once",
        remedy="a refusal that has waited helps nobody: see the queue's bound",
    )


async def _require_served(crowd: Crowd, within: float) -> int:
    """Let all go but a few that wait, or run where none waits: these must get a token."""
    kept = (crowd.those("sent") or crowd.those("streaming"))[:4]
    await crowd.dismiss([guest for guest in crowd.guests if guest not in kept])
    done = await until(lambda: all(guest.state != "sent" for guest in kept), within)
    failed = [guest.error for guest in kept if guest.state not in ("streaming", "ended")]
    require(
        done and not failed,
        observed=f"{len(failed)} of {len(kept)} requests that waited got no token"
        f" within {format_duration(within)}: {sorted({str(code) for code in failed})}",
        expected="an answer for each that was let in",
        remedy="the node takes requests that it does not serve: see kvops node logs",
    )
    return len(kept)


QUEUE_BOUND = Check(
    id="claims.queue_bound",
    title="Bounded queue",
    purpose="With more requests than places only the surplus is refused, at once; those that wait are answered.",
    parameters=BurstParameters,
    run=queue_bound,
    area="V5",
    typical=6.0,
    needs=("idle node",),
)
RETRY_AFTER = Check(
    id="claims.retry_after",
    title="When to come back",
    purpose="Every 429 and 503 says when to try again.",
    parameters=BurstParameters,
    run=retry_after,
    area="V5",
    needs=("idle node",),
    closing=True,
)
