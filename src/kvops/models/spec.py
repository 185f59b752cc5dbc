"""The architecture of a decoder model, the same for GGUF and safetensors sources."""

from __future__ import annotations

from typing import Literal

import msgspec

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


class RopeScaling(msgspec.Struct, frozen=True):
    """Llama-3 style frequency scaling (the `rope_type: llama3` of HF configs), or plain linear."""

    kind: Literal["linear", "llama3"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one decoder. Head counts are of attention, `head_dim` is explicit (never hidden / heads)."""

    family: Family
    n_layers: int
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_length: int
    rope_theta: float
    rms_norm_eps: float
    tie_embeddings: bool
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = False
    """Bias on q, k and v projections (Qwen2)."""
    qk_norm: bool = False
    """RMS norm over each head of q and k (Qwen3)."""
    sliding_window: int | None = None
    """Tokens a position attends to (early Mistral); None attends to all."""

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """2 × layers × KV heads × head dim × bytes (reference: vLLM `kv_cache_interface`)."""
        return int(2 * self.n_layers * self.n_kv_heads * self.head_dim * bytes_per_value)
