"""Reading the numbers that describe a model: each with a type and a bound, or a ModelCorrupt that names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvops.errors import ModelCorrupt, ModelUnsupported
from kvops.models.spec import ModelSpec

MAX_LAYERS = 1_024
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_WIDTH = 2**20
MAX_VOCAB = 2**21
MAX_CONTEXT = 2**27


def whole(fields: Mapping[str, Any], key: str, most: int, *, default: int | None = None) -> int:
    """A whole number from 1 to `most`. Raises ModelCorrupt."""
    value = fields.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ModelCorrupt(f"{key} is {value!r}, not a whole number from 1 to {most}")
    return value


def real(fields: Mapping[str, Any], key: str, *, default: float | None = None) -> float:
    """A finite number above 0. Raises ModelCorrupt."""
    value = fields.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelCorrupt(f"{key} is {value!r}, not a number above 0")
    return float(value)


def check_heads(spec: ModelSpec) -> ModelSpec:
    """Raises ModelCorrupt, ModelUnsupported for sizes no kernel could follow."""
    if spec.n_heads % spec.n_kv_heads:
        raise ModelCorrupt(f"{spec.n_heads} heads do not divide into {spec.n_kv_heads} KV heads")
    if spec.head_dim % 2:
        raise ModelUnsupported(
            f"a head dimension of {spec.head_dim} is odd: rotary positions need pairs"
        )
    return spec
