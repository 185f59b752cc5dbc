"""Requests that kill engines: which shapes were in flight when one died, and which of them are refused for it.

A shape is what a request asks for without what it says: tenant, lengths in tokens, every sampling parameter. Exact
lengths and parameters are what makes an engine fail, are seldom shared by two prompts, can be read by an operator, and
give no prompt away. Nobody is refused for having been beside the culprit: a shape is quarantined when it was in more
crashes than any other; while several are level they are tried one at a time; and one that is answered is forgotten.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import structlog

from kvops import paths
from kvops.config.settings import Settings
from kvops.errors import EngineRestarted, Quarantined
from kvops.node.sampling import SamplingParams
from kvops.node.wire import Submit
from kvops.units import format_duration

MOST = 256
"""Shapes that are remembered; beyond, the oldest suspects are forgotten first."""
Standing = Literal["suspect", "on probation", "quarantined"]

log = structlog.get_logger("kvops.quarantine")


class Ask(msgspec.Struct, frozen=True):
    """One prompt of a request, without what it says. Token ids that it names are counted, not kept."""

    prompt_tokens: int
    params: SamplingParams
    biased_tokens: int
    stop_tokens: int
    seeded: bool


class Shape(msgspec.Struct, frozen=True):
    tenant: str
    choices: int
    """Sequences, over all prompts."""
    asks: tuple[Ask, ...]

    @classmethod
    def of(cls, submits: Collection[Submit]) -> Shape:
        tenant = next(iter(submits)).tenant
        asks = (_ask(one) for one in submits if one.leader is None)
        return cls(tenant, len(submits), tuple(asks))

    @property
    def id(self) -> str:
        """A short name, the same on every node."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=6).hexdigest()


def _ask(submit: Submit) -> Ask:
    params = submit.params
    return Ask(
        len(submit.prompt_token_ids),
        msgspec.structs.replace(params, logit_bias={}, stop_token_ids=(), seed=None),
        len(params.logit_bias),
        len(params.stop_token_ids),
        params.seed is not None,
    )


class Suspect(msgspec.Struct):
    id: str
    shape: Shape
    crashes: Annotated[list[float], msgspec.Meta(min_length=1)]
    """When an engine died with it in flight, unix seconds."""
    reasons: list[str]
    """Why each of them died."""
    until: float | None = None
    """Quarantined so long, unix seconds."""


class Quarantine:
    """Kept in `file`, so that neither a new engine nor a new daemon forgets."""

    def __init__(self, file: Path, settings: Settings) -> None:
        self._file = file
        self._settings = settings
        self._suspects = {one.id: one for one in _read(file)}
        self.refused = 0
        """Requests, since the node started."""

    def check(self, submits: Collection[Submit], in_flight: Iterable[Collection[Submit]]) -> None:
        """Raises Quarantined, or EngineRestarted for a shape on probation while another one is in flight."""
        if not self._suspects:
            return
        self._expire()
        suspect = self._suspects.get(Shape.of(submits).id)
        if suspect is None or self.standing(suspect) == "suspect":
            return
        if suspect.until is not None:
            self.refused += 1
            raise _refusal(suspect, suspect.until)
        if any(self._on_probation(other) for other in in_flight):
            raise EngineRestarted(
                f"requests like this one were in flight at {len(suspect.crashes)} engine crashes, "
                "as others were: they are tried one at a time.",
                hint="Send it again.",
            )

    def engine_lost(self, reason: str, in_flight: Iterable[Collection[Submit]]) -> None:
        """An engine died with these requests."""
        now = time.time()
        shapes = {shape.id: shape for shape in map(Shape.of, in_flight)}
        if not shapes:
            return
        self._expire()
        for name, shape in shapes.items():
            suspect = self._suspects.setdefault(name, Suspect(name, shape, [], []))
            suspect.crashes.append(now)
            suspect.reasons.append(reason)
        self._judge([self._suspects[name] for name in shapes], now)
        self._bound()
        self._save()

    def answered(self, submits: Collection[Submit]) -> None:
        """An engine survived it: it was not the cause of what it was near to. Only an operator undoes a quarantine."""
        if not self._suspects:
            return
        name = Shape.of(submits).id
        if name in self._suspects and self._suspects[name].until is None:
            del self._suspects[name]
            self._save()

    def clear(self, name: str | None) -> int:
        """Forget one shape, or all; how many."""
        gone = [one for one in self._suspects if name in (None, one)]
        for one in gone:
            del self._suspects[one]
        if gone:
            self._save()
        return len(gone)

    def all(self) -> list[Suspect]:
        """Worst first."""
        self._expire()
        return sorted(
            self._suspects.values(), key=lambda one: (one.until is None, -len(one.crashes))
        )

    def standing(self, suspect: Suspect) -> Standing:
        if suspect.until is not None:
            return "quarantined"
        enough = len(suspect.crashes) >= self._settings.config.quarantine.crashes
        return "on probation" if enough else "suspect"

    @property
    def quarantined(self) -> int:
        """Shapes that are refused now."""
        self._expire()
        return sum(one.until is not None for one in self._suspects.values())

    def _judge(self, in_flight: list[Suspect], now: float) -> None:
        bounds = self._settings.config.quarantine
        most = max(len(one.crashes) for one in in_flight)
        worst = [one for one in in_flight if len(one.crashes) == most]
        if most < bounds.crashes or len(worst) > 1:
            return
        worst[0].until = now + bounds.ttl
        log.error("quarantined", shape=worst[0].id, tenant=worst[0].shape.tenant, crashes=most)

    def _on_probation(self, submits: Collection[Submit]) -> bool:
        suspect = self._suspects.get(Shape.of(submits).id)
        return suspect is not None and self.standing(suspect) == "on probation"

    def _expire(self) -> None:
        """Nothing is written: what has expired on disk expires again when it is read."""
        now, window = time.time(), self._settings.config.quarantine.window
        for suspect in list(self._suspects.values()):
            ends = suspect.crashes[-1] + window if suspect.until is None else suspect.until
            if ends < now:
                del self._suspects[suspect.id]

    def _bound(self) -> None:
        by_worth = sorted(
            self._suspects.values(), key=lambda one: (one.until is not None, one.crashes[-1])
        )
        for suspect in by_worth[: max(0, len(by_worth) - MOST)]:
            del self._suspects[suspect.id]

    def _save(self) -> None:
        """A full disk costs the memory of a next daemon, not the service of this one."""
        try:
            paths.write_atomic(self._file, msgspec.json.encode(list(self._suspects.values())))
        except OSError as error:
            log.error("quarantine_not_saved", error=error.strerror)


def _refusal(suspect: Suspect, until: float) -> Quarantined:
    left = format_duration(max(1.0, until - time.time()))
    return Quarantined(
        f"requests of this shape (tenant, lengths, parameters) were in flight at {len(suspect.crashes)} engine "
        f"crashes, so they are refused for another {left}.",
        hint=f"Change its length or parameters, or have the operator look: kvops node quarantine list, {suspect.id}.",
        extra={"fingerprint": suspect.id},
    )


def _read(file: Path) -> list[Suspect]:
    """Nothing where there is no file; one that cannot be read is told and overwritten by the next crash."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Suspect])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError) as error:
        log.error("quarantine_not_read", file=file.name, error=type(error).__name__)
        return []
