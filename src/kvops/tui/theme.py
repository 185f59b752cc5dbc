"""The palette: blue and orange, told apart by people with any colour vision, on a quiet dark ground.

Colour never stands alone: each state also has a glyph and a word.
"""

from __future__ import annotations

BACKGROUND = "#0d1117"
RAISED = "#161b22"
BORDER = "#2d3642"
FOREGROUND = "#d3dae3"
MUTED = "#7f8a99"

BLUE = "#58a6ff"
ORANGE = "#f0a23a"
VERMILION = "#ff7043"

LABEL = MUTED
TITLE = f"bold {FOREGROUND}"
GOOD = BLUE
WARN = ORANGE
CRIT = f"bold {VERMILION}"
STALE = MUTED
ACTION = "bold #0d1117 on #58a6ff"

# Memory accounts: what is fixed in greys, what the key-value pool holds in blues.
WEIGHTS = "#c3ccd8"
KV_USED = "#3f8fe8"
KV_CACHED = "#4f86c6"
KV_IDLE = "#3a5f8a"
ACTIVATIONS = "#8d97a5"
OTHER = "#5d6775"
FREE = "#48525f"

# Key-value map: the lighter, the more requests depend on the block.
CELL_SHARED = "#a5d0ff"
CELL_PRIVATE = "#3f8fe8"
CELL_MIXED = "#4a90e2"
CELL_CACHED = "#4f86c6"
CELL_FREE = "#48525f"
