"""Are answers the same while the node is busy as when it is idle?

A mixed-up block table, a cache hit on a foreign block or a preemption that forgets shows only beside other requests.
Half of the prompts are asked idle first, half under load first, so that both cold and cached prompts are under load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from pydantic import Field

from kvops.load.client import Client
from kvops.load.haystack import Prompt
from kvops.load.needle import Cell, counter, plan, prompt_for
from kvops.load.reports.base import RunData
from kvops.verify.api import CHECK_BOUND
from kvops.verify.check import Check, Outcome, Parameters, fail, inconclusive, warn
from kvops.verify.context import Context
from kvops.verify.driven import artifact, drive, kept
from kvops.verify.judge import answered
from kvops.verify.occupancy import wait_until
from kvops.verify.planned import SCENARIO

ENDLESS = 100_000
"""Requests of the background load: it ends when the answers are in."""


class UnderLoadParameters(Parameters):
    lengths: tuple[int, ...] = Field(default=(200, 600), min_length=1, max_length=16)
    """Prompt tokens; those over the node's limit are left out."""
    depths: tuple[float, ...] = Field(default=(0, 50, 100), min_length=1, max_length=16)
    users: int = Field(default=6, ge=1, le=10_000)
    """Of the load beside them."""
    prompt_tokens: int = Field(default=64, ge=16)
    max_tokens: int = Field(default=32, ge=4)
    """Of the load, and of the answers."""
    exact: bool | None = None
    """Whether the texts must be the same to the letter. Default: on a node of kvops, whose answers do not depend on
    what else is in the batch; elsewhere a text that differs is remarked on."""
    busy_within: float = Field(default=20.0, gt=0)
    """Seconds until the load must be seen running."""
    seed: int = 0


class Pair(msgspec.Struct, frozen=True):
    """One prompt asked twice."""

    name: str
    idle: str
    loaded: str
    value: str
    """The number that both should hold."""

    @property
    def lost(self) -> bool:
        return self.value in self.idle and self.value not in self.loaded

    @property
    def differs(self) -> bool:
        return self.idle != self.loaded


async def under_load(context: Context, parameters: UnderLoadParameters) -> Outcome:
    prompts = await asyncio.to_thread(_prompts, context, parameters)
    first, second = prompts[::2], prompts[1::2]
    idle = [await _ask(context, prompt, parameters) for _, prompt in first]
    done = asyncio.Event()
    load = asyncio.create_task(_background(context, parameters, done))
    try:
        await _busy(context, parameters, load)
        loaded = [await _ask(context, prompt, parameters) for _, prompt in [*first, *second]]
    finally:
        done.set()
        data = await load
    idle += [await _ask(context, prompt, parameters) for _, prompt in second]
    pairs = [
        Pair(cell.name, before, during, cell.needle.value)
        for (cell, _), before, during in zip([*first, *second], idle, loaded, strict=True)
    ]
    exact = context.is_kvops if parameters.exact is None else parameters.exact
    outcome = judge(pairs, exact, parameters)
    evidence = outcome.evidence | kept(data)
    return msgspec.structs.replace(outcome, evidence=evidence, artifacts=(artifact(data),))


def _prompts(context: Context, parameters: UnderLoadParameters) -> list[tuple[Cell, Prompt]]:
    client = Client(context.target.url, api_key=context.target.api_key)
    count, _ = counter(client, context.model)
    limit = context.facts.max_model_len
    lengths = [n for n in parameters.lengths if limit is None or n + parameters.max_tokens <= limit]
    if not lengths:
        inconclusive(
            f"the node's limit of {limit} tokens is under every length of the profile",
            expected=f"{min(parameters.lengths)} or more",
            remedy="lower lengths in the profile",
        )
    cells = plan(parameters.seed, lengths, parameters.depths, 1)
    asked = [cell for cell in cells if cell.depth is not None]
    return [(cell, prompt_for(cell, parameters.seed + 1, count)) for cell in asked]


async def _background(
    context: Context, parameters: UnderLoadParameters, done: asyncio.Event
) -> RunData:
    options = {
        "requests": ENDLESS,
        "prompt_tokens": str(parameters.prompt_tokens),
        "max_tokens": str(parameters.max_tokens),
        "priority": "none",
    }
    return await drive(
        context,
        SCENARIO,
        users=parameters.users,
        duration=None,
        options=options,
        enough=lambda _records: done.is_set(),
    )


async def _ask(context: Context, prompt: Prompt, parameters: UnderLoadParameters) -> str:
    body = context.chat([{"role": "user", "content": prompt.text}], parameters.max_tokens)
    reply = await context.api.post("/v1/chat/completions", body, within=CHECK_BOUND)
    return answered(reply, "a recall prompt").answer


async def _busy(
    context: Context, parameters: UnderLoadParameters, load: asyncio.Task[RunData]
) -> None:
    """Wait until the load is seen; where the engine shows nothing, until some of it has been answered."""
    _, seen = await wait_until(
        context, lambda now: now.running >= min(2, parameters.users), parameters.busy_within
    )
    if not seen and not load.done():
        inconclusive(
            "the load was never seen running",
            expected=f"{parameters.users} users at once",
            remedy="run the gate on an idle node",
        )


def judge(pairs: Sequence[Pair], exact: bool, parameters: UnderLoadParameters) -> Outcome:
    """`exact`: the texts must be the same."""
    knew = [pair for pair in pairs if pair.value in pair.idle]
    lost = [pair.name for pair in pairs if pair.lost]
    differ = [pair.name for pair in pairs if pair.differs]
    n = len(pairs)
    evidence = {"found_idle": len(knew), "lost": lost, "differ": differ, "users": parameters.users}
    expected = "the same answers as on the idle node"
    if lost or (exact and differ):
        what = f"{len(lost)} numbers lost" if lost else f"{len(differ)} texts differ"
        fail(
            observed=f"{what} of {n} prompts beside {parameters.users} users",
            expected=expected,
            remedy="requests disturb each other: turn kv_cache.prefix_caching off and compare, and report the defect",
            n=n,
            **evidence,
        )
    if not knew:
        inconclusive(
            "no prompt was answered with its number on the idle node",
            expected="a model that recalls",
            remedy="see recall.grid",
            n=n,
            **evidence,
        )
    if differ:
        warn(
            observed=f"{len(differ)} of {n} texts differ, each with its number",
            expected=expected,
            remedy="this engine's arithmetic depends on the batch: do not rely on answers that can be had again",
            n=n,
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=f"{n} answers the same beside {parameters.users} users, {len(knew)} with their number",
        expected=expected,
        n=n,
        evidence=evidence,
    )


UNDER_LOAD = Check(
    id="recall.under_load",
    title="Recall under load",
    purpose="The same prompts get the same greedy answers, cold and cached, while other requests run.",
    parameters=UnderLoadParameters,
    run=under_load,
    area="V7",
    typical=15.0,
    needs=("idle node", "load"),
)
