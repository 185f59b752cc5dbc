"""From the command line's words to a running console."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kvops.errors import UsageError
from kvops.telemetry.targets import check, resolve
from kvops.tui.glyphs import ASCII, UNICODE
from kvops.tui.store import Store, Watch
from kvops.tui.terminal import leave_on_terminate, watch_terminal


def open_console(
    targets: Sequence[str],
    *,
    rate: float,
    ascii_only: bool,
    write: bool,
    fleet_file: Path | None = None,
    api_key_file: Path | None = None,
    token_file: Path | None = None,
    control_url: str | None = None,
) -> None:
    """Blocks until the console is left. Without targets: all nodes of `fleet_file`, else all of this machine.

    Raises UsageError for targets that can be none, ConfigError.
    """
    if control_url is not None and (len(targets) != 1 or "://" not in targets[0]):
        raise UsageError(
            "--control-url belongs to exactly one URL target", hint="local nodes need none"
        )
    wanted = watches(targets, fleet_file, api_key_file, token_file, control_url)
    if "SSH_CONNECTION" in os.environ:
        # Ten frames a second are plenty over a link; Textual reads this when it is imported.
        os.environ.setdefault("TEXTUAL_FPS", "10")
    from kvops.tui.app import Console
    from kvops.tui.session import Session

    store = Store(wanted, discover=not wanted, interval=rate)
    watch_terminal()
    console = Console(Session(store, glyphs=ASCII if ascii_only else UNICODE, write=write))
    leave_on_terminate(console.exit)
    console.run()


def watches(
    targets: Sequence[str],
    fleet_file: Path | None = None,
    api_key_file: Path | None = None,
    token_file: Path | None = None,
    control_url: str | None = None,
) -> list[Watch]:
    """What to watch from the start; none where the nodes of this machine are to be discovered."""
    if not targets and fleet_file is None:
        return []
    # Reading a fleet file takes longer to import than the first paint of a console without one may wait.
    from kvops.telemetry import fleet

    known = fleet.read(fleet_file)
    wanted = list(dict.fromkeys(targets)) or [entry.name for entry in known.entries]
    if not wanted:
        raise UsageError(f"{fleet_file} names no node", hint="leave --fleet out to see those here")
    find = partial(
        fleet.resolve,
        fleet=known,
        api_key_file=api_key_file,
        token_file=token_file,
        control_url=control_url,
    )
    return [Watch(_shown_name(target), partial(find, target)) for target in wanted]


def _shown_name(target: str) -> str:
    """A node's name, or a URL without its scheme. Raises UsageError."""
    check(target)
    return resolve(target).name if "://" in target else target
