"""How busy the node's GPU is and what of its memory is in use, by all who use it.

A thread reads, once a second: a driver that hangs holds up nothing. Whatever it does is a reading or a reason.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from kvops.node.nvml import HOW_TO_INSTALL, NO_LIBRARY, handle_of
from kvops.telemetry.snapshot import Gpu, Known, NotExposed, Reading

EVERY_SECONDS = 1.0
AGAIN_SECONDS = 10.0
"""After a failure: a library that is not there does not come every second."""
STALE_SECONDS = 10.0
"""Beyond this a driver that says nothing has hung."""

Gpus = Reading[tuple[Gpu, ...]]


@dataclass(frozen=True)
class _Device:
    torch: str
    """`cuda:0`."""
    name: str
    """`NVIDIA H200`; empty where the engine has not told it yet."""


class GpuReader:
    """For one thread, which `read` neither holds up nor surprises with an exception."""

    def __init__(self) -> None:
        self._device: _Device | None = None
        self._latest: Gpus = NotExposed("the GPU has not been read yet")
        self._began = time.monotonic()
        """The look at the GPU that is going on, or went on last."""
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._nvml: Any = None

    def read(self, device: str, name: str = "") -> Gpus:
        """What was seen last of the GPU that torch calls `device`. The first call starts the thread."""
        self._device = _Device(device, name)
        if self._thread is None and (fault := self._start()):
            return NotExposed(fault)
        silent = time.monotonic() - self._began
        if silent > STALE_SECONDS + AGAIN_SECONDS * isinstance(self._latest, NotExposed):
            return NotExposed(f"the NVIDIA driver has not answered for {silent:.0f} s")
        return self._latest

    def close(self) -> None:
        self._ending.set()

    def _start(self) -> str:
        """Why there is no thread; empty when there is."""
        thread = threading.Thread(target=self._run, name="kvops-gpu", daemon=True)
        self._began = time.monotonic()
        try:
            thread.start()
        except RuntimeError:
            return "no thread can be started that would read the GPU"
        self._thread = thread
        return ""

    def _run(self) -> None:
        while not self._ending.is_set():
            self._began = time.monotonic()
            self._latest = self._look()
            failed = isinstance(self._latest, NotExposed)
            self._ending.wait(AGAIN_SECONDS if failed else EVERY_SECONDS)
        self._let_go()

    def _look(self) -> Gpus:
        try:
            if self._nvml is None:
                self._nvml = _library()
            assert self._device is not None
            return _reading(self._nvml, self._device)
        except ModuleNotFoundError:
            return NotExposed(f"{NO_LIBRARY} ({HOW_TO_INSTALL})")
        except Exception as error:  # whatever a driver's library raises, the node goes on
            self._let_go()
            why = str(error) or type(error).__name__
            return NotExposed(f"the NVIDIA driver does not answer: {why}")

    def _let_go(self) -> None:
        """The next look begins anew: a driver that was reloaded wants it so."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()


def _library() -> Any:
    """Ready to be asked. Raises ModuleNotFoundError, and what the library raises."""
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml


def _reading(nvml: Any, device: _Device) -> Gpus:
    handle = handle_of(nvml, device.torch)
    name = _text(nvml.nvmlDeviceGetName(handle))
    if device.name and device.name not in name and name not in device.name:
        return NotExposed(
            f"torch's {device.torch} is a {device.name}, the driver's is a {name}: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    gpu = Gpu(
        index=int(nvml.nvmlDeviceGetIndex(handle)),
        name=name,
        utilization=_utilization(nvml, handle),
        memory_used=int(memory.used),
        memory_total=int(memory.total),
    )
    return Known((gpu,), time.time())


def _utilization(nvml: Any, handle: Any) -> float | None:
    """None where the driver does not tell, as of a part of a GPU (MIG)."""
    try:
        return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except nvml.NVMLError_NotSupported:
        return None


def _text(name: str | bytes) -> str:
    """Older versions of the library give bytes."""
    return name.decode(errors="replace") if isinstance(name, bytes) else name
