"""The engine's side of one request: its tokens, how far they are computed, and the blocks it holds.

Invariant: `computed` tokens have their keys and values in the blocks of `table`; the next to compute is
`tokens[computed]`. A request samples only when all of its tokens are computed.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Literal

from kvops.node.engine.block_pool import BlockKey
from kvops.node.sampling import SamplingParams
from kvops.node.wire import RANK, PriorityClass, Submit
from kvops.telemetry.snapshot import RequestRow, RequestState

Obstacle = Literal["tenant", "node"]

BATCH_RANK = RANK["batch"]


@dataclass(eq=False)
class Request:
    request_id: str
    tokens: list[int]
    """Prompt, then output."""
    prompt_length: int
    params: SamplingParams
    tenant: str
    salt: bytes
    priority: PriorityClass
    leader: str | None
    seed: int
    """Of the sampler's noise; drawn here when the client gave none."""
    order: tuple[int, int] = (0, 0)
    """Class, then arrival: smaller is served first and preempted last."""
    state: RequestState = "waiting"
    computed: int = 0
    table: list[int] = field(default_factory=list)
    """Block ids, in token order."""
    keys: list[BlockKey] = field(default_factory=list)
    """Of the full blocks of `tokens` named so far; they outlive a preemption."""
    shared_keys: int = 0
    """How many of `keys`, from the first on, lie in an operator's shared prefix."""
    committed: int = 0
    """How many blocks of `table` are known to the prefix cache under their digest."""
    cached_tokens: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""
    overtaken: int = 0
    """How often one of its class that came later was let in while there was no room for this one."""
    refused_at: int = -1
    """`BlockPool.releases` when there was no room for it last."""
    kv_quota: int | None = None
    """Blocks that its tenant might hold when it came in; None: any number."""
    refused_for: Obstacle | None = None
    """Whose bound it was: its tenant's or the node's."""
    preemptions: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    started_at: float | None = None
    first_token_at: float | None = None

    @classmethod
    def from_submit(cls, submit: Submit, arrival: int) -> Request:
        seed = submit.params.seed
        return cls(
            request_id=submit.request_id,
            tokens=list(submit.prompt_token_ids),
            prompt_length=len(submit.prompt_token_ids),
            params=submit.params,
            tenant=submit.tenant,
            salt=submit.salt,
            priority=submit.priority,
            leader=submit.leader,
            seed=secrets.randbits(64) if seed is None else seed,
            order=(RANK[submit.priority], arrival),
        )

    @property
    def rank(self) -> int:
        """Of its class: 0 is served first."""
        return self.order[0]

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def row(self, now: float) -> RequestRow:
        """What an operator sees; `now` is monotonic."""
        return RequestRow(
            request_id=self.request_id,
            tenant=self.tenant,
            priority=self.priority,
            state=self.state,
            prompt_tokens=self.prompt_length,
            generated_tokens=self.generated,
            max_tokens=self.params.max_tokens,
            kv_blocks=len(self.table),
            cached_tokens=self.cached_tokens,
            age_seconds=now - self.arrived_at,
            wait_seconds=(now if self.started_at is None else self.started_at) - self.arrived_at,
            ttft_seconds=None
            if self.first_token_at is None
            else self.first_token_at - self.arrived_at,
            preemptions=self.preemptions,
        )
