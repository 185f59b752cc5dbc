"""Kernels over the paged pool against the oracle: every shape, format, window, length and mix."""

from __future__ import annotations

import pytest
import torch

from kvops.node.engine.cuda.pool import FP8_MAX, STORED, KvFormat, block_bytes
from tests.paged import CPU, Paged, read, spec

SHAPES = [(9, 3, 64), (4, 4, 128), (8, 1, 64), (14, 2, 64), (4, 2, 16), (3, 1, 48)]
"""Heads, KV heads, head dim: GQA of 3, none, of 8, of 7; a head dim that is no power of two."""
EDGES = [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130]


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), SHAPES)
def test_a_mixed_batch_equals_the_oracle(
    heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    """Decodes and chunks of several lengths side by side, whose contexts end at and around block borders."""
    paged = Paged(spec(heads, kv_heads, head_dim), block_size, EDGES)
    cuts = [1, 1, 1, 16, 3, 1, 32, 1, 40, 1, 64, 129]
    ours, (theirs, _) = paged.kernels(paged.pool()), paged.oracle()
    for attention in (ours, theirs):
        paged.store_all(attention)
    torch.testing.assert_close(
        paged.attend(ours, cuts), paged.attend(theirs, cuts), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("window", [1, 24, 64, 100])
def test_a_sliding_window_equals_the_oracle(window: int) -> None:
    paged = Paged(spec(4, 2, 64), 16, [1, 23, 24, 25, 65, 400, 400, 90])
    cuts = [1, 1, 24, 1, 1, 1, 70, 90]
    ours, (theirs, _) = paged.kernels(paged.pool(), window), paged.oracle(window)
    for attention in (ours, theirs):
        paged.store_all(attention)
    torch.testing.assert_close(
        paged.attend(ours, cuts), paged.attend(theirs, cuts), rtol=1e-5, atol=1e-5
    )


def test_long_contexts_are_merged_from_their_parts() -> None:
    """Fewer parts than there may be, exactly as many, and parts longer than the least."""
    paged = Paged(spec(2, 1, 64), 16, [256, 257, 1500, 4096, 4160])
    ours, (theirs, _) = paged.kernels(paged.pool()), paged.oracle()
    for attention in (ours, theirs):
        paged.store_all(attention)
    cuts = [1] * 5
    torch.testing.assert_close(
        paged.attend(ours, cuts), paged.attend(theirs, cuts), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8", "fp8"])
def test_every_format_is_read_exactly(kind: KvFormat, head_dim: int) -> None:
    """Against the oracle on what the pool's numbers stand for: only sums may differ."""
    paged = Paged(spec(6, 2, head_dim), 16, [1, 16, 17, 64, 300, 90])
    pool = paged.pool(kind)
    ours = paged.kernels(pool)
    paged.store_all(ours)
    theirs, _ = paged.oracle(like=pool)
    cuts = [1, 1, 5, 64, 1, 50]
    torch.testing.assert_close(
        paged.attend(ours, cuts), paged.attend(theirs, cuts), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "relative", "absolute"),
    [("float16", 2**-11, 2**-25), ("bfloat16", 2**-8, 0), ("fp8", 2**-4, 2**-10)],
)
def test_numbers_are_rounded_to_nearest(kind: KvFormat, relative: float, absolute: float) -> None:
    paged = Paged(spec(4, 2, 64), 16, [40, 7])
    pool = paged.pool(kind)
    paged.store_all(paged.kernels(pool))
    reference, exact = paged.oracle()
    paged.store_all(reference)
    for stored, wanted in ((pool.keys, exact.keys), (pool.values, exact.values)):
        error = (stored.float() - wanted).abs()
        assert (error <= wanted.abs() * relative + absolute).all()
        assert error.max() > 0


def test_int8_is_rounded_to_nearest_for_each_token_and_head() -> None:
    paged = Paged(spec(4, 2, 64), 16, [40, 7])
    for index, one in enumerate(paged.requests):
        one.keys *= 10.0 ** (index * 4 - 2)
    pool = paged.pool("int8")
    paged.store_all(paged.kernels(pool))
    reference, exact = paged.oracle()
    paged.store_all(reference)
    for numbers, scales, wanted in (
        (pool.keys, pool.key_scales, exact.keys),
        (pool.values, pool.value_scales, exact.values),
    ):
        assert scales is not None
        largest = wanted.abs().amax(-1)
        stored = largest > 0
        torch.testing.assert_close(scales[stored], largest[stored] / 127)
        error = (read(numbers, scales) - wanted).abs()
        assert (error <= scales[..., None] * 0.5001).all()
        assert (numbers[stored].abs().amax(-1) == 127).all()


def test_fp8_cuts_what_is_too_large_and_keeps_nan() -> None:
    paged = Paged(spec(1, 1, 16), 16, [1])
    one = paged.requests[0]
    one.keys[0, 0, :4] = torch.tensor([1e6, -1e6, 500.0, float("nan")])
    pool = paged.pool("fp8")
    paged.store_all(paged.kernels(pool))
    stored = pool.keys[0, one.table[0], 0, 0, :4].float()
    assert stored[:3].tolist() == [FP8_MAX, -FP8_MAX, FP8_MAX]
    assert stored[3].isnan()


def test_every_fp8_number_is_read_as_what_it_is() -> None:
    """All finite codes as values that one token of context gives back unchanged."""
    codes = torch.arange(256, dtype=torch.uint8).view(STORED["fp8"])
    codes = codes[codes.float().isfinite()]
    for part in torch.nn.functional.pad(codes.float(), (0, 2)).view(-1, 64):
        paged = Paged(spec(1, 1, 64), 16, [1])
        paged.requests[0].values[0, 0] = part
        ours = paged.kernels(paged.pool("fp8"))
        paged.store_all(ours)
        assert torch.equal(paged.attend(ours, [1])[0, 0], part)


@pytest.mark.parametrize("kind", list(STORED))
def test_a_store_leaves_all_else_alone(kind: KvFormat) -> None:
    paged = Paged(spec(4, 2, 64), 16, [33, 16])
    pool = paged.pool(kind)
    paged.store_all(paged.kernels(pool))
    written = (pool.keys.float() != 0).any(-1)[0].any(1)
    expected = torch.zeros_like(written)
    for one in paged.requests:
        for position in range(one.length):
            expected[one.table[position // 16], position % 16] = True
    assert torch.equal(written, expected)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
def test_numbers_of_others_are_never_read(kind: KvFormat) -> None:
    """Neither in blocks of others nor behind a context's end, not even with a weight of zero."""
    paged = Paged(spec(4, 2, 64), 16, [1, 17, 40, 70])
    cuts = [1, 1, 30, 70]
    clean = paged.kernels(paged.pool(kind))
    paged.store_all(clean)
    expected = paged.attend(clean, cuts)
    pool = paged.pool(kind)
    poison = 100 if kind == "int8" else float("nan")
    for tensor in (pool.keys, pool.values):
        tensor.fill_(poison)
    for scales in (pool.key_scales, pool.value_scales):
        if scales is not None:
            scales.fill_(float("nan"))
    ours = paged.kernels(pool)
    paged.store_all(ours)
    assert torch.equal(paged.attend(ours, cuts), expected)


@pytest.mark.parametrize("kind", ["float32", "float16", "int8"])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_so_and_stays_with_its_request(
    kind: KvFormat, broken: float
) -> None:
    paged = Paged(spec(4, 2, 64), 16, [20, 20])
    paged.requests[0].values[7, 1, 3] = broken
    ours = paged.kernels(paged.pool(kind))
    paged.store_all(ours)
    out = paged.attend(ours, [1, 1])
    assert not out[0].isfinite().all()
    assert out[1].isfinite().all()


def test_company_changes_no_bit() -> None:
    """Alone or beside others, first or last, a request's sums are made in the same order."""
    lengths = [5, 700, 64, 130]
    cuts = [1, 1, 64, 100]
    paged = Paged(spec(6, 2, 64), 16, lengths)
    ours = paged.kernels(paged.pool("float16"))
    paged.store_all(ours)
    together = paged.attend(ours, cuts).split(cuts)
    everyone = paged.requests
    for index, (one, cut) in enumerate(zip(everyone, cuts, strict=True)):
        paged.requests = [one]
        assert torch.equal(paged.attend(ours, [cut]), together[index])
    paged.requests = everyone[::-1]
    backwards = paged.attend(ours, cuts[::-1]).split(cuts[::-1])
    for one, other in zip(together, backwards[::-1], strict=True):
        assert torch.equal(one, other)


def test_chunks_and_decodes_agree_however_a_prompt_is_cut() -> None:
    paged = Paged(spec(6, 2, 64), 16, [150])
    whole = paged.kernels(paged.pool("int8"))
    paged.store_all(whole)
    expected = paged.attend(whole, [150])
    one = paged.requests[0]
    pool = paged.pool("int8")
    ours = paged.kernels(pool)
    found, done = [], 0
    for cut in (40, 1, 1, 17, 64, 1, 26):
        full = one.queries, one.keys, one.values
        end = done + cut
        one.queries, one.keys, one.values = (part[:end] for part in full)
        step = ours.begin(paged.batch([cut]))
        step.store(0, paged.last([cut], "keys"), paged.last([cut], "values"))
        found.append(step.attend(0, paged.last([cut], "queries")))
        one.queries, one.keys, one.values = full
        done = end
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-5, atol=1e-5)


def test_products_in_float16_stay_close() -> None:
    """What a GPU does with 16-bit queries: products of 16-bit numbers, sums in float32."""
    paged = Paged(spec(6, 2, 64), 16, [17, 300, 90])
    cuts = [1, 1, 90]
    pool = paged.pool("float16")
    ours = paged.kernels(pool, dtype=torch.float16)
    paged.store_all(ours)
    theirs, _ = paged.oracle(like=pool)
    got = paged.attend(ours, cuts)
    torch.testing.assert_close(got, paged.attend(theirs, cuts), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("kind", list(STORED))
def test_blocks_take_what_is_said(kind: KvFormat) -> None:
    shape = spec(4, 2, 48)
    for block_size in (8, 16, 64):
        paged = Paged(shape, block_size, [1])
        pool = paged.pool(kind)
        assert pool.keys.device == CPU
        assert pool.scratch_block == paged.blocks
        assert pool.nbytes == (paged.blocks + 1) * block_bytes(shape, block_size, kind)
