"""Which errors of a GPU are the end of a process, and what they are called. Imports no torch.

After most of them CUDA answers every further call with the same error ("the process must be terminated and
relaunched", CUDA runtime API, cudaError_t). Running out of memory is not one of these.
"""

from __future__ import annotations

from dataclasses import dataclass

_OUT_OF_MEMORY = 2
_NUMBERS = {
    46: "gpu_unavailable",
    100: "gpu_missing",
    101: "gpu_missing",
    209: "gpu_no_kernel",
    214: "gpu_ecc",
    220: "gpu_nvlink",
    700: "gpu_illegal_address",
    702: "gpu_timeout",
    710: "gpu_assert",
    714: "gpu_hardware",
    715: "gpu_illegal_instruction",
    716: "gpu_misaligned_address",
    717: "gpu_illegal_address",
    718: "gpu_illegal_instruction",
    719: "gpu_launch_failure",
}
"""cudaError_t, which CUresult shares for these."""
_WORDS = {
    "illegal memory access": "gpu_illegal_address",
    "device-side assert": "gpu_assert",
    "uncorrectable ecc": "gpu_ecc",
    "uncorrectable nvlink": "gpu_nvlink",
    "illegal instruction": "gpu_illegal_instruction",
    "misaligned address": "gpu_misaligned_address",
    "launch failure": "gpu_launch_failure",
    "launch timed out": "gpu_timeout",
    "hardware stack error": "gpu_hardware",
    "no kernel image": "gpu_no_kernel",
    "busy or unavailable": "gpu_unavailable",
}
_HINTS = {
    "gpu_out_of_memory": "lower kv_cache.memory_fraction or runtime.max_batched_tokens",
    "gpu_ecc": "the memory of the GPU is damaged: look at nvidia-smi -q -d ECC, and reset or replace it",
    "gpu_no_kernel": "this torch was not built for this GPU: install one that was",
    "gpu_unavailable": "another process has the GPU for itself: look at nvidia-smi",
}
_SPEAKERS = (
    "cuda error",
    "cuda driver error",
    "cuda out of memory",
    "triton error [cuda]",
    "cublas_status",
    "cudnn_status",
    "nccl error",
)


@dataclass(frozen=True, slots=True)
class GpuFault:
    code: str
    message: str
    hint: str
    sticky: bool
    """No further call of the process can succeed."""


def fault_of(error: BaseException) -> GpuFault | None:
    """What an exception of torch or Triton says of the GPU; None if it says nothing of it."""
    words = str(error).lower()
    number = getattr(error, "error_code", None)
    if not isinstance(error, RuntimeError) or not (
        number is not None or any(speaker in words for speaker in _SPEAKERS)
    ):
        return None
    if number == _OUT_OF_MEMORY or "out of memory" in words:
        return _fault("gpu_out_of_memory", error, sticky=False)
    named = next((code for phrase, code in _WORDS.items() if phrase in words), "gpu_fault")
    return _fault(_NUMBERS.get(number, named) if isinstance(number, int) else named, error)


def _fault(code: str, error: BaseException, *, sticky: bool = True) -> GpuFault:
    first = str(error).strip().partition("\n")[0]
    return GpuFault(code, f"{type(error).__name__}: {first}", _HINTS.get(code, ""), sticky)
