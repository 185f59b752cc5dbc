"""The JSON of a kept run, `report.json`, and its published schema.

`python -m kvops.load.reports.document > docs/load-report.schema.json` writes the schema anew.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import msgspec

from kvops.load.reports.analysis import Analysis
from kvops.load.runs import RunInfo

SCHEMA_VERSION = 1
_HEAD = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "kvops load report, version 1",
    "description": "What kvops load show --json prints and report.json holds. Times in seconds, moments in Unix "
    'seconds. "inf" in the place of a number is a failed request; null is not known, or too few samples.',
}


class Document(Analysis, frozen=True, kw_only=True):
    schema_version: int = SCHEMA_VERSION
    run: RunInfo
    folder: str
    damage: tuple[str, ...]
    """What of the run's files is lost; empty: nothing."""
    report: dict[str, Any]
    """The scenario's own part."""
    client_saturated: str | None
    """As `client.doubt`."""


def as_json(value: Any) -> Any:
    """Builtins that any JSON reader takes: infinity as "inf", what is no number as null."""
    return _plain(msgspec.to_builtins(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def schema() -> dict[str, Any]:
    return _HEAD | msgspec.json.schema(Document)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n")
