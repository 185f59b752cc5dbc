"""Every readable quantization type against a plain reference that decodes one value at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from kvops.models.gguf_header import block_sizes, read_gguf_header
from kvops.models.gguf_model import read_tensor
from tests.models.gguf_files import write_gguf

ROWS, COLUMNS = 12, 512


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2], dtype=np.float16)[0])


def scale_and_min(packed: bytes, place: int) -> tuple[int, int]:
    """The 6-bit scale and minimum of sub-block `place`, packed in 12 bytes (ggml `get_scale_min_k4`)."""
    if place < 4:
        return packed[place] & 63, packed[place + 4] & 63
    low = packed[place + 4]
    return (low & 15) | (packed[place - 4] >> 6 << 4), (low >> 4) | (packed[place] >> 6 << 4)


def q8_0(block: bytes) -> list[float]:
    return [half(block, 0) * np.int8(np.uint8(byte)).item() for byte in block[2:]]


def q4_0(block: bytes) -> list[float]:
    nibbles = [byte & 15 for byte in block[2:]] + [byte >> 4 for byte in block[2:]]
    return [half(block, 0) * (nibble - 8) for nibble in nibbles]


def q4_1(block: bytes) -> list[float]:
    nibbles = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
    return [half(block, 0) * nibble + half(block, 2) for nibble in nibbles]


def q4_k(block: bytes) -> list[float]:
    values = []
    for place in range(8):
        scale, least = scale_and_min(block[4:16], place)
        quants = block[16 + 32 * (place // 2) : 48 + 32 * (place // 2)]
        for byte in quants:
            nibble = byte >> 4 if place % 2 else byte & 15
            values.append(half(block, 0) * scale * nibble - half(block, 2) * least)
    return values


def q5_k(block: bytes) -> list[float]:
    high, values = block[16:48], []
    for place in range(8):
        scale, least = scale_and_min(block[4:16], place)
        quants = block[48 + 32 * (place // 2) : 80 + 32 * (place // 2)]
        for i, byte in enumerate(quants):
            quant = (byte >> 4 if place % 2 else byte & 15) | (high[i] >> place & 1) << 4
            values.append(half(block, 0) * scale * quant - half(block, 2) * least)
    return values


def q6_k(block: bytes) -> list[float]:
    low, high, scales, d = (
        block[:128],
        block[128:192],
        np.frombuffer(block[192:208], np.int8),
        half(block, 208),
    )
    values = []
    for i in range(256):
        part, within = divmod(i, 128)
        quarter, lane = divmod(within, 32)
        byte = low[64 * part + 32 * (quarter % 2) + lane]
        four = byte >> 4 if quarter >= 2 else byte & 15
        two = high[32 * part + lane] >> (2 * quarter) & 3
        values.append(d * int(scales[i // 16]) * ((four | two << 4) - 32))
    return values


REFERENCES: dict[Kind, tuple[Callable[[bytes], list[float]], tuple[int, ...]]] = {
    Kind.Q8_0: (q8_0, (0,)),
    Kind.Q4_0: (q4_0, (0,)),
    Kind.Q4_1: (q4_1, (0, 2)),
    Kind.Q4_K: (q4_k, (0, 2)),
    Kind.Q5_K: (q5_k, (0, 2)),
    Kind.Q6_K: (q6_k, (208,)),
}


def random_blocks(kind: Kind) -> np.ndarray:
    """Random bytes with sane scales at the places where the format has its half floats."""
    per_block, n_bytes = block_sizes(kind)
    dice = np.random.default_rng(int(kind))
    blocks = dice.integers(0, 256, (ROWS, COLUMNS // per_block, n_bytes), dtype=np.uint8)
    for at in REFERENCES[kind][1]:
        scales = dice.uniform(-0.1, 0.1, (ROWS, COLUMNS // per_block)).astype(np.float16)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(ROWS, -1)


def read_back(path: Path, data: np.ndarray, kind: Kind) -> np.ndarray:
    header = read_gguf_header(write_gguf(path, {"t": (data, kind)}))
    return read_tensor(header, header.tensors[0])


@pytest.mark.parametrize("kind", REFERENCES, ids=lambda kind: kind.name)
def test_blocks_decode_as_the_format_says(kind: Kind, tmp_path: Path) -> None:
    data, (decode, _) = random_blocks(kind), REFERENCES[kind]
    n_bytes = block_sizes(kind)[1]
    expected = [value for block in data.reshape(-1, n_bytes) for value in decode(block.tobytes())]
    values = read_back(tmp_path / "t.gguf", data, kind)
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, np.reshape(expected, (ROWS, COLUMNS)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1], ids=lambda k: k.name
)
def test_quantized_values_come_back_close(kind: Kind, tmp_path: Path) -> None:
    bound = {
        Kind.F32: 0,
        Kind.F16: 1e-3,
        Kind.BF16: 1e-2,
        Kind.Q8_0: 0.02,
        Kind.Q4_0: 0.4,
        Kind.Q4_1: 0.4,
    }[kind]
    values = np.random.default_rng(7).uniform(-2, 2, (ROWS, COLUMNS)).astype(np.float32)
    back = read_back(tmp_path / "t.gguf", gguf.quants.quantize(values, kind), kind)
    assert back.shape == values.shape
    assert np.abs(back - values).max() <= bound
