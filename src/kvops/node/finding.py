"""What a check before the start came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvops.errors import KvopsError

Status = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Looked:
    """Of a check that did not fail: that one raises."""

    status: Literal["pass", "warn", "skip"]
    detail: str
    remedy: str = ""
    """Of a warning."""


@dataclass(frozen=True)
class Finding:
    check: str
    status: Status
    detail: str
    remedy: str = ""
    error: KvopsError | None = None
    """What a start says of a failure."""


def failed(check: str, error: KvopsError) -> Finding:
    return Finding(check, "fail", error.message, error.hint, error)
