"""From a line of text to a strip of exact width, over a widget's own colours."""

from __future__ import annotations

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip
from textual.widget import Widget


def strip_of(text: Text, width: int, style: Style, console: Console) -> Strip:
    """A text without spans drops its base style when rendered, so that is put beneath by hand."""
    base = console.get_style(text.style) if isinstance(text.style, str) else text.style
    segments = Segment.apply_style(
        (segment for segment in text.render(console) if segment.text), base
    )
    return Strip(segments).adjust_cell_length(width).apply_style(style)


def retitle(widget: Widget, title: str | None, shown: str) -> str:
    """Set the border's title when it differs from `shown`; a rule without corners gets space around it."""
    if title is None:
        return shown
    wanted = title if widget.styles.border_left[0] else f" {title} "
    if wanted != shown:
        widget.border_title = Text(wanted)
    return wanted
