"""Settings are kept and sent as JSON: what YAML can say and JSON cannot (a date, a set, NaN) is a fault."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_MAX_INTEGER = 2**63
_TAKEN = "text, finite numbers, true, false, null, lists, and mappings with text as keys"


def not_plain(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The dotted key of each part of `value` that is not JSON, and what is wrong with it."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            inner = f"{key}.{name}"
            if isinstance(name, str):
                yield from not_plain(inner, one)
            else:
                yield inner, f"the key is of the type {type(name).__name__}; {_TAKEN} are taken"
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield from not_plain(f"{key}.{at}", one)
    elif (wrong := _wrong(value)) is not None:
        yield key, wrong


def _wrong(value: Any) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if _is_unicode(value) else f"{value!r} is no Unicode text"
    if isinstance(value, int):
        fits = -_MAX_INTEGER <= value < _MAX_INTEGER
        return None if fits else "a whole number beyond 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is no finite number"
    return f"a value of the type {type(value).__name__}; {_TAKEN} are taken"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
