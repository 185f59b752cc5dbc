"""A GGUF file that is cut, flipped or made up is refused with a reason, and nothing else happens."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from kvops.errors import ModelCorrupt, ModelUnsupported
from kvops.models.checkpoint import open_checkpoint
from kvops.models.gguf_header import read_gguf_header
from kvops.models.store import open_model
from tests.models.gguf_files import to_gguf, write_gguf

F32 = 0
STRING, ARRAY, U32 = 8, 9, 4


@pytest.fixture(scope="module")
def tiny_gguf(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_gguf(
        tiny_model, tmp_path_factory.mktemp("gguf") / "tiny.gguf", GGMLQuantizationType.Q8_0
    )


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def tensor(name: str, dims: list[int], kind: int = F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def made_up(
    *, keys: list[bytes] = [], tensors: list[bytes] = [], data: bytes = b"",  # noqa: B006
    version: int = 3, n_keys: int | None = None, n_tensors: int | None = None,
) -> bytes:  # fmt: skip
    counts = (
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % 32) + data


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def refused(tmp_path: Path, content: bytes, error: type[Exception] = ModelCorrupt) -> str:
    path = tmp_path / "made-up.gguf"
    path.write_bytes(content)
    with pytest.raises(error) as raised:
        read_gguf_header(path)
    return str(raised.value)


def test_header_is_what_the_gguf_library_reads(tiny_gguf: Path) -> None:
    header, reader = read_gguf_header(tiny_gguf), gguf.GGUFReader(tiny_gguf)
    ours = [(t.name, t.shape, t.type, t.offset, t.n_bytes) for t in header.tensors]
    theirs = [
        (t.name, tuple(int(n) for n in t.shape[::-1]), t.tensor_type, t.data_offset, t.n_bytes)
        for t in reader.tensors
    ]
    assert ours == theirs
    fields = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    assert header.metadata == fields


def test_a_small_made_up_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    keys = [
        key("a", U32, struct.pack("<I", 7)),
        key("b", ARRAY, struct.pack("<IQ", STRING, 2) + text("x") + text("")),
    ]
    path.write_bytes(made_up(keys=keys, tensors=[tensor("t", [4, 2])], data=b"\0" * 32))
    header = read_gguf_header(path)
    assert header.metadata == {"a": 7, "b": ["x", ""]}
    assert header.tensors[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"GGU", "magic"),
        (b"GGML" + b"\0" * 60, "does not begin with GGUF"),
        (made_up(n_tensors=2**40), "at most 65536"),
        (made_up(n_tensors=60_000), "are left"),
        (made_up(n_keys=2**63), "at most 65536"),
        (made_up(keys=[struct.pack("<Q", 2**62)], data=b"\0" * 64), "at most 1024"),
        (made_up(keys=[key("a", STRING, struct.pack("<Q", 2**24 - 1))], data=b"\0" * 64), "are left"),
        (made_up(keys=[key("a", STRING, struct.pack("<Q", 2**60))], data=b"\0" * 64), "at most"),
        (made_up(keys=[key("a", U32, b"\0" * 4)] * 2, data=b"\0" * 64), "given twice"),
        (made_up(keys=[key("", U32, b"\0" * 4)], data=b"\0" * 64), "a key is empty"),
        (made_up(keys=[key("a", 77, b"\0" * 4)], data=b"\0" * 64), "unknown value type 77"),
        (made_up(keys=[key("a", 7, b"\2")], data=b"\0" * 64), "neither true nor false"),
        (made_up(keys=[key("a", STRING, struct.pack("<Q", 1) + b"\xff")], data=b"\0" * 64), "not UTF-8"),
        (made_up(keys=[key("a", ARRAY, struct.pack("<IQ", U32, 2**60))], data=b"\0" * 64), "at most"),
        (made_up(keys=[key("a", ARRAY, struct.pack("<IQ", 99, 1))], data=b"\0" * 64), "unknown item type"),
        (made_up(keys=[key("a", ARRAY, struct.pack("<IQQ", STRING, 1, 2**62))], data=b"\0" * 64), "cut short"),
        (made_up(keys=[key("general.alignment", U32, struct.pack("<I", 0))], data=b"\0" * 64), "power of two"),
        (made_up(keys=[key("general.alignment", U32, struct.pack("<I", 48))], data=b"\0" * 64), "power of two"),
        (made_up(keys=[key("general.alignment", STRING, text("32"))], data=b"\0" * 64), "power of two"),
        (made_up(tensors=[tensor("t" * 65, [1])], data=b"\0" * 4), "at most 64"),
        (made_up(tensors=[tensor("t", [])], data=b"\0" * 4), "0 dimensions"),
        (made_up(tensors=[tensor("t", [1] * 5)], data=b"\0" * 4), "5 dimensions"),
        (made_up(tensors=[tensor("t", [0])], data=b"\0" * 4), "cannot be in a file"),
        (made_up(tensors=[tensor("t", [2**32, 2**32])], data=b"\0" * 4), "cannot be in a file"),
        (made_up(tensors=[tensor("t", [2**63, 2**63, 2])], data=b"\0" * 4), "cannot be in a file"),
        (made_up(tensors=[tensor("t", [4], kind=9999)], data=b"\0" * 16), "unknown type 9999"),
        (made_up(tensors=[tensor("t", [33], kind=8)], data=b"\0" * 68), "blocks of 32"),
        (made_up(tensors=[tensor("t", [8], offset=4)], data=b"\0" * 64), "not aligned"),
        (made_up(tensors=[tensor("t", [16]), tensor("u", [16], offset=32)], data=b"\0" * 128), "overlaps"),
        (made_up(tensors=[tensor("t", [8]), tensor("u", [8])], data=b"\0" * 64), "overlaps"),
        (made_up(tensors=[tensor("t", [8], offset=64)], data=b"\0" * 96), "belong to nothing"),
        (made_up(tensors=[tensor("t", [8]), tensor("t", [8], offset=32)], data=b"\0" * 64), "same name"),
        (made_up(tensors=[tensor("t", [9])], data=b"\0" * 32), "ends 4 bytes after"),
        (made_up(tensors=[tensor("t", [8], offset=2**64 - 32)], data=b"\0" * 32), "belong to nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_fault_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    assert reason in refused(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (made_up(version=1), "version 1"),
        (made_up(version=4), "version 4"),
        (made_up(version=0x03000000), "big-endian"),
        (
            made_up(keys=[key("a", ARRAY, struct.pack("<IQ", ARRAY, 1) + b"\0" * 12)]),
            "array of arrays",
        ),
    ],
)
def test_a_variant_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    assert reason in refused(tmp_path, content, ModelUnsupported)


def test_a_file_cut_anywhere_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    whole = tiny_gguf.read_bytes()
    last = read_gguf_header(tiny_gguf).tensors[-1]
    end = last.offset + last.n_bytes
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, 64), *range(64, end, end // 200), end - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelCorrupt, match=re.escape("cut.gguf")):
            read_gguf_header(cut)
    cut.write_bytes(whole[:end])
    assert len(read_gguf_header(cut).tensors) == len(read_gguf_header(tiny_gguf).tensors)


def flips(whole: bytes, region: int, count: int, seed: int) -> list[bytes]:
    dice = random.Random(seed)
    flipped = []
    for _ in range(count):
        content = bytearray(whole)
        for _ in range(dice.choice((1, 1, 1, 4))):
            content[dice.randrange(region)] ^= 1 << dice.randrange(8)
        flipped.append(bytes(content))
    return flipped


def outcomes(contents: list[bytes], path: Path, use: Callable[[Path], object]) -> dict[str, int]:
    """How often each outcome came; an exception that is not a refusal fails the test."""
    counts = {"opens": 0, "refused": 0}
    for content in contents:
        path.write_bytes(content)
        try:
            use(path)
            counts["opens"] += 1
        except (ModelCorrupt, ModelUnsupported):
            counts["refused"] += 1
    return counts


def test_flipped_bits_in_the_header_are_refused_or_harmless(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    whole = tiny_gguf.read_bytes()
    data_start = read_gguf_header(tiny_gguf).tensors[0].offset

    def read_all(path: Path) -> None:
        open_model(path)
        for _ in open_checkpoint(path).tensors():
            pass

    counts = outcomes(flips(whole, data_start, 400, seed=1), tmp_path / "flipped.gguf", read_all)
    assert counts["refused"] > 50, counts
    structure = outcomes(flips(whole, 24, 100, seed=2), tmp_path / "flipped.gguf", read_all)
    assert structure["opens"] < 20, structure


def test_extra_bytes_after_the_last_tensor_do_no_harm(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "t.gguf", {"t": (np.arange(32, dtype=np.float32), GGMLQuantizationType.F32)}
    )
    path.write_bytes(path.read_bytes() + b"\0" * 100)
    assert read_gguf_header(path).tensors[0].n_bytes == 128
