"""Parsing and formatting of sizes, times, counts and ratios, the same in every place a user reads them."""

from __future__ import annotations

import re

_SIZES = {
    "": 1, "b": 1,
    "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3, "tib": 1024**4,
}  # fmt: skip
_TIMES = {
    "ns": 1e-9,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_QUANTITY = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]{0,3})")


def parse_size(text: str | int | float) -> int:
    """Bytes from `8GiB`, `512 MB` or a plain number. Raises ValueError that names the accepted forms."""
    return int(_parse(text, _SIZES, "a size such as 512MiB, 8GiB or 1000000"))


def parse_duration(text: str | int | float) -> float:
    """Seconds from `20ms`, `60s`, `5m` or a plain number. Raises ValueError that names the accepted forms."""
    return _parse(text, _TIMES, "a time such as 20ms, 60s, 5m or 2h")


def _parse(text: str | int | float, table: dict[str, float] | dict[str, int], wanted: str) -> float:
    if isinstance(text, bool):
        raise ValueError(f"expected {wanted}, got {text}")
    if isinstance(text, int | float):
        if not 0 <= text < 1e18:
            raise ValueError(f"expected {wanted}, got {text}")
        return text
    if not isinstance(text, str):
        raise ValueError(f"expected {wanted}, got {text!r}")
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2].lower() not in table:
        raise ValueError(f"expected {wanted}, got {text!r}")
    return float(match[1]) * table[match[2].lower()]


def format_bytes(count: float) -> str:
    """`1.5 GiB`; binary units, at most one decimal."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1023.5:  # what rounds to 1024 is one of the next unit
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def format_duration(seconds: float) -> str:
    """`850 µs`, `12 ms`, `1.50 s`, `3m 05s`, `2h 10m`, `3d 4h`."""
    if seconds < 0.0009995:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    whole = int(seconds + 0.005)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"


def format_count(count: float) -> str:
    """`950`, `1.2k`, `3.4M`."""
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M")):
        if abs(count) < limit:
            return f"{count:.0f}" if unit == "" else f"{count / (limit / 1e3):.1f}{unit}"
    return f"{count / 1e9:.1f}G"


def format_whole(count: int) -> str:
    """`950`, `1 456`, `16 384`: every digit, in groups of three."""
    return f"{count:,}".replace(",", " ")


def format_missing(needed: int) -> str:
    """What stands in the place of a percentile that has fewer than `needed` samples."""
    return f"needs {needed} samples"


def format_ratio(ratio: float) -> str:
    """`97 %`, one decimal under ten percent."""
    percent = ratio * 100
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"
