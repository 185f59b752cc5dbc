"""What every node client offers. Panels and checks follow `capabilities`, never the engine's name."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kvops.telemetry.snapshot import KvMap, NodeSnapshot, Reading
from kvops.telemetry.targets import Target


class Capabilities(msgspec.Struct, frozen=True):
    memory_ledger: bool
    kv_map: bool
    request_table: bool
    control: bool
    """drain, resume, cancel."""


class NodeClient(Protocol):
    """Async; every call has its own timeout. Raises NodeUnreachable, NodeUnauthorized, NodeProtocolError.

    A target whose control plane is not known is a UsageError when the client is made.
    """

    target: Target
    capabilities: Capabilities

    async def snapshot(self) -> NodeSnapshot: ...

    async def kv_map(self, cells: int) -> Reading[KvMap]: ...

    async def drain(self) -> None: ...

    async def resume(self) -> None: ...

    async def cancel(self, request_id: str) -> bool:
        """False when no such request is in flight."""
        ...

    async def aclose(self) -> None: ...
