"""Tiny random models in HF layout, made in a second, with a byte-level tokenizer: the unit tests' models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_CORPUS = (
    "the quick brown fox jumps over the lazy dog. 0123456789 a node holds blocks of keys and values. "
    * 40
)


def make_tiny_model(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    n_layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    intermediate: int = 128,
    max_context: int = 512,
    tie: bool = False,
) -> Path:
    """Write config.json, model.safetensors, tokenizer.json, tokenizer_config.json into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    vocab = tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(
        family, vocab, n_layers, hidden, heads, kv_heads, head_dim, intermediate, max_context, tie
    )
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "eos_token": "<|im_end|>",
                "bos_token": "<|endoftext|>",
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )
    save_file(_weights(config, seed), folder / "model.safetensors")
    return folder


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_CORPUS], trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    return tokenizer


def _config(
    family: str, vocab: int, layers: int, hidden: int, heads: int, kv_heads: int,
    head_dim: int, intermediate: int, max_context: int, tie: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_context,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tie,
        "sliding_window": None,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": vocab - 1,
    }


def _weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_size, kv_size = (
        config["num_attention_heads"] * head_dim,
        config["num_key_value_heads"] * head_dim,
    )

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden) * 2}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors |= {
            at + "input_layernorm.weight": 1 + 0.1 * normal(hidden),
            at + "post_attention_layernorm.weight": 1 + 0.1 * normal(hidden),
            at + "self_attn.q_proj.weight": normal(q_size, hidden) * 2,
            at + "self_attn.k_proj.weight": normal(kv_size, hidden) * 2,
            at + "self_attn.v_proj.weight": normal(kv_size, hidden),
            at + "self_attn.o_proj.weight": normal(hidden, q_size),
            at + "mlp.gate_proj.weight": normal(config["intermediate_size"], hidden),
            at + "mlp.up_proj.weight": normal(config["intermediate_size"], hidden),
            at + "mlp.down_proj.weight": normal(hidden, config["intermediate_size"]),
        }
        if config["model_type"] == "qwen2":
            tensors |= {
                at + "self_attn.q_proj.bias": normal(q_size),
                at + "self_attn.k_proj.bias": normal(kv_size),
                at + "self_attn.v_proj.bias": normal(kv_size),
            }
        if config["model_type"] == "qwen3":
            tensors |= {
                at + "self_attn.q_norm.weight": 1 + 0.1 * normal(head_dim),
                at + "self_attn.k_norm.weight": 1 + 0.1 * normal(head_dim),
            }
    tensors["model.norm.weight"] = 1 + 0.1 * normal(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden)
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
