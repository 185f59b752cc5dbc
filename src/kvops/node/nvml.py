"""NVIDIA's library for reading GPUs (`nvidia-ml-py`, of the extra `cuda`), and which of its GPUs torch means."""

from __future__ import annotations

import os
from typing import Any

NO_LIBRARY = "nvidia-ml-py is not installed"
HOW_TO_INSTALL = "pip install nvidia-ml-py"


def handle_of(nvml: Any, device: str) -> Any:
    """Of the GPU that torch would call so: CUDA_VISIBLE_DEVICES gives them other numbers."""
    number = int(device.partition(":")[2] or 0)
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    name = visible[number] if number < len(visible) else str(number)
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)
