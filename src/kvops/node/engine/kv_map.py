"""The block pool as a row of letters for the console."""

from __future__ import annotations

import time

from kvops.node.engine.block_pool import Block, BlockPool
from kvops.telemetry.snapshot import KvMap


def kv_map(pool: BlockPool, cells: int) -> KvMap:
    """At most `cells` letters (at least one), each for the same number of neighbouring blocks."""
    letters = "".join(map(_letter, pool.blocks))
    per_cell = -(-pool.total // max(1, cells))
    groups = (letters[start : start + per_cell] for start in range(0, pool.total, per_cell))
    drawn = "".join(group[0] if len(set(group)) == 1 else "m" for group in groups)
    return KvMap(total_blocks=pool.total, blocks_per_cell=per_cell, cells=drawn, at=time.time())


def _letter(block: Block) -> str:
    if block.references > 1:
        return "s"
    if block.references == 1:
        return "p"
    return "f" if block.digest is None else "c"
