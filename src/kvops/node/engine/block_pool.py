"""Blocks of keys and values: reference counts, content hashes, and a free list that is also the prefix cache.

Invariants: every block is used (referenced), cached (unreferenced, content still valid) or free (blank), so
used + cached + free = total. A cached block is found by its hash until it is reclaimed, oldest first, and what comes
before it in its chain is reclaimed after it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROOT = bytes(32)
"""Parent digest of a first block."""


@dataclass(slots=True)
class Block:
    references: int = 0
    digest: bytes | None = None
    """Names the content and all that comes before it; None until the block is full and computed."""
    content: bytes = b""
    """Tenant salt and token ids, compared on a hit so that a digest collision is a miss."""


class BlockKey(NamedTuple):
    """What a full block is found by."""

    digest: bytes
    content: bytes


def block_content(salt: bytes, tokens: Sequence[int]) -> bytes:
    return salt + array("I", tokens).tobytes()


def block_digest(parent: bytes, content: bytes) -> bytes:
    """SHA-256 of the chain: the parent's digest (32 bytes), then the salt and the token ids."""
    return hashlib.sha256(parent + content).digest()


def block_key(parent: bytes, salt: bytes, tokens: Sequence[int]) -> BlockKey:
    content = block_content(salt, tokens)
    return BlockKey(block_digest(parent, content), content)


class BlockPool:
    """Hands out block ids. With `prefix_caching` off, a block's content is forgotten when it is freed."""

    def __init__(self, total: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.total = total
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.blocks = [Block() for _ in range(total)]
        self.evictions = 0
        self.releases = 0
        """Grows whenever a table is given back: what found no room may then be tried again."""
        self._free = list(range(total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._by_digest: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.free - self.cached

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out: blank ones first, then the least recently used cached ones."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def is_unreferenced(self, block_id: int) -> bool:
        return self.blocks[block_id].references == 0

    def allocate(self, count: int) -> list[int]:
        """`count` private blocks, ascending: memory reads neighbours several times as fast (measured).

        Raises ValueError if fewer are available: callers ask first.
        """
        if count > self.available:
            raise ValueError(f"asked for {count} blocks, {self.available} are available")
        return sorted(self._take() for _ in range(count))

    def share(self, block_ids: Iterable[int]) -> None:
        """One more reference to each block, which leaves the cached list if it was there."""
        for block_id in block_ids:
            block = self.blocks[block_id]
            if block.references == 0:
                del self._cached[block_id]
            block.references += 1

    def release(self, table: Sequence[int]) -> None:
        """One reference less to each block; the tail goes first, so that it is reclaimed before its prefix."""
        self.releases += 1
        for block_id in reversed(table):
            block = self.blocks[block_id]
            block.references -= 1
            if block.references == 0:
                self._retire(block_id, block)

    def match(self, keys: Iterable[BlockKey]) -> list[int]:
        """The longest run of known blocks from the start; takes no reference."""
        matched = []
        for digest, content in keys:
            block_id = self._by_digest.get(digest)
            if block_id is None or self.blocks[block_id].content != content:
                break
            matched.append(block_id)
        return matched

    def commit(self, block_id: int, key: BlockKey) -> int:
        """Make a full, computed block findable. Where another holds the same already, that one stays and is
        returned: the caller may share it instead, as after a hit."""
        known = self._by_digest.get(key.digest)
        if known is None:
            block = self.blocks[block_id]
            block.digest, block.content = key
            self._by_digest[key.digest] = block_id
            return block_id
        same = self.prefix_caching and self.blocks[known].content == key.content
        return known if same else block_id

    def disown(self, table: Iterable[int]) -> None:
        """Make the blocks that only this table holds unfindable."""
        for block_id in table:
            block = self.blocks[block_id]
            if block.references == 1:
                self._forget(block)

    def flush(self) -> int:
        """Forget every cached block; how many there were. Blocks in use stay findable until freed."""
        count = len(self._cached)
        while self._cached:
            block_id, _ = self._cached.popitem(last=False)
            self._forget(self.blocks[block_id])
            self._free.append(block_id)
        return count

    def check(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """What is broken, in words; empty when the pool and the `tables` of all requests agree."""
        held = Counter(block_id for table in tables for block_id in table)
        faults = []
        blank = set(self._free)
        for block_id, block in enumerate(self.blocks):
            if block.references != held[block_id]:
                faults.append(
                    f"block {block_id}: {block.references} references, {held[block_id]} holders"
                )
            if block.references > 1 and block.digest is None:
                faults.append(f"block {block_id}: shared without a content hash")
            places = (block.references > 0) + (block_id in self._cached) + (block_id in blank)
            if places != 1:
                faults.append(f"block {block_id}: in {places} of used, cached, free")
            if block.digest is not None and self._by_digest.get(block.digest) != block_id:
                faults.append(f"block {block_id}: its hash names another block")
            if block_id in self._cached and block.digest is None:
                faults.append(f"block {block_id}: cached without a content hash")
        if len(blank) != len(self._free):
            faults.append("the free list holds a block twice")
        if len(self._by_digest) != sum(block.digest is not None for block in self.blocks):
            faults.append("a hash names a block that does not carry it")
        return faults

    def _take(self) -> int:
        if self._free:
            block_id = self._free.pop()
        else:
            block_id, _ = self._cached.popitem(last=False)
            self._forget(self.blocks[block_id])
            self.evictions += 1
        self.blocks[block_id].references = 1
        return block_id

    def _retire(self, block_id: int, block: Block) -> None:
        if block.digest is not None and self.prefix_caching:
            self._cached[block_id] = None
            return
        self._forget(block)
        self._free.append(block_id)

    def _forget(self, block: Block) -> None:
        if block.digest is not None:
            del self._by_digest[block.digest]
        block.digest, block.content = None, b""
