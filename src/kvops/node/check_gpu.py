"""Checks of a GPU, without torch: is there one, does its driver suit the torch that is installed, does the plan fit."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError, NodeStartError
from kvops.machine import Memory
from kvops.node.finding import Looked
from kvops.node.nvml import HOW_TO_INSTALL, NO_LIBRARY, handle_of
from kvops.node.pool_size import fp8_on_a_cpu
from kvops.node.preflight import check_memory, may_use_gpu
from kvops.units import format_bytes

_DRIVER = Path("/dev/nvidiactl")
_CUDA = re.compile(r"^cuda\b[^=]*= '(\d+)\.(\d+)'", re.MULTILINE)
_NO_LIBRARY = f"{NO_LIBRARY}, so driver and memory cannot be read"


def check_gpu(config: NodeConfig) -> Looked:
    """Raises ConfigError, NodeStartError for a GPU that is asked for, or needed, and cannot be used."""
    device = config.runtime.device
    asked = device.startswith("cuda")
    if config.kv_cache.dtype == "fp8" and not may_use_gpu(device):
        raise fp8_on_a_cpu()
    if device == "cpu":
        return Looked("skip", "runtime.device = cpu")
    if not _DRIVER.exists():
        if asked:
            raise ConfigError(
                f"runtime.device = {device!r}: this machine has no NVIDIA driver",
                hint="use auto or cpu",
            )
        return Looked("skip", "no NVIDIA driver on this machine")
    cuda = torch_cuda()
    if cuda is None:
        remedy = "install a torch that was built for CUDA"
        if asked:
            raise ConfigError(f"runtime.device = {device!r}: torch was built for CPUs", hint=remedy)
        return Looked("warn", "there is a GPU, and torch was built for CPUs", remedy)
    return _suits(config, cuda)


def check_gpu_memory(config: NodeConfig, model: Path) -> Looked | None:
    """None where the node will not run on a GPU, or its memory cannot be read. Raises as `check_memory`."""
    if not may_use_gpu(config.runtime.device):
        return None
    with _nvml() as nvml:
        if nvml is None:
            return Looked("skip", _NO_LIBRARY, HOW_TO_INSTALL)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle_of(nvml, config.runtime.device))
        return check_memory(config, model, Memory(int(memory.total), int(memory.free)))


def torch_cuda() -> tuple[int, int] | None:
    """The CUDA that torch was built for, by its own file, since importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found = _CUDA.search((Path(spec.origin).parent / "version.py").read_text())
    return None if found is None else (int(found[1]), int(found[2]))


def driver_suits(driver: tuple[int, int], cuda: tuple[int, int]) -> Looked:
    """A driver runs what was built for its major version of CUDA and those before. Raises NodeStartError.

    Within a major version, kernels that are compiled on the spot may need the newer driver (CUDA minor version
    compatibility).
    """
    has, needs = (".".join(map(str, version)) for version in (driver, cuda))
    if driver[0] < cuda[0]:
        raise NodeStartError(
            f"the driver supports CUDA {has}, torch was built for {needs}",
            hint="update the NVIDIA driver, or install a torch that was built for an older CUDA",
        )
    if driver < cuda:
        what = f"the driver supports CUDA {has}, torch was built for {needs}"
        return Looked("warn", what, "update the NVIDIA driver, if kernels fail to compile")
    return Looked("pass", f"CUDA {has} of the driver, {needs} of torch")


def _suits(config: NodeConfig, cuda: tuple[int, int]) -> Looked:
    with _nvml() as nvml:
        if nvml is None:
            return Looked("skip", _NO_LIBRARY, HOW_TO_INSTALL)
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        looked = driver_suits((version // 1000, version % 1000 // 10), cuda)
        handle = handle_of(nvml, config.runtime.device)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        named = f"{nvml.nvmlDeviceGetName(handle)}, {format_bytes(int(memory.free))} free"
        return Looked(looked.status, f"{named}; {looked.detail}", looked.remedy)


@contextmanager
def _nvml() -> Iterator[Any]:
    """The library, ready; None where it is not installed. Raises NodeStartError for a driver that does not answer."""
    if importlib.util.find_spec("pynvml") is None:
        yield None
        return
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise NodeStartError(
            f"the NVIDIA driver does not answer: {error}", hint="see what nvidia-smi says"
        ) from None
