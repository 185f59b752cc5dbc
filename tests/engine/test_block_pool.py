"""The block pool: sharing, reclaiming, collisions; and its invariants under any order of operations."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from kvops.node.engine import block_pool
from kvops.node.engine.block_pool import ROOT, BlockKey, BlockPool, block_content, block_digest
from kvops.node.engine.kv_map import kv_map

SIZE = 4


def chain(tokens: list[int], salt: bytes = b"") -> list[BlockKey]:
    """Keys of the full blocks of `tokens`."""
    keys: list[BlockKey] = []
    for start in range(0, len(tokens) // SIZE * SIZE, SIZE):
        parent = keys[-1].digest if keys else ROOT
        keys.append(block_pool.block_key(parent, salt, tokens[start : start + SIZE]))
    return keys


def fill(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> list[int]:
    """A table for `tokens`, known blocks shared and new full ones committed."""
    keys = chain(tokens, salt)
    matched = pool.match(keys)
    pool.share(matched)
    table = matched + pool.allocate(pool.blocks_for(len(tokens)) - len(matched))
    for index in range(len(matched), len(keys)):
        pool.commit(table[index], keys[index])
    return table


def test_freed_blocks_stay_findable_until_reclaimed() -> None:
    pool = BlockPool(4, SIZE)
    tokens = list(range(8))
    table = fill(pool, tokens)
    pool.release(table)
    assert (pool.used, pool.cached, pool.free) == (0, 2, 2)
    assert pool.match(chain(tokens)) == table
    pool.allocate(2)
    assert pool.evictions == 0
    pool.allocate(1)
    assert pool.evictions == 1


def test_a_tail_is_reclaimed_before_its_prefix() -> None:
    pool = BlockPool(3, SIZE)
    tokens = list(range(12))
    table = fill(pool, tokens)
    pool.release(table)
    assert pool.allocate(1) == [table[-1]]
    assert pool.match(chain(tokens)) == table[:2]


def test_the_least_recently_used_goes_first() -> None:
    pool = BlockPool(2, SIZE)
    first, second = [1] * 4, [2] * 4
    table = fill(pool, first)
    pool.release(fill(pool, second))
    pool.release(table)
    pool.release(fill(pool, second))
    pool.allocate(1)
    assert pool.match(chain(first)) == []
    assert len(pool.match(chain(second))) == 1


def test_salts_keep_tenants_apart() -> None:
    pool = BlockPool(4, SIZE)
    tokens = list(range(8))
    fill(pool, tokens, b"one")
    assert pool.match(chain(tokens, b"two")) == []


def test_the_chain_names_all_that_comes_before() -> None:
    one, other = chain([1] * 4 + [3] * 4)[1], chain([2] * 4 + [3] * 4)[1]
    assert one.content == other.content
    assert one.digest != other.digest


@pytest.mark.parametrize(("salt", "token"), [(b"", 9), (b"other", 1)])
def test_a_collision_is_a_miss(salt: bytes, token: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_pool, "block_digest", lambda parent, content: b"same for all")
    pool = BlockPool(4, SIZE)
    fill(pool, [1] * 4)
    other = [token] * 4
    assert pool.match(chain(other, salt)) == []
    assert len(pool.match(chain([1] * 4))) == 1


def test_of_two_equal_blocks_one_is_kept_and_a_collision_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_pool, "block_digest", lambda parent, content: b"same for all")
    (one,), (other,) = chain([1] * 4), chain([2] * 4)
    pool = BlockPool(4, SIZE)
    first, second, third = pool.allocate(3)
    assert pool.commit(first, one) == first
    assert pool.commit(second, one) == first
    assert pool.commit(third, other) == third
    assert pool.blocks[third].digest is None
    plain = BlockPool(2, SIZE, prefix_caching=False)
    first, second = plain.allocate(2)
    assert plain.commit(first, one) == first
    assert plain.commit(second, one) == second, "without the cache, nobody meets another's blocks"


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="asked for 3 blocks, 2 are available"):
        BlockPool(2, SIZE).allocate(3)


def test_without_prefix_caching_nothing_stays() -> None:
    pool = BlockPool(4, SIZE, prefix_caching=False)
    pool.release(fill(pool, list(range(8))))
    assert (pool.cached, pool.free) == (0, 4)


def test_flush_forgets_what_nobody_holds() -> None:
    pool = BlockPool(4, SIZE)
    held = fill(pool, [1] * 4)
    pool.release(fill(pool, [2] * 4))
    assert pool.flush() == 1
    assert pool.match(chain([2] * 4)) == []
    assert pool.match(chain([1] * 4)) == held


def test_disowned_blocks_are_not_found() -> None:
    pool = BlockPool(4, SIZE)
    table = fill(pool, [1] * 8)
    pool.disown(table)
    pool.release(table)
    assert pool.match(chain([1] * 8)) == []
    assert pool.check([]) == []


def test_check_sees_what_is_broken() -> None:
    pool = BlockPool(4, SIZE)
    table = fill(pool, [1] * 6)
    assert pool.check([table]) == []
    assert pool.check([]) != []
    assert pool.check([table, table]) != []
    pool.blocks[table[0]].references = 0
    assert pool.check([table]) != []


def test_map_letters() -> None:
    pool = BlockPool(6, SIZE)
    shared = fill(pool, [1] * 4)
    pool.share(shared)
    fill(pool, [2] * 4)
    pool.release(fill(pool, [3] * 4))
    assert kv_map(pool, 100).cells == "spcfff"
    coarse = kv_map(pool, 2)
    assert (coarse.cells, coarse.blocks_per_cell) == ("mf", 3)
    assert kv_map(pool, 0).cells == "m"


class PoolMachine(RuleBasedStateMachine):
    """Requests come, grow and go in any order; a model of the tables is checked against the pool."""

    tables: Bundle[int] = Bundle("tables")

    @initialize(caching=st.booleans())
    def create(self, caching: bool) -> None:
        self.pool = BlockPool(8, SIZE, prefix_caching=caching)
        self.held: dict[int, list[int]] = {}
        self.owned: dict[int, tuple[bytes, list[int]]] = {}

    @rule(
        target=tables,
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=16),
        salt=st.sampled_from([b"x", b"y"]),
    )
    def admit(self, tokens: list[int], salt: bytes) -> int:
        key = len(self.held) + 1000 * len(self.owned)
        if self.pool.blocks_for(len(tokens)) <= self.pool.available:
            self.held[key] = fill(self.pool, tokens, salt)
            self.owned[key] = (salt, tokens)
        return key

    @rule(key=tables)
    def grow(self, key: int) -> None:
        if key in self.held and self.pool.available:
            self.held[key] += self.pool.allocate(1)

    @rule(key=consumes(tables))
    def end(self, key: int) -> None:
        self.pool.release(self.held.pop(key, []))

    @rule(key=tables)
    def disown(self, key: int) -> None:
        self.pool.disown(self.held.get(key, []))

    @rule()
    def flush(self) -> None:
        self.pool.flush()

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.check(self.held.values()) == []
            assert self.pool.used + self.pool.cached + self.pool.free == self.pool.total

    @invariant()
    def shared_only_where_equal(self) -> None:
        """Two tables meet in a block only where salt and all tokens up to its end are the same."""
        if not hasattr(self, "pool"):
            return
        seen: dict[int, tuple[bytes, list[int]]] = {}
        for key, table in self.held.items():
            salt, tokens = self.owned[key]
            for index, block_id in enumerate(table):
                content = (salt, tokens[: (index + 1) * SIZE])
                assert seen.setdefault(block_id, content) == content

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for table in self.held.values():
                self.pool.release(table)
            assert self.pool.used == 0
            assert self.pool.check([]) == []


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_digest_is_sha256_of_parent_and_content() -> None:
    import hashlib

    content = block_content(b"salt", [1, 2, 3, 2**31])
    assert content == b"salt" + b"".join(t.to_bytes(4, "little") for t in (1, 2, 3, 2**31))
    assert block_digest(ROOT, content) == hashlib.sha256(bytes(32) + content).digest()
