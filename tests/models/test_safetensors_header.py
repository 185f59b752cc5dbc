"""A safetensors file that is cut, flipped or made up is refused with a reason, and nothing else happens."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kvops.errors import ModelCorrupt, ModelUnsupported
from kvops.models.checkpoint import open_checkpoint
from kvops.models.safetensors_header import read_safetensors_header
from tests.tiny import make_tiny_model


def made_up(header: Any, n_data: int = 0, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + b"\0" * n_data


def entry(shape: Any, offsets: Any, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_good_file_opens(tmp_path: Path) -> None:
    path = tmp_path / "good.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry([2, 2], [8, 24]),
        "a": entry([2], [0, 8]),
    }
    path.write_bytes(made_up(header, 24))
    tensors = {
        tensor.name: (tensor.shape, tensor.n_bytes) for tensor in read_safetensors_header(path)
    }
    assert tensors == {"a": ((2,), 8), "b": ((2, 2), 16)}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "claims"),
        (b"\0" * 7, "claims"),
        (made_up({}, length=2**63), "claims"),
        (made_up({}, length=3), "claims"),
        (made_up(b"{'a'}"), "not JSON"),
        (made_up(b'{"a": ' * 50_000), "not JSON"),
        (made_up(b"\xff\xff"), "not JSON"),
        (made_up(b'{"a": ' + b"9" * 5_000 + b"}"), "not JSON"),
        (made_up([1, 2]), "not an object"),
        (made_up(b'{"a": {}, "a": {}}'), "given twice"),
        (
            made_up(
                b'{"a": {"dtype": "F32", "dtype": "F16", "shape": [], "data_offsets": [0, 4]}}', 4
            ),
            "given twice",
        ),
        (made_up({"a": {"dtype": "F32"}}), "other fields"),
        (made_up({"a": entry([1], [0, 4], "F99")}, 4), "unknown type 'F99'"),
        (made_up({"a": entry([-1], [0, 4])}, 4), "no sizes"),
        (made_up({"a": entry([True], [0, 4])}, 4), "no sizes"),
        (made_up({"a": entry([1.0], [0, 4])}, 4), "no sizes"),
        (made_up({"a": entry([1], [0, 4, 8])}, 4), "no sizes"),
        (made_up({"a": entry([1] * 9, [0, 4])}, 4), "no sizes"),
        (made_up({"a": entry([2**80], [0, 4])}, 4), "no sizes"),
        (made_up({"a": entry([2**40, 2**40], [0, 4])}, 4), "has 4 bytes, not"),
        (made_up({"a": entry([2], [0, 4])}, 4), "has 4 bytes, not 8"),
        (made_up({"a": entry([1], [4, 0])}, 4), "has -4 bytes"),
        (made_up({"a": entry([2], [0, 8]), "b": entry([2], [4, 12])}, 12), "overlaps"),
        (made_up({"a": entry([1], [0, 4]), "b": entry([1], [8, 12])}, 12), "gap"),
        (made_up({"a": entry([1], [0, 4])}, 8), "the file has"),
        (made_up({"a": entry([2], [0, 8])}, 4), "the file has"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_fault_is_named(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "made-up.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelCorrupt, match="made-up") as raised:
        read_safetensors_header(path)
    assert reason in raised.value.message


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "m") / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(32), *range(32, len(whole), len(whole) // 100), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ModelCorrupt):
            open_checkpoint(path.parent)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_flipped_bits_are_refused_or_harmless(file: str, tmp_path: Path) -> None:
    path, dice = make_tiny_model(tmp_path / "m") / file, random.Random(3)
    whole = path.read_bytes()
    region = 8 + int.from_bytes(whole[:8], "little") if file.endswith("safetensors") else len(whole)
    refused = 0
    for _ in range(300):
        content = bytearray(whole)
        content[dice.randrange(region)] ^= 1 << dice.randrange(8)
        path.write_bytes(content)
        try:
            open_checkpoint(path.parent)
        except (ModelCorrupt, ModelUnsupported):
            refused += 1
    assert refused > 100
