"""All that a check may touch: the data plane, the control plane's snapshots, and what the node said of itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvops.telemetry.clients.base import NodeClient
from kvops.telemetry.targets import Target
from kvops.verify.api import Api
from kvops.verify.beginning import Beginning
from kvops.verify.facts import Facts
from kvops.verify.prompts import PromptFitter

if TYPE_CHECKING:
    from kvops.verify.check import Samples

StillOpen = Callable[[str, "Samples"], bool]
"""Whether the comparison of a series, by its name, with that of an earlier run needs more samples than these."""
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Context:
    target: Target
    api: Api
    node: NodeClient | None
    """None where no control plane is known."""
    facts: Facts
    folder: Path | None = None
    """Where this run is kept: a load run of a check makes its folder in it; None where nothing is kept."""
    allow_remote: tuple[str, ...] = ()
    """Hosts beside this one that may be loaded."""
    still_open: StillOpen = lambda name, samples: False
    """True as long as `--baseline` asks for more."""
    began: float = field(default_factory=time.time)
    """Unix seconds; of a run that goes on after a break, those of its first part."""
    first: Beginning | None = None
    """The node as it was at `began`; None where that is not known."""
    part: Beginning | None = None
    """The node as it was when this part of the run began, at `clock`."""
    clock: float = field(default_factory=time.monotonic)

    @property
    def model(self) -> str:
        return self.facts.model or "default"

    @property
    def is_kvops(self) -> bool:
        return self.facts.engine == "kvops"

    @property
    def prompts(self) -> PromptFitter:
        return PromptFitter(self.api, self.model)

    def completion(self, prompt: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
        """The body of a greedy completion."""
        base = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        return base | fields

    def chat(
        self, messages: list[dict[str, str]], max_tokens: int, **fields: Any
    ) -> dict[str, Any]:
        """The body of a greedy chat completion."""
        base = {"model": self.model, "messages": messages, "max_tokens": max_tokens}
        return base | {"temperature": 0} | fields


async def pause() -> None:
    """Between two looks at a condition that is being waited for."""
    await asyncio.sleep(POLL_SECONDS)
