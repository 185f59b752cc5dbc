"""Files that a user names: what has no end, or never begins, is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvops.errors import UsageError
from kvops.load import trace
from kvops.load.fairness import tenants
from kvops.load.options import Option
from kvops.load.workload import Lengths


@pytest.fixture(params=["pipe", "device"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A pipe that nobody writes to, or a device that gives more and more."""
    if request.param == "device":
        return "/dev/zero"
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


@pytest.mark.parametrize(
    "read",
    [
        trace.read,
        lambda path: tenants(path, "quiet"),
        lambda path: Lengths.parse(f"file:{path}"),
        lambda path: Option(type="file", help="h", default=None).parse("--file", path),
    ],
    ids=["trace", "tenants", "lengths", "option"],
)
def test_only_a_regular_file_is_read(endless: str, read: Callable[[str], Any]) -> None:
    with pytest.raises((UsageError, ValueError), match="not a regular file"):
        read(endless)
