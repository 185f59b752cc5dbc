"""The console: two screens over one store, one tick that draws, and the one place where a node may be acted on.

Losing a node never ends the console, opens a dialog or moves the focus.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen
from textual.theme import Theme

from kvops import paths
from kvops.errors import KvopsError
from kvops.tui import theme
from kvops.tui.ascii import AsciiFilter
from kvops.tui.commands import NodeCommands
from kvops.tui.screens.base import ViewScreen
from kvops.tui.screens.confirm import ConfirmScreen
from kvops.tui.screens.fleet import FleetScreen
from kvops.tui.screens.help import HelpScreen
from kvops.tui.screens.node import NodeScreen
from kvops.tui.session import Session
from kvops.tui.text import clean
from kvops.tui.view import Event

TICK_SECONDS = 0.5

Action = Literal["drain", "resume"]

_THEME = Theme(
    name="kvops-dark",
    primary=theme.BLUE,
    secondary=theme.KV_CACHED,
    accent=theme.BLUE,
    warning=theme.ORANGE,
    error=theme.VERMILION,
    success=theme.BLUE,
    foreground=theme.FOREGROUND,
    background=theme.BACKGROUND,
    surface=theme.RAISED,
    panel=theme.RAISED,
    dark=True,
    variables={
        "border": theme.BORDER,
        "muted": theme.MUTED,
        "footer-background": theme.BACKGROUND,
        "footer-item-background": theme.BACKGROUND,
        "footer-key-background": theme.BACKGROUND,
        "footer-description-background": theme.BACKGROUND,
        "footer-key-foreground": theme.BLUE,
        "footer-description-foreground": theme.MUTED,
    },
)


class Console(App[None]):
    TITLE = "kvops"
    CSS_PATH = "kvops.tcss"
    DEFAULT_MODE = "fleet"
    COMMANDS = App.COMMANDS | {NodeCommands}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "switch_mode('fleet')", "fleet", show=False, id="fleet"),
        Binding("2", "switch_mode('node')", "node", show=False, id="node"),
        Binding("space", "freeze", "freeze", id="freeze"),
        Binding("plus,equals_sign", "rate(-1)", "faster", show=False, id="faster"),
        Binding("minus", "rate(1)", "slower", show=False, id="slower"),
        Binding("r", "retry", "retry", show=False, id="retry"),
        Binding("D", "act('drain')", "drain", id="drain"),
        Binding("U", "act('resume')", "resume", id="resume"),
        Binding("D", "refuse('drain')", show=False, id="drain-refused"),
        Binding("U", "refuse('resume')", show=False, id="resume-refused"),
        Binding("S", "picture", "shot", show=False, id="screenshot"),
        Binding("question_mark", "help", "help", key_display="?", id="help"),
        Binding("ctrl+z", "suspend_process", "suspend", show=False, id="suspend"),
        Binding("q", "quit", "quit", id="quit"),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._collecting: asyncio.Task[None] | None = None
        self.add_mode("fleet", lambda: FleetScreen(session))
        self.add_mode("node", lambda: NodeScreen(session))
        self.register_theme(_THEME)
        self.theme = _THEME.name
        self.set_class(session.glyphs.ascii, "-ascii")

    def on_mount(self) -> None:
        self.set_interval(TICK_SECONDS, self.tick)
        # After the first paint: the store's clients are imported when they are first needed.
        self.call_after_refresh(self._collect)

    def _collect(self) -> None:
        self._collecting = asyncio.create_task(self.session.store.run(), name="store")

    async def on_unmount(self) -> None:
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)

    def get_line_filters(self) -> Sequence[LineFilter]:
        filters = super().get_line_filters()
        return [*filters, AsciiFilter()] if self.session.glyphs.ascii else filters

    def tick(self) -> None:
        view = self.session.view()
        for screen in self.screen_stack:
            if isinstance(screen, ViewScreen):
                screen.show(view)

    def open_node(self, name: str) -> None:
        self.session.select(name)
        self.switch_mode("node")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield SystemCommand("Freeze or go live", "Collecting goes on", self.action_freeze)
        yield SystemCommand("Help", "Keys and signs", self.action_help)
        yield SystemCommand("Screenshot", "Save the screen as SVG", self.action_picture)
        yield SystemCommand("Quit", "Leave the console", self.action_quit)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Read-only is enforced here, whatever the action came from; the key then says what it lacks."""
        if action == "act":
            return self.session.write
        return not self.session.write if action == "refuse" else True

    def action_refuse(self, action: Action) -> None:
        self.notify(
            f"{action} needs the right to: kvops tui --write", title="read-only", markup=False
        )

    def action_help_quit(self) -> None:
        """Ctrl-C, which copies here."""
        self.notify("q quits", title="Ctrl-C does not quit", markup=False)

    def action_freeze(self) -> None:
        self.session.toggle_freeze()
        self.tick()

    def action_rate(self, step: int) -> None:
        self.session.step_rate(step)
        self.tick()

    def action_retry(self) -> None:
        for node in self.session.store.view().nodes:
            poller = self.session.store.poller(node.name)
            if poller is not None:
                poller.wake()

    def action_help(self) -> None:
        self.push_screen(HelpScreen(self.session.glyphs))

    def action_picture(self) -> None:
        folder = paths.make_private(paths.state_dir() / "screenshots")
        name = f"kvops-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.svg"
        self._save_picture(folder / name)
        self.notify(clean(str(folder / name), 500), title="Screenshot saved", markup=False)

    def _save_picture(self, file: Path) -> None:
        """Without the attribute, some viewers drop the spaces at the start of a text."""
        picture = self.export_screenshot().replace("<text ", '<text xml:space="preserve" ')
        paths.write_atomic(file, picture.encode())

    def action_act(self, action: Action) -> None:
        node = self.session.selected(self.session.view())
        if node is None or not self.session.write:
            return
        self.push_screen(
            ConfirmScreen(
                f"{action.capitalize()} {clean(node.name, 40)}",
                _question(action),
                action.capitalize(),
            ),
            lambda agreed: self._act(node.name, action) if agreed else None,
        )

    def _act(self, name: str, action: Action) -> None:
        self.run_worker(self._acting(name, action), exit_on_error=False)

    async def _acting(self, name: str, action: Action) -> None:
        poller = self.session.store.poller(name)
        if poller is None or not self.session.write:
            return
        try:
            await poller.act(action)
        except KvopsError as error:
            self.notify(
                clean(str(error), 500), title=f"{action} failed", severity="error", markup=False
            )
        else:
            now = self.session.store.view().now
            self.session.store.note(
                Event(now, "INFO", name, f"{action} asked for here, accepted by the node")
            )


def _question(action: Action) -> list[Text]:
    words = {
        "drain": (
            "The node finishes what it has accepted",
            "and answers new requests with 503 draining.",
        ),
        "resume": ("The node takes new requests again.",),
    }
    return [Text(line) for line in words[action]]
