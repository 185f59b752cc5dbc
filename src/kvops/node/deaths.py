"""Why an engine died: the word that is counted, and the error that a node ends with."""

from __future__ import annotations

from typing import Literal

from kvops.config.settings import Settings
from kvops.errors import EngineDied, KvopsError, from_code
from kvops.node.child import EngineChild
from kvops.node.wire import Fatal
from kvops.units import format_duration

RestartReason = Literal["killed", "exited", "fatal", "stalled", "protocol"]


def reason_of(code: int, fatal: Fatal | None, killed_as: RestartReason | None) -> RestartReason:
    """By its last word, by why the daemon killed it, by its exit code."""
    if fatal is not None:
        return "fatal"
    return killed_as or ("killed" if code < 0 else "exited")


def cause_of(fatal: Fatal | None) -> KvopsError | None:
    """What the engine gave as its reason, as an error of the tree."""
    if fatal is None or fatal.code == EngineDied.code:
        return None
    return from_code(fatal.code, fatal.message, fatal.hint)


def end_of_loading(reason: RestartReason, phase: str, settings: Settings) -> str:
    """`phase`: what was done last."""
    if reason != "stalled":
        return f"the engine ended while loading ({reason})"
    bound = format_duration(settings.config.runtime.load_stall_after)
    return (
        f"the engine hung while loading: nothing after {phase!r} for {bound}, "
        "the bound runtime.load_stall_after"
    )


def death(what: str, fatal: Fatal | None, child: EngineChild) -> EngineDied:
    words = child.last_words() if fatal is None else fatal.message
    said = fatal is not None or child.spoke
    more = "; what the engine wrote: kvops node logs --engine" if said else ""
    return EngineDied(
        f"{what}: {words}", hint=f"kvops node logs has each end with reason and exit code{more}"
    )
