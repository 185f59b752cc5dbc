"""A decoder in a GGUF file: its spec from the metadata, its tensors under HF names and in HF layout.

Sources of the format: ggml docs/gguf.md, and llama.cpp's convert_hf_to_gguf.py for what it does to the weights.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from kvops.errors import ModelUnsupported
from kvops.models import bounds
from kvops.models.gguf_header import GgufHeader, GgufTensor
from kvops.models.layout import Array, Bytes, TensorSource, whole
from kvops.models.spec import Family, ModelSpec, RopeScaling

_READABLE = frozenset(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")
)
_FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_ROPE_FACTORS = "rope_freqs.weight"


def gguf_spec(header: GgufHeader) -> ModelSpec:
    """Raises ModelUnsupported for another architecture or an unknown variant, ModelCorrupt for bad values."""
    family = _family(header)
    fields = {
        k.removeprefix(f"{family}."): v
        for k, v in header.metadata.items()
        if k.startswith(f"{family}.")
    }
    _refuse_variants(header, fields)
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    n_heads = bounds.whole(fields, "attention.head_count", bounds.MAX_HEADS)
    hidden = bounds.whole(fields, "embedding_length", bounds.MAX_WIDTH)
    head_dim = _head_dim(fields, hidden // n_heads)
    theta = bounds.real(fields, "rope.freq_base", default=10_000.0)
    spec = ModelSpec(
        family=family,
        n_layers=bounds.whole(fields, "block_count", bounds.MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=bounds.whole(fields, "feed_forward_length", bounds.MAX_WIDTH),
        n_heads=n_heads,
        n_kv_heads=bounds.whole(
            fields, "attention.head_count_kv", bounds.MAX_HEADS, default=n_heads
        ),
        head_dim=head_dim,
        vocab_size=shapes.get("token_embd.weight", (0,))[0],
        max_context_length=bounds.whole(fields, "context_length", bounds.MAX_CONTEXT),
        rope_theta=theta,
        rms_norm_eps=bounds.real(fields, "attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in shapes,
        rope_scaling=_rope_scaling(header, fields, head_dim, theta),
        attention_bias="blk.0.attn_q.bias" in shapes,
        qk_norm="blk.0.attn_q_norm.weight" in shapes,
        sliding_window=_sliding_window(fields),
    )
    return bounds.check_heads(spec)


def gguf_tensors(header: GgufHeader, spec: ModelSpec) -> dict[str, TensorSource]:
    """HF name → tensor. Raises ModelUnsupported for a type that is not read."""
    data = _map(header)
    sources = {}
    for tensor in header.tensors:
        if tensor.name == _ROPE_FACTORS:
            continue
        if tensor.type not in _READABLE:
            readable = ", ".join(sorted(kind.name for kind in _READABLE))
            raise ModelUnsupported(
                f"{header.path.name}: tensor {tensor.name} is {tensor.type.name}",
                hint=f"readable are {readable}",
            )
        name = _hf_name(tensor.name)
        read = functools.partial(_read, data, tensor, _permuted_heads(spec, name))
        sources[name] = TensorSource(tensor.shape, read)
    return sources


def read_tensor(header: GgufHeader, tensor: GgufTensor) -> Array:
    """One tensor of the file as float32, as it is stored."""
    return _read(_map(header), tensor, None)


def _map(header: GgufHeader) -> Bytes:
    return np.memmap(header.path, mode="r", dtype=np.uint8)


def _family(header: GgufHeader) -> Family:
    architecture = header.metadata.get("general.architecture")
    for family in _FAMILIES:
        if architecture == family:
            return family
    raise ModelUnsupported(
        f"{header.path.name} has the architecture {str(architecture)[:40]!r}",
        hint=f"of GGUF files {', '.join(_FAMILIES)} are supported; of folders with safetensors mistral too",
    )


def _refuse_variants(header: GgufHeader, fields: dict[str, Any]) -> None:
    if fields.get("expert_count"):
        raise ModelUnsupported(
            f"{header.path.name} is a mixture of experts, only dense models are supported"
        )
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise ModelUnsupported(
            f"{header.path.name} is one part of a split file", hint="merge it: gguf-split --merge"
        )


def _head_dim(fields: dict[str, Any], default: int) -> int:
    rotated = fields.get("rope.dimension_count", default)
    head_dim = bounds.whole(fields, "attention.key_length", bounds.MAX_HEAD_DIM, default=rotated)
    if fields.get("attention.value_length", head_dim) != head_dim:
        raise ModelUnsupported("keys and values of different length are not supported")
    if fields.get("rope.dimension_count", head_dim) != head_dim:
        raise ModelUnsupported("rotary positions on a part of the head are not supported")
    return head_dim


def _sliding_window(fields: dict[str, Any]) -> int | None:
    if not fields.get("attention.sliding_window"):
        return None
    return bounds.whole(fields, "attention.sliding_window", bounds.MAX_CONTEXT)


def _rope_scaling(
    header: GgufHeader, fields: dict[str, Any], head_dim: int, theta: float
) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind == "linear":
        return RopeScaling("linear", bounds.real(fields, "rope.scaling.factor"))
    if kind != "none":
        raise ModelUnsupported(f"{header.path.name} has the rope scaling {str(kind)[:40]!r}")
    for tensor in header.tensors:
        if tensor.name == _ROPE_FACTORS and tensor.type is GGMLQuantizationType.F32:
            factors = read_tensor(header, tensor)
            return _llama3_scaling(header, factors, head_dim, theta)
    return None


def _llama3_scaling(header: GgufHeader, factors: Array, head_dim: int, theta: float) -> RopeScaling:
    """llama.cpp stores Llama 3's scaling as one divisor a frequency; recover the parameters that made them."""
    scaling = RopeScaling("llama3", float(factors.max(initial=1.0)))
    expected = _llama3_factors(scaling, head_dim, theta)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise ModelUnsupported(f"{header.path.name}: {_ROPE_FACTORS} are not those of Llama 3")
    return scaling


def _llama3_factors(scaling: RopeScaling, head_dim: int, theta: float) -> Array:
    """`[head_dim / 2]` divisors (transformers `_compute_llama3_parameters`)."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    turns = scaling.original_max_position / wavelengths
    smooth = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / scaling.factor + smooth), dtype=np.float32)


def _hf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _IN_LAYER and parts[1].isdecimal():
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{parts[3]}"
    return name


def _permuted_heads(spec: ModelSpec, name: str) -> int | None:
    """Llama GGUFs interleave the two rotary halves of each head in q and k; Qwen's do not."""
    if spec.family != "llama":
        return None
    if ".q_proj." in name:
        return spec.n_heads
    return spec.n_kv_heads if ".k_proj." in name else None


def _read(data: Bytes, tensor: GgufTensor, permuted_heads: int | None) -> Array:
    raw = whole(data[tensor.offset :][: tensor.n_bytes], tensor.n_bytes, tensor.name, "the file")
    values = _dequantize(raw, tensor)
    if permuted_heads is None:
        return values
    pairs = values.reshape(permuted_heads, -1, 2, *tensor.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(tensor.shape)


def _dequantize(raw: Bytes, tensor: GgufTensor) -> Array:
    # The library works on 16 rows at a time: longer rows make small models load three times faster.
    rows = math.prod(tensor.shape[:-1])
    values: Array = dequantize(np.asarray(raw).reshape(rows // math.gcd(rows, 8), -1), tensor.type)
    return values.reshape(tensor.shape).astype(np.float32, copy=False)
