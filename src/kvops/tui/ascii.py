"""The promise of `--ascii`: whatever a widget or a name holds, only ASCII reaches the terminal, cell for cell."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_LIKE = {
    "…": ".",
    "–": "-",
    "—": "-",
    "·": "-",
    "│": "|",
    "─": "-",
    "▏": "|",
    "•": "*",
    "↑": "^",
    "↓": "v",
}


def to_ascii(text: str) -> str:
    """The same number of cells, without anything but ASCII."""
    if text.isascii():
        return text
    return "".join(
        char if char.isascii() else _LIKE.get(char, "?") * cell_len(char) for char in text
    )


class AsciiFilter(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(to_ascii(text), style, control) for text, style, control in segments]
