"""Compile every kernel for GPUs that need not be here, with the sizes they are launched with. A script: the package
it lies in skips where the interpreter is off, and the interpreter would not compile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvops.node.engine.cuda import attention_kernels, linear_kernel
from kvops.node.engine.cuda.attention import LEAST_TILES, TRITON_TYPES, Geometry
from kvops.node.engine.cuda.tasks import PARTS

AMPERE, HOPPER = GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)
POOLS = {
    "float32": ("*fp32", "*fp32", torch.float32),
    "float16": ("*fp16", "*fp16", torch.float16),
    "bfloat16": ("*bf16", "*bf16", torch.bfloat16),
    "int8": ("*bf16", "*i8", torch.bfloat16),
    "fp8": ("*bf16", "*fp8e4nv", torch.bfloat16),
}
"""Types of queries, of stored numbers, of products."""
SHAPE = {"KV_HEADS": 2, "HEAD_DIM": 128, "DIM": 128, "BLOCK": 16}
Case = tuple[str, Any, dict[str, str], dict[str, Any], GPUTarget]


def sources() -> Iterator[Case]:
    for kind in POOLS:
        yield store(kind)
        for window in (0, 100):
            yield attend(kind, 1, window)
            yield attend(kind, PARTS, window)
    yield from others()


def target_of(kind: str) -> GPUTarget:
    return HOPPER if kind == "fp8" else AMPERE


def store(kind: str) -> Case:
    query, stored, _ = POOLS[kind]
    given = stored if kind == "fp8" else query
    types = {"keys": given, "values": given, "pool_keys": stored, "pool_values": stored}
    sizes = SHAPE | {"SCALED": kind == "int8"}
    return f"store {kind}", attention_kernels.store, types, sizes, target_of(kind)


def attend(kind: str, parts: int, window: int) -> Case:
    query, stored, dot = POOLS[kind]
    geometry = Geometry(8, 2, 128, 16, window, dot)
    rows = geometry.single_rows if parts > 1 else geometry.chunk_rows
    types = {"keys": stored, "values": stored, "queries": query}
    sizes = SHAPE | {
        "GROUP": geometry.group,
        "ROWS": rows,
        "TILE": geometry.tile,
        "WINDOW": window,
        "PARTS": parts,
        "LEAST": LEAST_TILES,
        "SCALED": kind == "int8",
        "DOT": TRITON_TYPES[dot],
    }
    return (
        f"attend {kind}, {rows} rows, window {window}",
        attention_kernels.attend,
        types | {"out": "*fp32" if parts > 1 else query},
        sizes,
        target_of(kind),
    )


def others() -> Iterator[Case]:
    sizes = {"HEADS": 8, "HEAD_DIM": 128, "DIM": 128, "TILE": 64, "WINDOW": 0, "PARTS": PARTS}
    sizes |= {"LEAST": LEAST_TILES}
    yield "merge", attention_kernels.merge, {"out": "*bf16"}, sizes, AMPERE
    for rows in (16, 64):
        sizes = {"OUT": 100, "DEPTH": 576, "ROWS": rows, "COLUMNS": 64, "TILE": 64}
        yield (
            f"multiply {rows} rows", linear_kernel.multiply,
            {"rows": "*bf16", "weight": "*i8", "bias": "*fp32", "out": "*bf16"},
            sizes | {"HAS_BIAS": True, "DOT": TRITON_TYPES[torch.bfloat16]}, AMPERE,
        )  # fmt: skip


_OTHERS = {"slots": "*i32", "tables": "*i32", "count": "i32", "scale": "fp32"}


def type_of(name: str) -> str:
    if name in _OTHERS:
        return _OTHERS[name]
    if name.endswith("_stride"):
        return "i32"
    return "*i32" if name.startswith("task_") else "*fp32"


def main() -> None:
    for name, kernel, types, sizes, target in sources():
        signature = {
            one: "constexpr" if one in sizes else types.get(one, type_of(one))
            for one in kernel.arg_names
        }
        source = ASTSource(kernel, signature, sizes)
        made = triton.compile(source, target=target)
        sys.stdout.write(f"{made.metadata.shared:8} bytes shared: {name}\n")


if __name__ == "__main__":
    main()
