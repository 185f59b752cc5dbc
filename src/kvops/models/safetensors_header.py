"""The header of a safetensors file, read in plain Python and checked before its data is used.

Every tensor of a returned header has the bytes of its shape and type; together they fill the file without gap
or overlap. Format: the safetensors README.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from kvops.errors import ModelCorrupt

MAX_HEADER_BYTES = 100 * 2**20
MAX_DIMS = 8
MAX_SIZE = 2**62
_WIDTHS = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


class SafeTensor(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Bytes from the start of the file."""
    n_bytes: int


def read_safetensors_header(path: Path) -> tuple[SafeTensor, ...]:
    """Raises ModelCorrupt with the reason."""
    try:
        return _read(path)
    except OSError as error:
        raise ModelCorrupt(f"{path.name} cannot be read: {error.strerror}") from error


def _read(path: Path) -> tuple[SafeTensor, ...]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            _refuse(path, f"its header claims {length} bytes, the file has {size}")
        entries = _parse(path, file.read(length))
    entries.pop("__metadata__", None)
    tensors = tuple(_tensor(path, name, entry, 8 + length) for name, entry in entries.items())
    _check_places(path, tensors, 8 + length, size)
    return tensors


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ModelCorrupt(f"{path.name} is corrupt: {reason}")


def _parse(path: Path, header: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            _refuse(path, "a name is given twice")
        return fields

    try:
        entries = json.loads(header, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ModelCorrupt(
            f"{path.name} is corrupt: its header is not JSON",
        ) from error
    if not isinstance(entries, dict):
        _refuse(path, "its header is not an object")
    return entries


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> SafeTensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _refuse(
            path,
            f"tensor {name[:64]!r} is described by other fields than dtype, shape, data_offsets",
        )
    shape, offsets, dtype = entry["shape"], entry["data_offsets"], entry["dtype"]
    if not isinstance(dtype, str) or dtype not in _WIDTHS:
        _refuse(path, f"tensor {name[:64]!r} has the unknown type {str(dtype)[:20]!r}")
    if not _sizes(shape, MAX_DIMS) or not _sizes(offsets, 2) or len(offsets) != 2:
        _refuse(path, f"tensor {name[:64]!r} has a shape or offsets that are no sizes")
    count = _WIDTHS[dtype]
    for dim in shape:
        count *= dim
    if count != offsets[1] - offsets[0]:
        _refuse(
            path,
            f"tensor {name[:64]!r} of {dtype} {shape} has {offsets[1] - offsets[0]} bytes, not {count}",
        )
    return SafeTensor(name, tuple(shape), dtype, data_start + offsets[0], count)


def _sizes(values: Any, most: int) -> bool:
    return (
        isinstance(values, list)
        and len(values) <= most
        and all(type(value) is int and 0 <= value <= MAX_SIZE for value in values)
    )


def _check_places(path: Path, tensors: tuple[SafeTensor, ...], start: int, size: int) -> None:
    end = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.n_bytes)):
        if tensor.offset != end:
            kind = "overlaps another one" if tensor.offset < end else "has a gap before it"
            _refuse(path, f"tensor {tensor.name[:64]!r} {kind}")
        end += tensor.n_bytes
    if end != size:
        _refuse(path, f"its tensors end at byte {end}, the file has {size}")
