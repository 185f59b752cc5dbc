"""What a node tells of its GPU, read by its own code from a stand-in of NVIDIA's library. No GPU has been read yet."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvops.models.spec import ModelSpec
from kvops.node import gpus
from kvops.node.api.metrics import exposition
from kvops.node.audit import NoAudit
from kvops.node.gpus import GpuReader
from kvops.node.wire import EngineInfo
from kvops.telemetry.prometheus import parse
from kvops.telemetry.snapshot import Gpu, Known, NotExposed, Reading, decode_snapshot, encode
from tests.node.conftest import eventually
from tests.node.test_answers import Bench
from tests.node.test_picture import stats, view_of

GIB = 2**30


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class Nvml:
    """As much of pynvml as is used, of a machine with GPUs of one kind."""

    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported

    def __init__(self) -> None:
        self.name: str | bytes = "NVIDIA H200"
        self.busy = 37
        self.used = 96 * GIB
        self.fails = ""
        """Text of an NVMLError that every call raises."""
        self.parts = False
        """A part of a GPU, of which no utilization is told."""
        self.hangs = threading.Event()
        self.goes_on = threading.Event()
        self.open = 0
        self.threads: set[int] = set()

    def _asked(self) -> None:
        self.threads.add(threading.get_ident())
        if self.hangs.is_set():
            self.goes_on.wait(60)
        if self.fails:
            raise NVMLError(self.fails)

    def nvmlInit(self) -> None:
        self._asked()
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self._asked()
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._asked()
        return {"GPU-of-three": "gpu 3"}[uuid]

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        return int(handle.removeprefix("gpu "))

    def nvmlDeviceGetName(self, handle: str) -> str | bytes:
        return self.name

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return type("Memory", (), {"used": self.used, "total": 139 * GIB, "free": 43 * GIB})()

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        if self.parts:
            raise NVMLError_NotSupported("Not Supported")
        return type("Rates", (), {"gpu": self.busy, "memory": 12})()


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    stand_in = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(gpus, "AGAIN_SECONDS", 0.01)
    yield stand_in
    stand_in.goes_on.set()


@pytest.fixture
def reader() -> Iterator[GpuReader]:
    made = GpuReader()
    yield made
    made.close()


def seen(
    reader: GpuReader, wanted: Callable[[Reading[tuple[Gpu, ...]]], bool], **which: str
) -> Any:
    asked = {"device": "cuda:0", **which}
    eventually(lambda: wanted(reader.read(**asked)), f"not {reader.read(**asked)}", 30)
    return reader.read(**asked)


def known(reading: Reading[tuple[Gpu, ...]]) -> bool:
    return isinstance(reading, Known)


def says(text: str) -> Callable[[Reading[tuple[Gpu, ...]]], bool]:
    return lambda reading: isinstance(reading, NotExposed) and text in reading.reason


def test_a_gpu_is_read_by_a_thread_of_its_own(nvml: Nvml, reader: GpuReader) -> None:
    reading = seen(reader, known, name="NVIDIA H200")
    assert reading.value == (Gpu(0, "NVIDIA H200", 0.37, 96 * GIB, 139 * GIB),)
    assert time.time() - reading.at < 30
    nvml.busy, nvml.used = 100, 97 * GIB
    eventually(lambda: reader.read("cuda:0").value[0].utilization == 1.0, "it is read again", 30)  # type: ignore[union-attr]
    assert threading.get_ident() not in nvml.threads
    assert len(nvml.threads) == 1
    assert nvml.open == 1, "the library is made ready once"


def test_a_driver_that_hangs_holds_up_nobody_and_is_said(
    nvml: Nvml, reader: GpuReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "STALE_SECONDS", 0.2)
    seen(reader, known)
    nvml.hangs.set()
    told = seen(reader, says("the NVIDIA driver has not answered for "))
    began = time.monotonic()
    for _ in range(1000):
        reader.read("cuda:0")
    assert time.monotonic() - began < 1
    assert isinstance(told, NotExposed)
    nvml.hangs.clear()
    nvml.goes_on.set()
    seen(reader, known)


def test_a_driver_that_fails_is_a_reason_and_is_asked_again(nvml: Nvml, reader: GpuReader) -> None:
    nvml.fails = "Driver Not Loaded"
    seen(reader, says("the NVIDIA driver does not answer: Driver Not Loaded"))
    nvml.fails = ""
    seen(reader, known)
    nvml.fails = "GPU is lost"
    seen(reader, says("GPU is lost"))
    assert nvml.open == 0, "after a failure the library is begun anew"
    nvml.fails = ""
    seen(reader, known)
    assert nvml.open == 1


def test_without_the_library_the_reason_says_what_to_install(
    reader: GpuReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    seen(reader, says("nvidia-ml-py is not installed (pip install nvidia-ml-py)"))


def test_without_a_thread_there_is_a_reason_and_another_try(
    nvml: Nvml, reader: GpuReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", no_more)
        assert says("no thread")(reader.read("cuda:0"))
    seen(reader, known)


@pytest.mark.parametrize(
    ("visible", "device", "index"),
    [("", "cuda:2", 2), ("4,7", "cuda:1", 7), ("GPU-of-three", "cuda:0", 3), ("5", "cuda", 5)],
)
def test_the_gpu_is_the_one_that_torch_means(
    visible: str,
    device: str,
    index: int,
    nvml: Nvml,
    reader: GpuReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert seen(reader, known, device=device).value[0].index == index


def test_another_gpu_than_torchs_is_not_told_as_the_nodes(nvml: Nvml, reader: GpuReader) -> None:
    seen(reader, says("CUDA_DEVICE_ORDER=PCI_BUS_ID"), name="NVIDIA T4")
    nvml.name = b"NVIDIA T4"
    assert seen(reader, known, name="NVIDIA T4").value[0].name == "NVIDIA T4"


def info(device: str) -> EngineInfo:
    spec = ModelSpec(
        family="llama", n_layers=1, hidden_size=8, intermediate_size=8, n_heads=1, n_kv_heads=1, head_dim=8,
        vocab_size=300, max_context_length=64, rope_theta=1e4, rms_norm_eps=1e-5, tie_embeddings=True,
    )  # fmt: skip
    return EngineInfo(
        spec=spec, parameters=1, weights_dtype="bfloat16", kv_dtype="bfloat16", device=device, max_model_len=64,
        pool_blocks=8, block_size=16, bytes_per_block=1024,
    )  # fmt: skip


async def test_snapshot_and_metrics_tell_of_the_gpu(
    nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.supervisor.info = info("cuda:0")
    told = stats({})
    bench.supervisor.stats = msgspec.structs.replace(
        told, memory=msgspec.structs.replace(told.memory, device="cuda:0 NVIDIA H200")
    )
    view = view_of(bench)
    try:
        eventually(lambda: isinstance(view.gpus(), Known), "the GPU is read", 30)
        kept = decode_snapshot(encode(view.snapshot())).gpus
        assert isinstance(kept, Known)
        assert kept.value == (Gpu(0, "NVIDIA H200", 0.37, 96 * GIB, 139 * GIB),)
        page = parse(exposition(view, NoAudit())[0].decode())
        assert page.types["kvops_gpu_utilization_ratio"] == "gauge"
        assert page.value("kvops_gpu_utilization_ratio", gpu="0") == 0.37
        assert page.value("kvops_gpu_memory_used_bytes", gpu="0") == 96 * GIB
        nvml.parts = True
        eventually(lambda: view.gpus().value[0].utilization is None, "it is a part", 30)  # type: ignore[union-attr]
        page = parse(exposition(view, NoAudit())[0].decode())
        assert "kvops_gpu_utilization_ratio" not in page.types, "what is not told is not 0"
        assert page.value("kvops_gpu_memory_used_bytes", gpu="0") == 96 * GIB
    finally:
        view.gpu.close()


async def test_a_node_on_the_cpu_asks_no_driver(
    nvml: Nvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.supervisor.info = info("cpu")
    assert view_of(bench).gpus() == NotExposed("the node runs on the CPU")
    assert nvml.threads == set()
