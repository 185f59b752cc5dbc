"""Every check there is, in the order of the simplest cause first. A new check is one more line here."""

from __future__ import annotations

from kvops.verify.check import Check
from kvops.verify.checks.auth import DEFAULT_DENY
from kvops.verify.checks.disconnect import FREES
from kvops.verify.checks.errors import ERRORS
from kvops.verify.checks.limits import NEAR_LIMIT, OVER_LENGTH
from kvops.verify.checks.memory import ADDS_UP
from kvops.verify.checks.metrics import CONTRACT
from kvops.verify.checks.performance import RATE_BY_LENGTH, TTFT_BY_LENGTH
from kvops.verify.checks.reach import HEALTH
from kvops.verify.checks.recall import CONTROL, GRID
from kvops.verify.checks.responses import MULTI_TURN, SHORT
from kvops.verify.checks.streams import STREAM
from kvops.verify.checks.truth import TTFT_TRUTH

CHECKS: tuple[Check, ...] = (
    HEALTH,
    SHORT,
    STREAM,
    NEAR_LIMIT,
    MULTI_TURN,
    OVER_LENGTH,
    ERRORS,
    CONTRACT,
    ADDS_UP,
    FREES,
    DEFAULT_DENY,
    TTFT_BY_LENGTH,
    RATE_BY_LENGTH,
    TTFT_TRUTH,
    GRID,
    CONTROL,
)
