"""What a GPU node needs that can be shown without one: faults, support, the work of a step, padding, running out."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kvops.errors import ConfigError
from kvops.node import wire
from kvops.node.engine.attention.base import PagedBatch
from kvops.node.engine.cuda.faults import fault_of
from kvops.node.engine.cuda.graphs import Rung, ladder
from kvops.node.engine.cuda.support import check_capability
from kvops.node.engine.cuda.tasks import padded_tables, step_inputs
from kvops.node.engine.engine import Engine
from kvops.node.engine.scheduler import Batch
from kvops.node.wire import PoolPlan
from tests.engine.driving import drain, load, start, submit

CPU = torch.device("cpu")
GPU = torch.device("cuda:0")
ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might "
    "be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)


def accelerator_error(words: str, number: int | None) -> torch.AcceleratorError:
    """As torch makes it: the message of cudaGetErrorString, and cudaError_t beside it."""
    error = torch.AcceleratorError(f"CUDA error: {words}{ADVICE}")
    if number is not None:
        error.error_code = number
    return error


@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        ("an illegal memory access was encountered", 700, "gpu_illegal_address"),
        ("device-side assert triggered", 710, "gpu_assert"),
        ("uncorrectable ECC error encountered", 214, "gpu_ecc"),
        ("unspecified launch failure", 719, "gpu_launch_failure"),
        ("misaligned address", 716, "gpu_misaligned_address"),
        ("no kernel image is available for execution on the device", 209, "gpu_no_kernel"),
        ("unknown error", 999, "gpu_fault"),
    ],
)
def test_an_error_of_the_gpu_is_named_and_sticky(words: str, number: int, code: str) -> None:
    """By its number, and where torch gives none by its words."""
    for error in (accelerator_error(words, number), accelerator_error(words, None)):
        fault = fault_of(error)
        assert fault is not None
        assert (fault.code, fault.sticky) == (code, True)
        assert fault.message == f"AcceleratorError: CUDA error: {words}"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (
            RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
            "gpu_illegal_address",
        ),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle )`"
            ),
            "gpu_fault",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "gpu_fault"),
    ],
)
def test_errors_of_libraries_are_known_too(error: RuntimeError, code: str) -> None:
    fault = fault_of(error)
    assert fault is not None
    assert (fault.code, fault.sticky) == (code, True)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 66.00 MiB."),
        accelerator_error("out of memory", 2),
    ],
)
def test_running_out_of_memory_is_not_sticky(error: RuntimeError) -> None:
    fault = fault_of(error)
    assert fault is not None
    assert (fault.code, fault.sticky) == ("gpu_out_of_memory", False)
    assert "memory_fraction" in fault.hint


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        RuntimeError("Expected all tensors to be on the same device, found cuda:0 and cpu!"),
        ValueError("CUDA error: this is no error of torch"),
        ConfigError("runtime.device: 'cuda' is not there"),
    ],
)
def test_other_errors_are_not_taken_for_the_gpus(error: Exception) -> None:
    assert fault_of(error) is None


_DIES = """
import sys, torch
from kvops.node.engine import process, runner
run = runner.Runner.run
def failing(self, batch):
    if batch.chunks[0].request.request_id == "doomed":
        error = torch.AcceleratorError("CUDA error: device-side assert triggered")
        error.error_code = 710
        raise error
    return run(self, batch)
runner.Runner.run = failing
sys.exit(process.main())
"""


def test_a_sticky_error_ends_the_process_with_its_name(tiny_model: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        engine = subprocess.Popen(
            [sys.executable, "-c", _DIES, "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        ours.settimeout(120)
        wire.send(ours, start(tiny_model))
        wire.send(ours, submit("doomed", [1, 2, 3]))
        buffer, frames = wire.FrameBuffer(), []
        while data := ours.recv(1 << 16):
            frames += [wire.FROM_ENGINE.decode(body) for body in buffer.feed(data)]
        assert engine.wait(120) == 1
    assert any(isinstance(frame, wire.Ready) for frame in frames)
    assert frames[-1] == wire.Fatal(
        "gpu_assert", "AcceleratorError: CUDA error: device-side assert triggered", ""
    )


def test_a_step_without_memory_ends_its_requests_and_no_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = engine._runner
    run, blank = runner.run, engine.stats().kv.free_blocks

    def short_of_memory(batch: Batch):  # type: ignore[no-untyped-def]
        if any(chunk.length > 100 for chunk in batch.chunks):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return run(batch)

    monkeypatch.setattr(runner, "run", short_of_memory)
    engine.add(submit("long", range(1, 151), max_tokens=4))
    results = drain(engine)
    assert results["long"].finish == "error"
    assert "memory" in results["long"].ends[0].error
    assert engine.stats().kv.free_blocks == blank
    assert engine.check() == []
    engine.add(submit("short", [1, 2, 3], max_tokens=4))
    assert len(drain(engine)["short"].tokens) == 4


def test_fp8_is_refused_on_a_cpu(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match="fp8 needs an NVIDIA GPU") as caught:
        load(tiny_model, pool=PoolPlan(block_size=16, blocks=8, dtype="fp8"))
    assert "int8" in caught.value.hint


def test_what_a_gpu_cannot_do_is_refused() -> None:
    check_capability((8, 0), "int8", GPU)
    check_capability((8, 9), "fp8", GPU)
    check_capability((12, 0), "fp8", GPU)
    with pytest.raises(ConfigError, match=r"compute capability 7\.5"):
        check_capability((7, 5), "bfloat16", GPU)
    with pytest.raises(ConfigError, match=r"fp8 needs compute capability 8\.9"):
        check_capability((8, 6), "fp8", GPU)


def test_tasks_cover_every_token_once_and_know_its_place() -> None:
    source = random.Random(3)
    lengths = [1, 7, 1, 64, 65, 1, 21]
    contexts = [40, 7, 1, 100, 300, 17, 21]
    tables = [source.sample(range(90), -(-context // 16)) for context in contexts]
    inputs = step_inputs(PagedBatch(lengths, contexts, tables), 16, 21, CPU)
    starts = np.cumsum(lengths) - lengths
    seen: list[int] = []
    for tasks, most in ((inputs.singles, 1), (inputs.chunks, 21)):
        for request, row, position, tokens in zip(*(part.tolist() for part in tasks), strict=True):
            assert 1 <= tokens <= most
            offset = row - starts[request]
            assert 0 <= offset <= lengths[request] - tokens
            assert position == contexts[request] - lengths[request] + offset
            seen += range(row, row + tokens)
    assert sorted(seen) == list(range(sum(lengths)))
    assert inputs.tables.tolist() == padded_tables(tables, max(map(len, tables))).tolist()
    expected = [
        tables[request][position // 16] * 16 + position % 16
        for request, (length, context) in enumerate(zip(lengths, contexts, strict=True))
        for position in range(context - length, context)
    ]
    assert inputs.slots.tolist() == expected


@pytest.mark.parametrize("most", [1, 2, 3, 8, 32, 65, 256])
def test_a_ladder_reaches_the_top_and_pads_little(most: int) -> None:
    sizes = ladder(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        padded = next(size for size in sizes if size >= rows)
        assert padded - rows < max(8, padded // 2)


def test_rows_that_no_request_fills_write_to_the_scratch_block() -> None:
    """Also where a larger batch was there before."""
    rung = Rung(4, 3, 16, 99, CPU)
    rung.fill(
        [5, 6, 7, 8], PagedBatch([1] * 4, [1, 17, 48, 33], [[3], [4, 5], [6, 7, 8], [9, 2, 1]])
    )
    assert rung.inputs.slots.tolist() == [48, 80, 8 * 16 + 15, 16]
    assert rung.positions.tolist() == [0, 16, 47, 32]
    assert rung.inputs.tables.tolist() == [[3, 0, 0], [4, 5, 0], [6, 7, 8], [9, 2, 1]]
    rung.fill([9], PagedBatch([1], [20], [[10, 11]]))
    assert rung.token_ids.tolist() == [9, 0, 0, 0]
    assert rung.inputs.slots.tolist() == [11 * 16 + 3, 99 * 16, 99 * 16, 99 * 16]
    assert rung.positions.tolist() == [19, 0, 0, 0]
    assert rung.inputs.tables[1:].tolist() == [[99] * 3] * 3
    assert rung.inputs.singles.position is rung.positions
    assert rung.inputs.singles.tokens.tolist() == [1] * 4


def test_a_batch_that_does_not_fit_a_graph_is_known() -> None:
    rung = Rung(2, 3, 16, 99, CPU)
    assert rung.holds([[1], [2, 3, 4]])
    assert not rung.holds([[1], [2], [3]])
    assert not rung.holds([[1, 2, 3, 4]])


def test_the_cpu_path_imports_nothing_of_triton() -> None:
    """A node on a CPU must not pay for, nor need, what is only for GPUs."""
    script = (
        "import sys, kvops.node.engine.engine, kvops.node.engine.process\n"
        "print(any(name.split('.')[0] == 'triton' for name in sys.modules),"
        " 'kvops.node.engine.cuda.attention' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
