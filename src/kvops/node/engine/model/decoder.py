"""The decoder: flattened tokens of a whole mixed batch in, hidden states out. Holds weights, no request state."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from kvops.models.spec import ModelSpec
from kvops.node.engine.attention.base import AttentionStep
from kvops.node.engine.model.rotary import Rotary
from kvops.node.engine.model.weights import DecoderWeights, LayerWeights


class Decoder:
    def __init__(self, spec: ModelSpec, weights: DecoderWeights, rotary: Rotary) -> None:
        self._spec = spec
        self._weights = weights
        self._rotary = rotary

    def forward(self, token_ids: Tensor, positions: Tensor, attention: AttentionStep) -> Tensor:
        """[T] token ids at [T] positions to [T, hidden], before the last norm; stores keys and values."""
        hidden = functional.embedding(token_ids, self._weights.embedding)
        cos, sin = self._rotary.at(positions)
        for index, layer in enumerate(self._weights.layers):
            heads = self._heads(layer, hidden, cos, sin)
            hidden = hidden + layer.output(self._attend(index, heads, attention))
            hidden = hidden + self._mlp(layer, hidden)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] rows that shall be sampled to [R, vocabulary], float32."""
        return self._weights.lm_head(self._norm(hidden, self._weights.norm)).float()

    def _heads(
        self, layer: LayerWeights, hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys `[T, heads + kv_heads, head_dim]`, and values `[T, kv_heads, head_dim]`."""
        spec = self._spec
        turned = spec.n_heads + spec.n_kv_heads
        fused = layer.qkv(self._norm(hidden, layer.attention_norm)).view(
            -1, turned + spec.n_kv_heads, spec.head_dim
        )
        queries_keys, values = fused[:, :turned], fused[:, turned:]
        if layer.head_norm is not None:
            queries_keys = self._norm(queries_keys, None) * layer.head_norm
        return self._rotary.rotate(queries_keys, cos, sin), values

    def _attend(self, index: int, heads: tuple[Tensor, Tensor], attention: AttentionStep) -> Tensor:
        queries_keys, values = heads
        queries, keys = queries_keys[:, : self._spec.n_heads], queries_keys[:, self._spec.n_heads :]
        attention.store(index, keys, values)
        return attention.attend(index, queries).flatten(1)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(functional.silu(gate).mul_(up))

    def _norm(self, rows: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(rows, rows.shape[-1:], weight, self._spec.rms_norm_eps)
