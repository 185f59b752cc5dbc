"""The two sets of characters the console draws with: Unicode, and plain ASCII for `--ascii`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    ascii: bool
    status: dict[str, str]
    none: str
    """A value that is not known."""
    gap: str
    """A time without a reading in a trend."""
    levels: str
    """Eight heights, low to high."""
    bar_full: str
    bar_parts: str
    """Fractions of one bar cell, small to large; empty: whole cells only."""
    bar_empty: str
    memory: str
    """weights, KV used, KV cached, KV idle, activations, other, free."""
    cells: dict[str, str]
    """By the letter of a key-value map cell."""
    cursor: str
    dot: str
    dash: str
    times: str
    ge: str
    mark: str
    axis: str
    braille: bool
    up: str


UNICODE = Glyphs(
    ascii=False,
    status={
        "OK": "●", "WARN": "◆", "CRIT": "▲", "STALE": "?", "DOWN": "✕", "DRAIN": "‖", "LOAD": "◌", "DENIED": "⊘",
        "UNSEEN": "○", "WAIT": "…",
    },
    none="—", gap="·", levels="▁▂▃▄▅▆▇█", bar_full="█", bar_parts="▏▎▍▌▋▊▉", bar_empty="░",
    memory="█▓▒░▚╱·", cells={"s": "█", "p": "▓", "m": "▒", "c": "░", "f": "·"},
    cursor="▌", dot="·", dash="–", times="×", ge="≥", mark="▲", axis="┤", braille=True, up="↑",
)  # fmt: skip

ASCII = Glyphs(
    ascii=True,
    status=dict.fromkeys(("OK", "WARN", "CRIT", "STALE", "DOWN", "DRAIN", "LOAD", "DENIED", "UNSEEN", "WAIT"), ""),
    none="-", gap=" ", levels="_.,-=+*#", bar_full="#", bar_parts="", bar_empty=".",
    memory="W#=-ao.", cells={"s": "#", "p": "+", "m": "=", "c": "-", "f": "."},
    cursor=">", dot="-", dash="-", times="x", ge=">=", mark="!", axis="|", braille=False, up="^",
)  # fmt: skip
