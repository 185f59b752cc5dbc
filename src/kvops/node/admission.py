"""The way in: ready → room in the queue → a deadline. What is admitted gets an answer or a named error.

Waiting means: given to the engine and not started yet, or preempted. The queue is bounded by what would wait beyond
the batch slots that are free and that the block pool can fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import msgspec

from kvops.config.schema import Runtime
from kvops.config.settings import Settings
from kvops.errors import Draining, InvalidRequest, QueueFull, RequestCancelled, TenantLimit
from kvops.node.generation import Choice, Generation
from kvops.node.meter import Meter
from kvops.node.quarantine import Quarantine
from kvops.node.results import ResultStore
from kvops.node.sampling import SamplingParams
from kvops.node.supervisor import Supervisor
from kvops.node.wire import RANK, PriorityClass, Submit

MAX_CHOICES = 128


@dataclass(frozen=True)
class Work:
    """What a request asks of the engine: n sequences for each prompt."""

    request_id: str
    tenant: str
    salt: bytes
    priority: PriorityClass
    prompts: tuple[tuple[tuple[int, ...], SamplingParams], ...]
    n: int
    received_at: float
    stops: tuple[str, ...] = ()
    """Texts that end a choice; the engine knows nothing of them."""

    def submits(self) -> list[Submit]:
        return [
            self._submit(at, sibling)
            for at in range(len(self.prompts))
            for sibling in range(self.n)
        ]

    def _submit(self, at: int, sibling: int) -> Submit:
        tokens, params = self.prompts[at]
        first = at * self.n
        return Submit(
            request_id=self._choice_id(first + sibling),
            prompt_token_ids=tokens,
            params=_seeded(params, sibling),
            tenant=self.tenant,
            salt=self.salt,
            priority=self.priority,
            leader=None if sibling == 0 else self._choice_id(first),
        )

    def _choice_id(self, index: int) -> str:
        return self.request_id if len(self.prompts) * self.n == 1 else f"{self.request_id}-{index}"


class Admission:
    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        meter: Meter,
        results: ResultStore,
        quarantine: Quarantine,
    ) -> None:
        self._settings = settings
        self.results = results
        self.quarantine = quarantine
        self._supervisor = supervisor
        self._meter = meter
        self._generations: dict[str, Generation] = {}
        self.door: Literal["open", "draining", "stopping"] = "open"
        self.idle = asyncio.Event()
        """Set while no request is in flight."""
        self.idle.set()

    @property
    def _runtime(self) -> Runtime:
        return self._settings.config.runtime

    def check_open(self) -> None:
        """Raises Draining, NotReady, EngineRestarted: asked before any work is spent on a request."""
        if self.door != "open":
            raise Draining("the node is draining and takes no new requests.")
        if self._supervisor.state != "ready":
            raise self._supervisor.why_not_ready()

    def admit(self, work: Work) -> Generation:
        """Raises what `check_open` raises, Quarantined, QueueFull, TenantLimit."""
        self.check_open()
        key = self.results.key(work.prompts, work.n, work.stops)
        known = self.results.get(work.tenant, key) if key else None
        generation = Generation(
            work.request_id,
            self._supervisor,
            self._meter,
            received_at=work.received_at,
            result_key=None if known else key,
            on_close=self._forget,
        )
        if known:
            generation.replay(work.submits(), known)
        else:
            self._submit(generation, work)
        self._generations[work.request_id] = generation
        self.idle.clear()
        return generation

    def _submit(self, generation: Generation, work: Work) -> None:
        submits = work.submits()
        self.quarantine.check(submits, self._in_engine())
        self._check_possible(work)
        self._check_number(len(submits))
        self._check_queue(submits)
        self._check_tenant(work.tenant, len(submits))
        generation.submit(
            submits,
            queue_timeout=self._runtime.queue_timeout,
            request_timeout=self._runtime.request_timeout,
        )

    def _check_possible(self, work: Work) -> None:
        """Raises InvalidRequest for more choices than an idle node would take in: to try again would not help."""
        runtime, limits = self._runtime, self._settings.config.tenant(work.tenant)
        own = min(runtime.max_running, limits.max_running or 1 << 30)
        bounds = {
            "the node": runtime.max_running + runtime.max_queue,
            "runtime.max_concurrent_requests": runtime.max_concurrent_requests,
            "this key's tenant": None if limits.max_waiting is None else own + limits.max_waiting,
        }
        wanted = len(work.prompts) * work.n
        most, whose = min((most, whose) for whose, most in bounds.items() if most is not None)
        if wanted > most:
            raise InvalidRequest(
                f"{wanted} sequences are asked for at once; {whose} allows {most}.",
                param="n" if work.n > 1 else "prompt",
                hint="Ask for them in several requests.",
            )

    def _check_number(self, wanted: int) -> None:
        most, here = self._runtime.max_concurrent_requests, sum(1 for _ in self.choices())
        if most is not None and here + wanted > most:
            raise QueueFull(
                f"{here} requests are in the node and {wanted} more asked for; "
                f"runtime.max_concurrent_requests allows {most}.",
                hint="Try again later.",
            )

    def _check_queue(self, wanted: list[Submit]) -> None:
        """Only those of the same or a better class count: a lower one cannot fill the queue of a higher one."""
        rank = RANK[wanted[0].priority]
        running, waiting = (
            [choice.submit for choice in half if RANK[choice.submit.priority] <= rank]
            for half in self.split()
        )
        behind = waiting + wanted
        if len(behind) - self._startable(len(running), behind) > self._runtime.max_queue:
            raise QueueFull(
                f"{len(waiting)} requests wait and {len(running)} run; at most {self._runtime.max_queue} may wait.",
                hint="Try again later.",
            )

    def _startable(self, running: int, behind: list[Submit]) -> int:
        """How many of `behind` the next steps will take in: a free slot in the batch is none without the blocks."""
        slots = max(0, self._runtime.max_running - running)
        stats = self._supervisor.stats
        if stats is None:
            return min(slots, len(behind))
        if any(row.state == "preempted" for row in stats.requests):
            return 0
        seen = {row.request_id for row in stats.requests if row.state != "waiting"}
        unseen = [
            choice.submit
            for choice in self.choices()
            if not choice.unstarted and choice.request_id not in seen
        ]
        needs = [_blocks(submit, stats.kv.block_size) for submit in (*unseen, *behind)]
        left = stats.kv.free_blocks + stats.kv.cached_blocks
        fitting = sum(total <= left for total in accumulate(needs))
        return min(slots, len(behind), max(0, fitting - len(unseen)))

    def _check_tenant(self, tenant: str, wanted: int) -> None:
        limits = self._settings.config.tenant(tenant)
        if limits.max_waiting is None:
            return
        slots = min(self._runtime.max_running, limits.max_running or 1 << 30)
        running, waiting = (
            sum(choice.submit.tenant == tenant for choice in half) for half in self.split()
        )
        if waiting + wanted - max(0, slots - running) > limits.max_waiting:
            raise TenantLimit(
                f"this key's tenant may have {slots} requests running and {limits.max_waiting} waiting.",
                hint="Try again later.",
            )

    # What is in flight.

    def choices(self) -> Iterator[Choice]:
        """Those that have not ended."""
        for generation in self._generations.values():
            yield from (choice for choice in generation.choices if choice.finish is None)

    @property
    def in_flight(self) -> int:
        """Requests whose answer is not complete."""
        return len(self._generations)

    def split(self) -> tuple[list[Choice], list[Choice]]:
        """Those in flight that run, and those that wait; preempted is what the engine last said."""
        stats = self._supervisor.stats
        preempted = {
            row.request_id for row in (stats.requests if stats else ()) if row.state == "preempted"
        }
        running: list[Choice] = []
        waiting: list[Choice] = []
        for choice in self.choices():
            waits = choice.unstarted or choice.request_id in preempted
            (waiting if waits else running).append(choice)
        return running, waiting

    def cancel(self, request_id: str) -> bool:
        """Cancel by the id of a request or of one of its choices. False when none such is in flight."""
        for generation in self._generations.values():
            if request_id in {
                generation.request_id,
                *(choice.request_id for choice in generation.choices),
            }:
                generation.fail(RequestCancelled("an operator cancelled the request."))
                return True
        return False

    def engine_lost(self, reason: str) -> None:
        """To be called while those that it takes with it are still in flight."""
        self.quarantine.engine_lost(reason, self._in_engine())

    def _in_engine(self) -> Iterator[list[Submit]]:
        """By request. One that was stopped by its client or a deadline is none of the engine's any more."""
        for generation in self._generations.values():
            if any(choice.finish is None for choice in generation.choices):
                yield [choice.submit for choice in generation.choices]

    def fail_all(self) -> None:
        """End what still runs, each with a terminal error."""
        for generation in list(self._generations.values()):
            generation.fail(Draining("the node stopped before the request was done."))

    def _forget(self, generation: Generation) -> None:
        if generation.outcome in ("stop", "length") and not generation.stored:
            self.quarantine.answered([choice.submit for choice in generation.choices])
        if generation.result_key is not None and generation.outcome in ("stop", "length"):
            self.results.put(generation.tenant, generation.result_key, generation.events)
        self._generations.pop(generation.request_id, None)
        if not self._generations:
            self.idle.set()


def _blocks(submit: Submit, block_size: int) -> int:
    """Blocks it takes to start; a sibling shares its leader's, but for the last one."""
    return 1 if submit.leader else -(-len(submit.prompt_token_ids) // block_size)


def _seeded(params: SamplingParams, sibling: int) -> SamplingParams:
    """Siblings of a seeded request differ from each other, and each is reproducible."""
    if params.seed is None or sibling == 0:
        return params
    seed = (params.seed + sibling + 2**63) % 2**64 - 2**63
    return msgspec.structs.replace(params, seed=seed)
