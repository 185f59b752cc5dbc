"""A decoder in a folder of the HF layout: config.json and safetensors, one file or shards.

Only data is read from the folder. `auto_map` and Python files in it have no effect.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from kvops.errors import ModelCorrupt, ModelUnsupported
from kvops.models import bounds
from kvops.models.layout import Array, TensorSource, whole
from kvops.models.safetensors_header import SafeTensor, read_safetensors_header
from kvops.models.spec import Family, ModelSpec, RopeScaling

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 * 2**20
_FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\.safetensors")
_READABLE = ("F32", "F16", "BF16")


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file of the folder. Raises ModelCorrupt."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelCorrupt(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelCorrupt(f"{path.name} is not JSON") from error
    except OSError as error:
        raise ModelCorrupt(
            f"{path} cannot be read: {error.strerror}",
            hint="give a folder with config.json and safetensors, or a .gguf file",
        ) from error
    if not isinstance(fields, dict):
        raise ModelCorrupt(f"{path.name} is not a JSON object")
    return fields


def read_json_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def hf_spec(config: dict[str, Any]) -> ModelSpec:
    """Raises ModelUnsupported for another architecture or an unknown variant, ModelCorrupt for bad values."""
    family = _family(config)
    _refuse_variants(config, family)
    hidden = bounds.whole(config, "hidden_size", bounds.MAX_WIDTH)
    n_heads = bounds.whole(config, "num_attention_heads", bounds.MAX_HEADS)
    default_head_dim = 128 if family == "qwen3" else max(1, hidden // n_heads)
    theta, scaling = _rope(config)
    spec = ModelSpec(
        family=family,
        n_layers=bounds.whole(config, "num_hidden_layers", bounds.MAX_LAYERS),
        hidden_size=hidden,
        intermediate_size=bounds.whole(config, "intermediate_size", bounds.MAX_WIDTH),
        n_heads=n_heads,
        n_kv_heads=bounds.whole(config, "num_key_value_heads", bounds.MAX_HEADS, default=n_heads),
        head_dim=bounds.whole(config, "head_dim", bounds.MAX_HEAD_DIM, default=default_head_dim),
        vocab_size=bounds.whole(config, "vocab_size", bounds.MAX_VOCAB),
        max_context_length=bounds.whole(config, "max_position_embeddings", bounds.MAX_CONTEXT),
        rope_theta=theta,
        rms_norm_eps=bounds.real(config, "rms_norm_eps", default=1e-6),
        tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        rope_scaling=scaling,
        attention_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(config, family),
    )
    return bounds.check_heads(spec)


def _family(config: dict[str, Any]) -> Family:
    names = config.get("architectures") or [f"{str(config.get('model_type')).title()}ForCausalLM"]
    name = names[0] if isinstance(names, list) else names
    if not isinstance(name, str) or name not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ModelUnsupported(
            f"the architecture {str(name)[:60]!r} is not supported", hint=f"supported are {known}"
        )
    return _FAMILIES[name]


def _refuse_variants(config: dict[str, Any], family: Family) -> None:
    variants = {
        "quantization_config": config.get("quantization_config") is not None,
        "attention_bias": family != "qwen2" and bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "partial_rotary_factor": config.get("partial_rotary_factor", 1.0) != 1.0,
    }
    for field in (name for name, used in variants.items() if used):
        raise ModelUnsupported(f"config.json: {field} = {str(config[field])[:60]} is not supported")


def _rope(config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Both forms: `rope_theta` + `rope_scaling`, and `rope_parameters` that holds all (transformers 5)."""
    fields = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(fields, dict):
        raise ModelCorrupt(f"the rope fields are {str(fields)[:60]}, not an object")
    theta = bounds.real(config | fields, "rope_theta", default=10_000.0)
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind in ("default", None):
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", bounds.real(fields, "factor"))
    if kind == "llama3":
        return theta, _llama3(fields)
    raise ModelUnsupported(
        f"the rope scaling {str(kind)[:40]!r} is not supported", hint="supported are linear, llama3"
    )


def _llama3(fields: dict[str, Any]) -> RopeScaling:
    scaling = RopeScaling(
        "llama3",
        bounds.real(fields, "factor"),
        bounds.real(fields, "low_freq_factor"),
        bounds.real(fields, "high_freq_factor"),
        bounds.whole(fields, "original_max_position_embeddings", bounds.MAX_CONTEXT),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ModelCorrupt("high_freq_factor is not above low_freq_factor")
    return scaling


def _sliding_window(config: dict[str, Any], family: Family) -> int | None:
    if family == "mistral" and config.get("sliding_window") is not None:
        return bounds.whole(config, "sliding_window", bounds.MAX_CONTEXT)
    if config.get("use_sliding_window"):
        raise ModelUnsupported("a sliding window on some layers only is not supported")
    return None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files, by name. Raises ModelCorrupt for a name in the index that is no plain file there."""
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            raise ModelCorrupt(
                f"{folder.name} has neither {WEIGHTS} nor {INDEX}",
                hint="give a folder with config.json and safetensors, or a .gguf file",
            )
        return [folder / WEIGHTS]
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelCorrupt(f"{INDEX} has no weight_map")
    return [
        folder / _plain(folder, name)
        for name in sorted({str(name) for name in weight_map.values()})
    ]


def _plain(folder: Path, name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ModelCorrupt(f"{INDEX} names {name[:80]!r}, which is no plain safetensors file name")
    if not (folder / name).is_file():
        raise ModelCorrupt(f"{INDEX} names {name}, which is missing")
    return name


def hf_tensors(folder: Path, spec: ModelSpec) -> dict[str, TensorSource]:
    """HF name → tensor. Raises ModelCorrupt for a tensor that two files hold, ModelUnsupported for its type."""
    sources: dict[str, TensorSource] = {}
    for path in weight_files(folder):
        for tensor in read_safetensors_header(path):
            if tensor.name in sources:
                raise ModelCorrupt(f"tensor {tensor.name[:64]!r} is in two files of {folder.name}")
            if not _ignored(tensor.name, spec):
                sources[tensor.name] = TensorSource(tensor.shape, _reader(path, tensor))
    return sources


def _ignored(name: str, spec: ModelSpec) -> bool:
    tied_copy = spec.tie_embeddings and name == "lm_head.weight"
    return tied_copy or name.endswith(".rotary_emb.inv_freq")


def _reader(path: Path, tensor: SafeTensor) -> functools.partial[Array]:
    if tensor.dtype not in _READABLE:
        readable = ", ".join(_READABLE)
        raise ModelUnsupported(
            f"tensor {tensor.name[:64]!r} is {tensor.dtype}", hint=f"readable are {readable}"
        )
    return functools.partial(_read, path, tensor)


def _read(path: Path, tensor: SafeTensor) -> Array:
    read = np.fromfile(path, dtype=np.uint8, count=tensor.n_bytes, offset=tensor.offset)
    data = whole(read, tensor.n_bytes, tensor.name, path.name)
    if tensor.dtype == "BF16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(tensor.shape)
    kind = np.float32 if tensor.dtype == "F32" else np.float16
    return data.view(kind).reshape(tensor.shape).astype(np.float32, copy=False)
