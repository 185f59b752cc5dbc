"""`python -m benchmarks.gpu`: does the GPU path hold on this machine, and how fast is it?

Exit code 0: all agrees with the oracle. 1: something does not. 2: there is no GPU to ask. Speed has no bar: it is
told beside what this GPU copies a second, measured in the same run.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.table import Row, print_table
from kvops.errors import KvopsError
from kvops.models.store import resolve
from kvops.node.engine.engine import Engine
from kvops.node.wire import PoolPlan

GPU = torch.device("cuda")
SHAPES = ((9, 3, 64), (32, 8, 128), (28, 4, 128))
"""Heads, KV heads, head dim of SmolLM2-135M, Llama-3-8B and Qwen2.5-7B."""
FORMATS = {
    "float32": (torch.float32, 1e-4),
    "float16": (torch.float16, 5e-3),
    "bfloat16": (torch.bfloat16, 3e-2),
    "int8": (torch.bfloat16, 3e-2),
    "fp8": (torch.bfloat16, 3e-2),
}
"""What a pool holds, the type of the queries, and how far the output may be from the oracle on the same numbers."""
LENGTHS = [1, 15, 16, 17, 63, 64, 65, 300, 1500, 3000, 200, 130]
CUTS = [1, 1, 16, 1, 5, 1, 65, 1, 1, 1, 200, 70]


@dataclass(frozen=True)
class Speed:
    what: str
    measured: str
    bytes_per_second: float | None
    """None where memory is not what bounds it."""


def main() -> int:
    if fault := why_not():
        Console(stderr=True, width=120).print(fault)
        return 2
    console = Console(width=120)
    console.print(f"{torch.cuda.get_device_name(GPU)}, torch {torch.__version__}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="kvops-gpu-") as folder:
        model = model_at(Path(folder))
        print_table("against the oracle", kept(rows, checks(model)))
        copied = copy_bytes_per_second()
        print_speed(console, speeds(model), copied)
    failed = [row for row in rows if row.verdict == "NOT MET"]
    console.print(f"{len(failed)} of {len(rows)} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


def why_not() -> str:
    """Why there is nothing to check here, and the next step; empty if there is."""
    if torch.version.cuda is None:
        return (
            f"The torch in {sys.prefix} ({torch.__version__}) is not built for CUDA.\n"
            f"  Install one that is into that environment, then run scripts/gpu-check again."
        )
    if not torch.cuda.is_available():
        return (
            "torch finds no GPU that it can use.\n  See that nvidia-smi lists one and that its driver is new "
            f"enough for CUDA {torch.version.cuda}, then run scripts/gpu-check again."
        )
    if importlib.util.find_spec("triton") is None:
        return (
            "Triton is not installed.\n  Install it beside torch, then run scripts/gpu-check again."
        )
    return ""


def model_at(folder: Path) -> Path:
    """The default model if it has been pulled, else a tiny random one made in `folder`."""
    from tests.tiny import make_tiny_model

    try:
        return resolve("smollm2-135m").path
    except KvopsError:
        return make_tiny_model(folder / "tiny", heads=8, kv_heads=2, head_dim=64, hidden=256)


def kept(rows: list[Row], made: Iterator[Row]) -> Iterator[Row]:
    for row in made:
        rows.append(row)
        yield row


def checks(model: Path) -> Iterator[Row]:
    yield from kernel_checks(GPU, LENGTHS, CUTS)
    yield from weight_checks(GPU)
    yield from token_checks(model)


def kernel_checks(device: torch.device, lengths: list[int], cuts: list[int]) -> Iterator[Row]:
    """Every format the GPU has, on three models' shapes: largest error against the oracle in float32."""
    from tests.paged import Paged, spec

    for kind, (dtype, most) in FORMATS.items():
        if kind == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
            continue
        errors = []
        for shape in SHAPES:
            for window in (None, 100):
                paged = Paged(spec(*shape), 16, lengths, device=device)
                pool = paged.pool(kind)  # type: ignore[arg-type]
                ours = paged.kernels(pool, window, dtype)
                paged.store_all(ours, dtype)
                theirs, _ = paged.oracle(window, like=pool)
                got = paged.attend(ours, cuts, dtype).float()
                errors.append((got - paged.attend(theirs, cuts)).abs().max().item())
        yield Row(
            f"attention, {kind} KV", f"{len(errors)} mixed batches", "largest error",
            max(errors), most, False,
        )  # fmt: skip


def weight_checks(device: torch.device) -> Iterator[Row]:
    from kvops.node.engine.cuda.rounded import RoundedLinear

    torch.manual_seed(0)
    weight = torch.randn(1000, 576)
    linear = RoundedLinear(weight.to(device))
    stands_for = linear.weight.cpu().float() * linear.scales.cpu()[:, None]
    errors = []
    for count in (1, 16, 70):
        rows = torch.randn(count, 576).bfloat16()
        exact = rows.float() @ stands_for.T
        got = linear(rows.to(device)).cpu().float()
        errors.append(((got - exact).abs().max() / exact.abs().max()).item())
    yield Row(
        "int8 weights", "1, 16 and 70 rows", "largest error, as a share", max(errors), 0.01, False
    )


def token_checks(model: Path) -> Iterator[Row]:
    """Greedy tokens, each engine as a node would have it."""
    prompts = [[(7 * i + 13 * j) % 300 for j in range(20 + 9 * i)] for i in range(24)]
    expected = greedy(model, "cpu", "float32", "float32", prompts, 24)
    exact = greedy(model, "cuda", "float32", "float32", prompts, 24)
    yield Row(
        "greedy tokens in float32", f"24 tokens of {len(prompts)} prompts", "equal to the CPU's",
        agreement(exact, expected, 24), 1.0, True,
    )  # fmt: skip
    for weights, kv, least in (("bfloat16", "bfloat16", 0.9), ("int8", "int8", 0.75)):
        first = greedy(model, "cuda", weights, kv, prompts, 1)
        yield Row(
            f"first tokens, {weights} with {kv} KV", f"of {len(prompts)} prompts",
            "equal to float32 on the CPU", agreement(first, expected, 1), least, True,
        )  # fmt: skip


def agreement(got: list[list[int]], expected: list[list[int]], count: int) -> float:
    pairs = [
        mine == yours
        for one, other in zip(got, expected, strict=True)
        for mine, yours in zip(one[:count], other[:count], strict=True)
    ]
    return sum(pairs) / len(pairs)


def greedy(
    model: Path, device: str, weights: str, kv: str, prompts: list[list[int]], count: int
) -> list[list[int]]:
    from tests.engine.driving import outputs, start, submit

    pool = PoolPlan(block_size=16, blocks=1024, dtype=kv)  # type: ignore[arg-type]
    engine = Engine.load(
        start(model, pool=pool, device=device, weights_dtype=weights, threads=None),
        lambda phase, detail: None,
    )
    names = [str(index) for index in range(len(prompts))]
    asked = [submit(n, p, max_tokens=count) for n, p in zip(names, prompts, strict=True)]
    found = outputs(engine, asked)
    return [found[name] for name in names]


def speeds(model: Path) -> Iterator[Speed]:
    from benchmarks.steps import Bench

    bench = Bench(model)
    for running in (1, 32):
        seconds = bench.decode_seconds(running, 200)
        read = bench.bytes_per_step(200 * running)
        yield Speed(
            f"decode, {running} running",
            f"{running / seconds:,.0f} tok/s, {seconds * 1e3:.2f} ms a step",
            read / seconds,
        )
    yield Speed("prefill of 1,024 tokens", f"{1024 / bench.prefill_seconds(1024):,.0f} tok/s", None)
    for kind in ("bfloat16", "int8"):
        yield attention_speed(kind)


def attention_speed(kind: str) -> Speed:
    """The decode kernel alone: 32 requests of 4,096 tokens, the shape of Llama-3-8B."""
    from tests.paged import Paged, spec

    paged = Paged(spec(32, 8, 128), 16, [4096] * 32, device=GPU)
    pool = paged.pool(kind)  # type: ignore[arg-type]
    ours = paged.kernels(pool, dtype=torch.bfloat16)
    paged.store_all(ours, torch.bfloat16)
    cuts = [1] * 32
    step = ours.begin(paged.batch(cuts))
    queries = paged.last(cuts, "queries").to(GPU, torch.bfloat16)
    seconds = timed(lambda: step.attend(0, queries))
    return Speed(f"decode attention, {kind} KV", f"{seconds * 1e6:.0f} µs", pool.nbytes / seconds)


def copy_bytes_per_second() -> float:
    """Read and written."""
    source = torch.ones(2**28, dtype=torch.float32, device=GPU)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source))


def timed(work: Callable[[], object]) -> float:
    """Seconds, the median of 20 after 3 that warm up."""
    seconds = []
    for _ in range(23):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[3:])


def print_speed(console: Console, made: Iterator[Speed], copied: float) -> None:
    table = Table(title=f"speed; this GPU copies {copied / 1e9:,.0f} GB/s", title_justify="left")
    for column in ("what", "measured", "GB/s", "of what it copies"):
        table.add_column(column)
    try:
        for row in made:
            rate = row.bytes_per_second
            shown = ("", "") if rate is None else (f"{rate / 1e9:,.0f}", f"{rate / copied:.0%}")
            table.add_row(row.what, row.measured, *shown)
    finally:  # what was measured before something failed is shown
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
