"""Asks before anything on a node is changed. Cancel has the focus; Escape cancels."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button

from kvops.tui.widgets.lines import Lines


class ConfirmScreen(ModalScreen[bool]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", "cancel", id="confirm-cancel"),
        Binding("left,right", "app.focus_next", "other button", show=False, id="confirm-next"),
    ]

    def __init__(self, title: str, lines: list[Text], action: str) -> None:
        super().__init__()
        self._heading, self._lines, self._action = title, lines, action

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Lines(id="question")
            with Horizontal(id="buttons"):
                yield Button("Cancel", id="cancel", compact=True)
                yield Button(self._action, id="accept", variant="warning", compact=True)

    def on_mount(self) -> None:
        question = self.query_one("#question", Lines)
        question.styles.height = len(self._lines)
        question.show(self._lines)
        self.query_one("#dialog").border_title = Text(self._heading)
        self.query_one("#cancel").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "accept")
