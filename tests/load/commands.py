"""`kvops load` inside the test's own process: what a user types, without a second for the interpreter to start."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

from typer.testing import CliRunner

from kvops.cli.main import app
from kvops.errors import KvopsError


@dataclass(frozen=True)
class Said:
    returncode: int
    stdout: str
    stderr: str

    @property
    def report(self) -> Any:
        return json.loads(self.stdout)


def load(*args: str, **env: str) -> Said:
    """An error of kvops is said and coded as the command does it (tests/cli holds it to that)."""
    with mock.patch.dict(os.environ, env):
        result = CliRunner().invoke(app, ["load", *args])
    if isinstance(result.exception, KvopsError):
        return Said(result.exception.exit_code, result.stdout, f"{result.stderr}{result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)
