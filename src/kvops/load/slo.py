"""Service level objectives of a scenario: bounds in seconds, and the percentile they are claimed at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from kvops.load.options import Option

MEASURES = {
    "ttft": "time to the first token",
    "itl": "gap between two pieces of an answer",
    "tpot": "time per output token after the first",
    "e2e": "time to the whole answer",
}
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class Slo(BaseModel):
    """None: no objective of that measure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttft: Seconds | None = None
    itl: Seconds | None = None
    tpot: Seconds | None = None
    e2e: Seconds | None = None
    percentile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    """Share of all requests that must be within the bound; a failed one is not. An answer is within that of `itl` when
    this share of its gaps is."""
    confidence: Annotated[float, Field(ge=0.5, le=0.999)] = 0.95
    """With which a run must show it: more asks for more samples."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Slo:
        """As the options of a run say."""
        given = {
            name.removeprefix("slo_"): value
            for name, value in options.items()
            if name.startswith("slo_")
        }
        return cls(**given)

    def bounds(self) -> dict[str, float]:
        """Seconds, by measure."""
        found = {name: getattr(self, name) for name in MEASURES}
        return {name: bound for name, bound in found.items() if bound is not None}

    def options(self) -> dict[str, Option]:
        shares = {
            "slo_percentile": (
                self.percentile,
                "share of requests that must be within each objective",
            ),
            "slo_confidence": (self.confidence, "confidence with which the run must show it"),
        }
        claimed = {
            name: Option(type="float", default=value, minimum=0.5, maximum=0.999, help=what)
            for name, (value, what) in shares.items()
        }
        bounds = {
            f"slo_{name}": Option(
                type="duration",
                default=getattr(self, name),
                minimum=0.0001,
                maximum=86_400,
                help=f"objective: {what}",
            )
            for name, what in MEASURES.items()
        }
        return bounds | claimed
