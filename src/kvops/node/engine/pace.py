"""How many prompt tokens a step may read while other requests wait for their next token.

Measured, not guessed: a step that reads a prompt may last `STRETCH` times a step that only decodes, so the bound
follows the machine, the model and the batch. It changes when work is done, never what comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from kvops.node.engine.request import Request

STRETCH = 2.2
_LEAST = 2
_FIRST = 32
"""Until both kinds of step were seen."""
_KEPT = 16


class Pace:
    def __init__(self, fixed: int | None, most: int) -> None:
        """`fixed`: always this many; `most`: never more."""
        self._fixed = fixed
        self._most = most
        self._quiet: dict[int, deque[float]] = {}
        """Seconds of steps that only decode, by the bit length of how many requests they served."""
        self._cost: deque[float] = deque(maxlen=_KEPT)
        """Seconds a prompt token adds to a step."""

    def limit(self, decodes: int) -> int:
        if self._fixed is not None:
            return min(self._fixed, self._most)
        quiet = self._quiet_seconds(decodes)
        if quiet is None or not self._cost:
            return min(_FIRST, self._most)
        wanted = (STRETCH - 1) * quiet / median(self._cost)
        return min(max(round(wanted), _LEAST), self._most)

    def observe(self, seconds: float, decodes: int, prefill_tokens: int) -> None:
        """What a step took, and what was in it."""
        if decodes and not prefill_tokens:
            kept = self._quiet.setdefault(decodes.bit_length(), deque(maxlen=_KEPT))
            kept.append(seconds)
        elif prefill_tokens:
            quiet = self._quiet_seconds(decodes) if decodes else 0.0
            if quiet is not None:
                self._cost.append(max(seconds - quiet, seconds / 10) / prefill_tokens)

    def _quiet_seconds(self, decodes: int) -> float | None:
        """Of the most alike batch that was seen; of the smaller one where two are equally alike."""
        if not self._quiet:
            return None
        nearest = min(self._quiet, key=lambda size: (abs(size - decodes.bit_length()), size))
        return median(self._quiet[nearest])


def share_out(requests: Sequence[Request], budget: int) -> dict[Request, int]:
    """Prompt tokens for each of `requests`, oldest first, that gets any. Half of the budget is the oldest's for sure,
    the rest goes to those with the least left to read, so that neither a long prompt holds up short ones nor the
    other way round."""
    oldest = requests[0]
    lengths = {oldest: min(oldest.uncomputed, -(-budget // 2))}
    left = budget - lengths[oldest]
    for request in sorted(requests, key=lambda one: one.uncomputed):
        more = min(left, request.uncomputed - lengths.get(request, 0))
        lengths[request] = lengths.get(request, 0) + more
        left -= more
    return {request: length for request, length in lengths.items() if length}
