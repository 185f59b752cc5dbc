"""Compile what a model's steps need on this machine, so that its first start finds it done. `python -m … PATH`.

The kernels are kept in the cache folder and serve every model of the same shape and formats.
"""

from __future__ import annotations

import sys

from kvops.node.engine.loading import load
from kvops.node.wire import PoolPlan, Start

_BLOCKS = 64


def prepare(path: str) -> None:
    """Raises ConfigError, NodeStartError or a ModelError."""
    start = Start(
        model_path=path,
        model_name="",
        revision="",
        max_context_length=None,
        weights_dtype="auto",
        pool=PoolPlan(block_size=16, blocks=_BLOCKS),
        max_batch_size=32,
        max_batched_tokens=512,
        threads=None,
    )
    load(start, lambda phase, detail: None)


if __name__ == "__main__":
    prepare(sys.argv[1])
