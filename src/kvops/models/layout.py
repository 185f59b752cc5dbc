"""The tensors a decoder of a given spec must have, under their HF names, and the check that it has just those."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from kvops import failpoints
from kvops.errors import ModelCorrupt
from kvops.models.spec import ModelSpec

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class TensorSource(NamedTuple):
    """One tensor that can be read: its HF shape, and how to get it as float32."""

    shape: tuple[int, ...]
    read: Callable[[], Array]


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """HF name → shape, in the order of the forward pass."""
    embedding = (spec.vocab_size, spec.hidden_size)
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": embedding}
    for layer in range(spec.n_layers):
        shapes = _layer_tensors(spec)
        tensors |= {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}
    tensors["model.norm.weight"] = (spec.hidden_size,)
    if not spec.tie_embeddings:
        tensors["lm_head.weight"] = embedding
    return tensors


def _layer_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.attention_bias:
        sizes = {"q": queries, "k": keys, "v": keys}
        tensors |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    if spec.qk_norm:
        tensors |= {f"self_attn.{name}_norm.weight": (spec.head_dim,) for name in "qk"}
    return tensors


def check_tensors(spec: ModelSpec, found: Mapping[str, TensorSource], source: str) -> None:
    """Raises ModelCorrupt that names the missing, unexpected and wrongly shaped tensors."""
    expected = expected_tensors(spec)
    wrong = [
        f"{name} is {list(found[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    faults = [
        _named("missing", [name for name in expected if name not in found]),
        _named("unexpected", [name for name in found if name not in expected]),
        _named("wrong shape", wrong),
    ]
    if any(faults):
        reasons = "; ".join(fault for fault in faults if fault)
        raise ModelCorrupt(f"{source} does not fit its own description: {reasons}")


def whole(data: Bytes, n_bytes: int, tensor: str, source: str) -> Bytes:
    """What was read of a tensor, if it is all of it: a file may change after its header was checked.

    Raises ModelCorrupt.
    """
    if failpoints.reach("model.read.short"):
        data = data[:-1]
    if data.size != n_bytes:
        raise ModelCorrupt(
            f"{source} gave {data.size} of the {n_bytes} bytes of tensor {tensor[:64]!r}"
        )
    return data


def _named(what: str, names: list[str]) -> str:
    shown = ", ".join(names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{what}: {shown}{more}" if names else ""
