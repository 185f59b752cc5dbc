"""New settings for a node that runs: checked whole, stored, then in force at once; or refused, and nothing has changed.

What cannot change live stays as it is and is named. Requests in flight keep what they were admitted under.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from kvops.config.history import History, Version, user
from kvops.config.live import Change, applied, changes
from kvops.config.load import LoadedConfig, load_document
from kvops.config.next_start import (
    NextStart,
    change_rows,
    next_start,
    overridden,
    start_command,
)
from kvops.config.schema import NodeConfig
from kvops.config.settings import Settings
from kvops.errors import ConfigError, InvalidRequest, NotStored

_ORIGIN = "reload"
_LOOK_SECONDS = 0.25

log = structlog.get_logger("kvops.reload")


class Part(Protocol):
    """Who has to be told of new settings, beside those who read them at use."""

    def check(self, config: NodeConfig) -> None:
        """Whether `take` will do. Raises ConfigError; changes nothing."""

    def take(self, config: NodeConfig) -> None:
        """From now on. Does not fail for what `check` let through."""


@dataclass(frozen=True)
class Outcome:
    version: Version
    previous: Version
    """The version before; where a restart was pending, not all of it was in force."""
    before: str
    """Hash of the settings that were in force."""
    after: str
    """Hash of those that are now: the version's own, unless a restart is needed."""
    live: Sequence[Change]
    """What is in force now."""
    restart_needed: Sequence[Change]
    """What is in force with the next start."""
    overridden: Mapping[str, str]
    """Key → origin, where the command line or the environment is stronger than what was applied."""
    next_start: NextStart


class Reload:
    """Also while an engine loads or is replaced: who goes back may do so because it dies of what is in force.

    `ready`: whether an engine serves.
    """

    def __init__(
        self,
        settings: Settings,
        history: History,
        version: Version,
        parts: Sequence[Part],
        ready: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._history = history
        self._parts = parts
        self._ready = ready
        self._confirming: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self.version = version
        """Applied last."""
        self.restart_needed: Sequence[Change] = ()
        """What that version says and is not in force."""

    async def apply(self, document: Mapping[str, Any], author: str, note: str = "") -> Outcome:
        """Raises InvalidRequest for what is wrong in it, and NotStored."""
        async with self._one_at_a_time:
            return await self._apply(document, author, note)

    async def roll_back(self, number: int | None, author: str, note: str = "") -> Outcome:
        """To a version; by default one step, to the last good one before this. Raises as `apply`."""
        async with self._one_at_a_time:
            with _refused():
                history = self._history
                target = history.last_good() if number is None else history.version(number)
                document = history.document(target)
            note = note or f"rollback to v{target.origin}"
            return await self._apply(document, author, note, restores=target.origin)

    async def confirm(self) -> None:
        """A node is ready with all of the version, unless a restart is needed for that."""
        if not self.restart_needed:
            await asyncio.to_thread(self._mark_good, self.version)

    async def _apply(
        self, document: Mapping[str, Any], author: str, note: str, restores: int | None = None
    ) -> Outcome:
        before = self._settings.loaded
        with _refused():
            wanted = self._load(document)
            in_force = applied(before, wanted)
            for part in self._parts:
                part.check(in_force.config)
        version = await self._store(wanted, author, note, restores)
        in_force = _named(in_force, f"{_ORIGIN} v{version.id}")
        for part in self._parts:
            part.take(in_force.config)
        self._settings.swap(in_force)
        differing = changes(before.config, wanted.config)
        previous, self.version = self.version, version
        self.restart_needed = [change for change in differing if not change.live]
        outcome = Outcome(
            version=version,
            previous=previous,
            before=before.config_hash,
            after=in_force.config_hash,
            live=[change for change in differing if change.live],
            restart_needed=self.restart_needed,
            overridden=overridden(wanted),
            next_start=await asyncio.to_thread(next_start, wanted, self._history.current_file),
        )
        _tell(outcome)
        await self._confirm_in_time()
        return outcome

    async def _confirm_in_time(self) -> None:
        """Now, or once an engine serves."""
        if self._confirming is not None:
            self._confirming.cancel()
        if self._ready():
            await self.confirm()
        else:
            self._confirming = asyncio.create_task(self._confirm_later())

    async def _confirm_later(self) -> None:
        while not self._ready():  # noqa: ASYNC110 (nobody tells of a replaced engine)
            await asyncio.sleep(_LOOK_SECONDS)
        await self.confirm()

    def _load(self, document: Mapping[str, Any]) -> LoadedConfig:
        """A file that gives no name is this node's; one of another node is a mistake. Raises ConfigError."""
        name = self._settings.config.name
        wanted = load_document({"name": name, **document}, _ORIGIN, self._settings.loaded.overrides)
        if wanted.config.name != name:
            raise ConfigError(
                f"name = {wanted.config.name!r}: these are settings of another node, this one is {name!r}",
                hint="name the node that is meant with --node, or correct the file",
            )
        return replace(wanted, file=self._settings.loaded.file)

    async def _store(
        self, wanted: LoadedConfig, author: str, note: str, restores: int | None
    ) -> Version:
        with _refused():
            try:
                return await asyncio.to_thread(self._history.record, wanted, author, note, restores)
            except OSError as error:
                raise NotStored(
                    f"the version cannot be stored: {error.strerror}. Nothing has changed.",
                    hint="Make room for the node's state folder, then apply again.",
                ) from None

    def _mark_good(self, version: Version) -> None:
        try:
            self._history.mark_good(version.id)
        except (OSError, ConfigError) as error:
            log.warning("version_not_marked", version=version.id, error=type(error).__name__)


def begin(history: History, loaded: LoadedConfig, report: Callable[[str, str], None]) -> Version:
    """Store what a node starts with. A history that cannot be read is put aside, and said so. Raises OSError."""
    try:
        _tell_of_going_back(history, loaded, report)
        version = history.record(loaded, user(), "node start", started=True)
    except ConfigError as error:
        aside = history.put_aside()
        log.warning("history_put_aside", error=error.message, file=str(aside))
        report("settings history", f"begun anew: {error.message}; kept as {aside}")
        version = history.record(loaded, user(), "node start", started=True)
    report("settings", f"v{version.id} {version.config_hash}")
    return version


def _tell_of_going_back(
    history: History, loaded: LoadedConfig, report: Callable[[str, str], None]
) -> None:
    """Loudly, where what was applied or rolled back to last is not what this start takes. Raises ConfigError."""
    last = history.current()
    if last is None or last.started:
        return
    words = f"this start leaves v{last.id} ({last.note or 'applied'}, by {last.author})"
    try:
        before = load_document(history.document(last), f"version {last.id}", loaded.overrides)
    except ConfigError as error:
        report("warning", f"settings: {words}, which cannot be compared: {error.message}")
        return
    found = changes(before.config, loaded.config)
    if not found:
        return
    log.warning("version_left", version=last.id, keys=[change.key for change in found])
    source = "the command line" if loaded.file is None else str(loaded.file)
    report("warning", f"settings: {words}: {source} says otherwise")
    for row in change_rows(found):
        told = f"{json.dumps(row['before'])} → {json.dumps(row['after'])}"
        report("warning", f"settings: {row['key']}: {told}")
    way = start_command(history.current_file, loaded.overrides)
    mend = f"or start with: {way}" if loaded.file is None else f"and correct {source}, or: {way}"
    back = f"kvops config rollback v{last.id} --node {loaded.config.name}"
    report("warning", f"settings: to have v{last.id} again, and with each start: {back}; {mend}")


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """What is wrong with settings, as an answer to who sent them."""
    try:
        yield
    except ConfigError as error:
        raise InvalidRequest(f"nothing has changed: {error.message}.", hint=error.hint) from None


def _named(loaded: LoadedConfig, origin: str) -> LoadedConfig:
    """With the version that a setting came with as its origin."""
    origins = {key: origin if old == _ORIGIN else old for key, old in loaded.origins.items()}
    return replace(loaded, origins=origins)


def _tell(outcome: Outcome) -> None:
    log.info(
        "reloaded",
        version=outcome.version.id,
        hash=outcome.version.config_hash,
        author=outcome.version.author,
        before=outcome.before,
        after=outcome.after,
        live=[change.key for change in outcome.live],
        restart_needed=[change.key for change in outcome.restart_needed],
    )
