"""The engine's numbers: steps measured in this process, streams over HTTP, each against a ceiling or a peer."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks import peers
from benchmarks.ceilings import Ceilings, measure_ceilings
from benchmarks.client import prompt, stream, tokens_per_second
from benchmarks.node import Node, pull_default_model, running_node
from benchmarks.table import Row

MODEL = "smollm2-135m"
CONTEXT = 200
_ROUNDS = 5


def measure(peer: str | None = None, peer_url: str | None = None) -> Iterator[Row]:
    model = pull_default_model()
    ceilings = measure_ceilings()
    Console(width=140).print(f"this machine, in this run: {ceilings}")
    threads = len(os.sched_getaffinity(0))
    llama = peers.llama_cpp(model, threads) if peer == "llama_cpp" else peers.LLAMA_CPP
    vllm = peers.server(peer_url) if peer_url else peers.VLLM
    with tempfile.TemporaryDirectory(prefix="kvops-bench-kernels-") as kernels:
        os.environ["NUMBA_CACHE_DIR"] = kernels
        yield from _starts()
        yield from _in_process(model, ceilings, llama, vllm)
        with running_node() as node:
            yield from _over_http(node, vllm)


def _starts() -> Iterator[Row]:
    with running_node() as node:
        first = node.start_seconds
    with running_node() as node:
        again = node.start_seconds
    yield Row(
        "second start to ready", f"{again:.1f} s", f"first, which compiles: {first:.1f} s",
        again, 5, False, " s", aim=3,
    )  # fmt: skip


def _in_process(
    model: Path, ceilings: Ceilings, llama: peers.Peer, vllm: peers.Peer
) -> Iterator[Row]:
    from benchmarks.steps import Bench

    bench = Bench(model)
    single = 1 / bench.decode_seconds(1, CONTEXT)
    yield Row(
        "single-stream decode", f"{single:.0f} tok/s", llama.figure(llama.single),
        single / llama.single, 1.0, True, " ×", aim=1.5,
    )  # fmt: skip
    floor = bench.bytes_per_step(CONTEXT) / ceilings.read_bytes_per_second
    yield Row(
        "decode step at batch 1", f"{1e3 / single:.2f} ms",
        f"{bench.bytes_per_step(CONTEXT) / 1e6:.0f} MB at the measured bandwidth: {floor * 1e3:.2f} ms",
        1 / single / floor, 2.0, False, " ×", aim=1.4,
    )  # fmt: skip
    prefill = 1024 / bench.prefill_seconds(1024)
    yield Row(
        "prefill at 1,024 tokens", f"{prefill:.0f} tok/s", vllm.figure(vllm.prefill),
        prefill / vllm.prefill, 1.2, True, " ×", aim=2.0,
    )  # fmt: skip
    yield Row(
        "", "", llama.figure(llama.prefill), prefill / llama.prefill, 3.0, True, " ×"
    )  # fmt: skip
    prepared = bench.preparation_seconds(64)
    yield Row(
        "schedule + prepare a step, 64 running", f"{prepared * 1e3:.2f} ms",
        "step less kernels and sampling, median", prepared * 1e3, 1.0, False, " ms", aim=0.3,
    )  # fmt: skip
    ratio = bench.tokens_held_ratio()
    yield Row(
        "tokens in an int8 pool", f"{ratio:.2f} ×", "a float32 pool of the same bytes",
        ratio, 3.7, True, " ×",
    )  # fmt: skip


def _over_http(node: Node, vllm: peers.Peer) -> Iterator[Row]:
    stream(node.url, MODEL, prompt(990, 50), 8)
    many = max(tokens_per_second(node.url, MODEL, 32, 108, 64) for _ in range(2))
    peer = vllm.many or peers.VLLM.many or 1.0
    yield Row(
        "output at 32 streams (HTTP)", f"{many:.0f} tok/s", vllm.figure(peer),
        many / peer, 3.0, True, " ×", aim=6.0,
    )  # fmt: skip
    yield _prefix_hit(node)
    yield _stalled(node)
    yield _resident(node)


def _prefix_hit(node: Node) -> Row:
    text = prompt(7, 3980)
    cold = stream(node.url, MODEL, text, 1).ttft
    warm = statistics.median(stream(node.url, MODEL, text, 1).ttft for _ in range(_ROUNDS))
    return Row(
        "TTFT of about 4,000 cached tokens (HTTP)", f"{warm * 1e3:.0f} ms",
        f"not cached: {cold * 1e3:.0f} ms", warm, 0.15, False, " s", aim=0.05,
    )  # fmt: skip


def _stalled(node: Node) -> Row:
    """Tokens of a short stream while a prompt of about 7,000 tokens is read."""
    quiet = stream(node.url, MODEL, prompt(11, 60), 200).gaps
    busy: list[float] = []
    done = threading.Event()

    def short_streams() -> None:
        number = 20
        while not done.is_set():
            one = stream(node.url, MODEL, prompt(number, 60), 400)
            busy.extend(zip(one.arrivals[1:], one.gaps, strict=True))  # type: ignore[arg-type]
            number += 1

    watcher = threading.Thread(target=short_streams)
    watcher.start()
    time.sleep(1.0)  # the short stream is under way
    try:
        long = stream(node.url, MODEL, prompt(12, 6980), 1)
    finally:
        done.set()
        watcher.join()
    during = [gap for at, gap in busy if long.sent <= at <= long.arrivals[0]]  # type: ignore[misc]
    p95, calm = _p95(during), _p95(quiet)
    return Row(
        "p95 gap of a stream beside a 7,000-token prefill", f"{p95 * 1e3:.0f} ms",
        f"quiet {calm * 1e3:.1f} ms; {len(during)} gaps, TTFT of the long one {long.ttft:.1f} s",
        p95 / calm, 3.0, False, " ×", aim=2.0,
    )  # fmt: skip


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def _resident(node: Node) -> Row:
    ledger = node.snapshot().memory
    account = ledger.value  # type: ignore[union-attr]
    held = account.weights + account.kv_reserved
    resident = 0
    daemon = psutil.Process(node.pid)
    for process in (daemon, *daemon.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            resident += process.memory_full_info().uss
    beyond = (resident - held) / 1e6
    return Row(
        "resident beyond weights + pool", f"{beyond:.0f} MB",
        f"all processes of the node {resident / 1e6:.0f} MB, weights + pool {held / 1e6:.0f} MB",
        beyond, 700, False, " MB", aim=400,
    )  # fmt: skip
