"""GGUF files for tests, written with the gguf library from the tiny models, the way llama.cpp converts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.numpy import load_file

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
CONTROL, NORMAL = 3, 1


def to_gguf(
    folder: Path,
    path: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    pre: str = "gpt-2",
    extra: dict[str, Any] | None = None,
    drop: str = "",
    rope_factors: np.ndarray | None = None,
) -> Path:
    """Convert a folder in HF layout. Matrices are quantized to `kind`; the tensor named `drop` is left out."""
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"].replace("mistral", "llama")
    writer = GGUFWriter(path, architecture)
    _write_sizes(writer, config)
    _write_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), pre)
    writer.add_chat_template(
        json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    )
    for key, value in (extra or {}).items():
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, value, *_value_type(value))
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors, raw_dtype=GGMLQuantizationType.F32)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if gguf_name(name) != drop:
            _write_tensor(writer, name, tensor, config, kind)
    _finish(writer)
    return path


def write_gguf(path: Path, tensors: dict[str, tuple[np.ndarray, GGMLQuantizationType]]) -> Path:
    """A file with raw tensor bytes and the least metadata."""
    writer = GGUFWriter(path, "llama")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    _finish(writer)
    return path


def gguf_name(name: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` → `blk.0.ffn_up.weight`."""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[rest]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_tokenizer(writer: GGUFWriter, tokenizer: dict[str, Any], pre: str) -> None:
    vocabulary = dict(tokenizer["model"]["vocab"])
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = [
        token for token, _ in sorted((vocabulary | special).items(), key=lambda entry: entry[1])
    ]
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in special else NORMAL for token in tokens])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(special["<|endoftext|>"])
    writer.add_eos_token_id(special["<|im_end|>"])


def _write_tensor(
    writer: GGUFWriter,
    name: str,
    tensor: np.ndarray,
    config: dict[str, Any],
    kind: GGMLQuantizationType,
) -> None:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    projection = name.split(".")[-2]
    if config["model_type"] in ("llama", "mistral") and projection in heads:
        tensor = permuted(tensor, heads[projection])
    if tensor.ndim == 1:
        kind = GGMLQuantizationType.F32
    writer.add_tensor(gguf_name(name), gguf.quants.quantize(tensor, kind), raw_dtype=kind)


def permuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Row 2i of a head is row i of HF's, row 2i + 1 is row i + half: what llama.cpp's rotary kernel reads."""
    head_dim = tensor.shape[0] // heads
    pairs = [i + half for i in range(head_dim // 2) for half in (0, head_dim // 2)]
    order = [head * head_dim + row for head in range(heads) for row in pairs]
    return np.ascontiguousarray(tensor[order])


def _value_type(value: Any) -> tuple[gguf.GGUFValueType, ...]:
    if isinstance(value, list):
        return (gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.get_type(value[0]))
    return (gguf.GGUFValueType.get_type(value),)
