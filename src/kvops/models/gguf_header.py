"""The header of a GGUF file, read in plain Python and checked before anything else touches the file.

Every tensor of a returned header lies whole inside the file, overlaps no other, and has exactly the bytes of
its shape and type. Format: the GGUF specification, versions 2 and 3 (ggml, docs/gguf.md).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from kvops.errors import ModelCorrupt, ModelUnsupported

MAX_TENSORS = 65_536
MAX_KEYS = 65_536
MAX_KEY_BYTES = 1_024
MAX_NAME_BYTES = 64
MAX_STRING_BYTES = 16 * 2**20
MAX_ARRAY_ITEMS = 8 * 2**20
MAX_DIMS = 4
MAX_ALIGNMENT = 65_536
DEFAULT_ALIGNMENT = 32

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SMALLEST_KEY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8
_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip


class GgufTensor(msgspec.Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    """Slowest dimension first, as numpy has it: `[rows, columns]`."""
    type: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    n_bytes: int


class GgufHeader(msgspec.Struct, frozen=True):
    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header. Raises ModelCorrupt with the reason, ModelUnsupported for a variant."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(path, data).read()
    except ValueError as error:
        raise ModelCorrupt(f"{path.name} is empty") from error
    except OSError as error:
        raise ModelCorrupt(f"{path.name} cannot be read: {error.strerror}") from error


class _Header:
    """A cursor over the mapped file. No read goes past the end, no count is believed before it fits."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.size = path, data, 0, len(data)

    def refuse(self, reason: str) -> NoReturn:
        raise ModelCorrupt(f"{self.path.name} is corrupt: {reason}")

    def read(self) -> GgufHeader:
        version = self.opening()
        n_tensors = self.count("tensors", MAX_TENSORS, _SMALLEST_TENSOR)
        n_keys = self.count("keys", MAX_KEYS, _SMALLEST_KEY)
        metadata = self.metadata(n_keys)
        tensors = self.tensors(n_tensors, self.alignment(metadata))
        return GgufHeader(self.path, version, metadata, tensors)

    def opening(self) -> int:
        if self.take(4, "magic") != _MAGIC:
            self.refuse("it does not begin with GGUF")
        version: int = self.number("I", "version")
        if version.to_bytes(4, "big") in [v.to_bytes(4, "little") for v in _VERSIONS]:
            raise ModelUnsupported(
                f"{self.path.name} is big-endian", hint="convert it to a little-endian GGUF"
            )
        if version not in _VERSIONS:
            raise ModelUnsupported(
                f"{self.path.name} is GGUF version {version}, supported are 2 and 3"
            )
        return version

    def take(self, n_bytes: int, what: str) -> bytes:
        self.need(n_bytes, what)
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.at:
            self.refuse(
                f"{what} at byte {self.at} needs {n_bytes} bytes, {self.size - self.at} are left"
            )

    def number(self, code: str, what: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def count(self, what: str, limit: int, smallest: int) -> int:
        count: int = self.number("Q", f"number of {what}")
        if count > limit:
            self.refuse(f"it claims {count} {what}, at most {limit} are accepted")
        self.need(count * smallest, f"{count} {what}")
        return count

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length: int = self.number("Q", f"length of {what}")
        if length > limit:
            self.refuse(f"{what} is {length} bytes long, at most {limit} are accepted")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            self.refuse(f"{what} at byte {self.at - length} is not UTF-8")

    def metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self.string("a key", MAX_KEY_BYTES)
            if not key or key in metadata:
                self.refuse(f"the key {key!r} is given twice" if key else "a key is empty")
            metadata[key] = self.value(self.number("I", f"type of {key}"), key)
        return metadata

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(f"the value of {key}")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            self.refuse(f"{key} has the unknown value type {kind}")
        value = self.number(_SCALARS[kind], key)
        return self.truth([value], key)[0] if kind == _BOOL else value

    def array(self, key: str) -> list[Any]:
        kind: int = self.number("I", f"item type of {key}")
        if kind == _ARRAY:
            raise ModelUnsupported(f"{self.path.name}: {key} is an array of arrays")
        if kind != _STRING and kind not in _SCALARS:
            self.refuse(f"{key} has the unknown item type {kind}")
        width = 8 if kind == _STRING else struct.calcsize("<" + _SCALARS[kind])
        n_items = self.count(f"items of {key}", MAX_ARRAY_ITEMS, width)
        if kind == _STRING:
            return self.strings(n_items, key)
        values = list(struct.unpack(f"<{n_items}{_SCALARS[kind]}", self.take(n_items * width, key)))
        return self.truth(values, key) if kind == _BOOL else values

    def strings(self, n_items: int, key: str) -> list[str]:
        # A vocabulary has some hundred thousand strings, so the common case is inlined.
        length_at: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        data, at, size, items = self.data, self.at, self.size, []
        try:
            for _ in range(n_items):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > size:
                    break
                items.append(data[start:at].decode())
        except (struct.error, UnicodeDecodeError):
            at = size + 1
        if at > size:
            self.refuse(f"item {len(items)} of {key} is cut short or is not UTF-8")
        self.at = at
        return items

    def truth(self, values: list[int], key: str) -> list[bool]:
        if any(value > 1 for value in values):
            self.refuse(f"{key} is neither true nor false")
        return [bool(value) for value in values]

    def alignment(self, metadata: dict[str, Any]) -> int:
        value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            self.refuse(
                f"general.alignment is {value!r}, not a power of two from 8 to {MAX_ALIGNMENT}"
            )
        return value

    def tensors(self, n_tensors: int, alignment: int) -> tuple[GgufTensor, ...]:
        described = [self.tensor() for _ in range(n_tensors)]
        if len({tensor.name for tensor in described}) < n_tensors:
            self.refuse("two tensors have the same name")
        data_start = _aligned(self.at, alignment)
        self.check_places(described, data_start, alignment)
        return tuple(
            msgspec.structs.replace(tensor, offset=data_start + tensor.offset)
            for tensor in described
        )

    def tensor(self) -> GgufTensor:
        name = self.string("a tensor name", MAX_NAME_BYTES)
        n_dims: int = self.number("I", f"dimension count of {name}")
        if not 1 <= n_dims <= MAX_DIMS:
            self.refuse(f"tensor {name!r} has {n_dims} dimensions, 1 to {MAX_DIMS} are accepted")
        dims = [self.number("Q", f"shape of {name}") for _ in range(n_dims)]
        kind: int = self.number("I", f"type of {name}")
        offset: int = self.number("Q", f"offset of {name}")
        if kind not in iter(GGMLQuantizationType):
            self.refuse(f"tensor {name!r} has the unknown type {kind}")
        quantization = GGMLQuantizationType(kind)
        return GgufTensor(
            name, tuple(dims[::-1]), quantization, offset, self.n_bytes(name, dims, quantization)
        )

    def n_bytes(self, name: str, dims: list[int], kind: GGMLQuantizationType) -> int:
        block, block_bytes = block_sizes(kind)
        count = 1
        for dim in dims:
            count *= dim
            # The smallest type has under 2 bits a value: more values than that cannot be in the file.
            if not 1 <= count <= self.size * 8:
                self.refuse(
                    f"tensor {name!r} of shape {dims} cannot be in a file of {self.size} bytes"
                )
        if dims[0] % block:
            self.refuse(
                f"tensor {name!r} has rows of {dims[0]} values, {kind.name} has blocks of {block}"
            )
        return count // block * block_bytes

    def check_places(self, tensors: list[GgufTensor], data_start: int, alignment: int) -> None:
        end = 0
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if tensor.offset % alignment:
                self.refuse(f"tensor {tensor.name!r} is not aligned to {alignment} bytes")
            if tensor.offset < end:
                self.refuse(f"tensor {tensor.name!r} overlaps another one")
            if tensor.offset > _aligned(end, alignment):
                self.refuse(
                    f"{tensor.offset - end} bytes before tensor {tensor.name!r} belong to nothing"
                )
            end = tensor.offset + tensor.n_bytes
            if data_start + end > self.size:
                missing = data_start + end - self.size
                self.refuse(
                    f"tensor {tensor.name!r} ends {missing} bytes after the end of the file"
                )


def block_sizes(kind: GGMLQuantizationType) -> tuple[int, int]:
    """Values and bytes in one block of the type."""
    values, n_bytes = GGML_QUANT_SIZES[kind]
    return int(values), int(n_bytes)


def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment
