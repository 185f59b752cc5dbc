"""What steps need at their peak beside weights and pool, bounded before anything is loaded.

Invariant: no step within a node's bounds takes more, whatever its requests ask for. A step's arrays are counted to
the byte where kernels compute it, and each operation's results where torch does.
"""

from __future__ import annotations

from kvops.models.spec import ModelSpec
from kvops.node.engine.attention.torch_reference import GATHERED
from kvops.node.engine.cuda.tasks import PARTS
from kvops.node.engine.formats import Formats, torch_dtype
from kvops.node.wire import Start

_SAMPLING = 44
"""Bytes for each row and token of the vocabulary: of ranked sampling with logprobs, float32 probabilities before and
after top-k, top-p and min-p, int64 ids, and a float64 running sum."""
_COMPILING = 160 * 2**20
"""What compiling the kernels leaves behind, the most there is: 146 MiB where the cache is empty, 40 where it is not."""
_LIBRARIES = 64 * 2**20
"""What torch's libraries take at their first products: 40 MiB."""


def activation_bytes(
    start: Start, spec: ModelSpec, formats: Formats, context: int, threads: int
) -> int:
    """Of requests of at most `context` tokens; with what the runtime takes to get ready."""
    beside = _COMPILING if formats.compiled else _LIBRARIES
    return beside + step_bytes(start, spec, formats, context, threads)


def step_bytes(start: Start, spec: ModelSpec, formats: Formats, context: int, threads: int) -> int:
    """Of the largest step: `max_batched_tokens` tokens of `max_batch_size` requests, all of them sampled."""
    sampling = start.max_batch_size * spec.vocab_size * _SAMPLING
    if formats.compiled:
        # Imported here: the compiler is only there for CPUs.
        from kvops.node.engine.cpu.decoder import buffer_bytes, shape_of

        shape = shape_of(spec, 0, start.pool.block_size)
        tokens, rows = start.max_batched_tokens, start.max_batch_size
        return sampling + buffer_bytes(shape, tokens, rows, threads)
    return sampling + _torch_bytes(start, spec, formats, context)


def _torch_bytes(start: Start, spec: ModelSpec, formats: Formats, context: int) -> int:
    tokens, rows, width = start.max_batched_tokens, start.max_batch_size, _width(formats)
    fused = (spec.n_heads + 2 * spec.n_kv_heads) * spec.head_dim
    # Hidden state, its sum and its norm; q, k, v with rotated copies and halves; gate and up with their product.
    layer = tokens * (4 * spec.hidden_size + 4 * fused + 4 * spec.intermediate_size) * width
    logits = rows * spec.vocab_size * (width + 4)
    if formats.kernels == "cuda":
        return layer + logits + _parts_bytes(spec, rows)
    return (
        layer + logits + _gathered_bytes(spec, rows, context, width) + _mask_bytes(start, context)
    )


def _parts_bytes(spec: ModelSpec, rows: int) -> int:
    """Of each decode, float32: what the parts of its context add up to, and their weights."""
    return rows * PARTS * spec.n_heads * (spec.head_dim + 1) * 4


def _gathered_bytes(spec: ModelSpec, rows: int, context: int, width: int) -> int:
    """Keys and values of a group of requests, and the int64 index of every group's rows, made from two like it."""
    together = min(rows * context, max(context, GATHERED))
    heads = spec.n_kv_heads * spec.head_dim
    return together * (2 * heads * width + 2 * spec.n_kv_heads * 8) + (
        rows * context * spec.n_kv_heads * 8
    )


def _mask_bytes(start: Start, context: int) -> int:
    """Of a prompt's chunk and of decoding requests, every query against every position: 2 booleans, 2 floats."""
    return (start.max_batched_tokens + start.max_batch_size) * context * 10


def _width(formats: Formats) -> int:
    return 2 if formats.weights == "int8" else torch_dtype(formats.weights).itemsize
