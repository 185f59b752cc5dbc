"""Texts and paths, not empty and without a NUL: the system calls would refuse that in their own words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_NO_NUL = r"^[^\x00]+$"
_PATH = "a path, not empty and without a NUL"


def _check_path(value: Any) -> Any:
    if isinstance(value, str | Path) and (not str(value) or "\0" in str(value)):
        raise ValueError(f"expected {_PATH}")
    return value


Text = Annotated[str, Field(pattern=_NO_NUL, description="text, not empty and without a NUL")]
FilePath = Annotated[
    Path,
    BeforeValidator(_check_path),
    Field(description=_PATH, json_schema_extra={"pattern": _NO_NUL}),
]
