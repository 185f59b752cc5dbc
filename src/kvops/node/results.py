"""Answers kept for equal requests that can have no other answer: greedy or seeded, same tenant, model and tokens.

Invariants: no tenant meets another's answers. What a tenant keeps is bounded in number, bytes and age; the least
recently used goes first.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from kvops.config.schema import ResultStore as Bounds
from kvops.config.settings import Settings
from kvops.node.sampling import SamplingParams
from kvops.node.wire import TokenDelta

Prompts = tuple[tuple[tuple[int, ...], SamplingParams], ...]
Events = list[tuple[int, TokenDelta]]
"""(index of the choice, what a step added to it), in the order of arrival."""

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODER = msgspec.msgpack.Decoder(Events)


@dataclass(frozen=True, slots=True)
class _Kept:
    events: bytes
    until: float
    """Monotonic seconds."""


@dataclass
class _Shelf:
    """One tenant's answers, the least recently used first."""

    kept: OrderedDict[bytes, _Kept] = field(default_factory=OrderedDict)
    size: int = 0

    def pop(self, key: bytes) -> _Kept | None:
        found = self.kept.pop(key, None)
        self.size -= len(found.events) if found else 0
        return found

    def put(self, key: bytes, kept: _Kept) -> None:
        self.pop(key)
        self.kept[key] = kept
        self.size += len(kept.events)


class ResultStore:
    def __init__(
        self, settings: Settings, revision: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._revision = revision
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}

    @property
    def _bounds(self) -> Bounds:
        return self._settings.config.runtime.result_store

    def key(self, prompts: Prompts, n: int, stops: tuple[str, ...]) -> bytes | None:
        """What an equal request has too; None for one whose answer is not kept."""
        if not self._bounds.entries or not all(map(_deterministic, prompts)):
            return None
        return hashlib.sha256(_ENCODE((self._revision, prompts, n, stops))).digest()

    def get(self, tenant: str, key: bytes) -> Events | None:
        shelf = self._shelves.get(tenant)
        kept = shelf.pop(key) if shelf else None
        if shelf is None or kept is None or kept.until < self._clock():
            return None
        shelf.put(key, kept)
        return _DECODER.decode(kept.events)

    def put(self, tenant: str, key: bytes, events: Events) -> None:
        """An answer larger than the bound is not kept."""
        bounds = self._bounds
        kept = _Kept(_ENCODE(events), self._clock() + bounds.ttl)
        if len(kept.events) > bounds.bytes:
            return
        shelf = self._shelves.setdefault(tenant, _Shelf())
        shelf.put(key, kept)
        while len(shelf.kept) > bounds.entries or shelf.size > bounds.bytes:
            shelf.pop(next(iter(shelf.kept)))

    def flush(self) -> int:
        """Forget all; how many answers there were."""
        count = sum(len(shelf.kept) for shelf in self._shelves.values())
        self._shelves.clear()
        return count


def _deterministic(prompt: tuple[tuple[int, ...], SamplingParams]) -> bool:
    return prompt[1].temperature == 0 or prompt[1].seed is not None
