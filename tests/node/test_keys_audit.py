"""The audit names the keys that a change of the keys file added, removed, ended or changed, and the file's owner."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kvops.config.schema import Audit, Server
from kvops.node.access import Access
from kvops.node.audit import AuditLog
from kvops.node.audit_chain import files_of
from kvops.node.keys import changes
from kvops.node.keys.differences import MAX_IDS, differences
from kvops.node.keys.file import ApiKey, digest_of, read_keys, write_keys


def key(name: str, secret: str = "", **fields: Any) -> ApiKey:
    return ApiKey(name, "acme", digest_of(secret or name), **fields)


@dataclass
class Watched:
    file: Path
    folder: Path
    seen: int = 0

    async def act(self, change: Callable[[], object]) -> dict[str, Any]:
        """What the audit says of a change."""
        change()
        deadline = time.monotonic() + 60
        while len(rows := self._rows()) == self.seen:
            assert time.monotonic() < deadline, "the change is told"
            await asyncio.sleep(0.02)
        self.seen = len(rows)
        return rows[-1]

    def _rows(self) -> list[dict[str, Any]]:
        lines = [line for file in files_of(self.folder) for line in file.read_bytes().splitlines()]
        return [json.loads(line) for line in lines]


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    file = tmp_path / "keys.yaml"
    write_keys(file, [key("first"), key("second")])
    access, audit = Access(Server(api_keys_file=file)), AuditLog(tmp_path / "audit", Audit())
    watch = asyncio.create_task(access.watch(audit))
    yield Watched(file, tmp_path / "audit")
    watch.cancel()
    audit.close()


def named(row: dict[str, Any]) -> dict[str, Any]:
    kinds = ("added", "removed", "ending", "changed")
    return {kind: row[kind] for kind in kinds if kind in row}


async def test_a_new_key_is_named_with_the_owner_of_the_file(watched: Watched) -> None:
    made = changes.create
    row = await watched.act(lambda: made(watched.file, "acme", "third", None))
    assert row["who"] == f"file of uid {os.getuid()}"
    assert named(row) == {"added": ["third"]}
    assert read_keys(watched.file)[-1].digest.hex() not in json.dumps(row)


async def test_a_rotation_names_the_new_key_and_until_when_the_old_one_holds(
    watched: Watched,
) -> None:
    rotate = changes.rotate
    row = await watched.act(
        lambda: rotate(watched.file, "first", 3600, new_id="heir", lifetime=None)
    )
    told = named(row)
    assert told.keys() == {"added", "ending"}
    assert told["added"] == ["heir"]
    (ending,) = told["ending"]
    assert ending.startswith("first until 20")


async def test_a_key_put_behind_a_known_id_is_named(watched: Watched) -> None:
    def swap() -> None:
        write_keys(watched.file, [replace(key("first"), digest=digest_of("theirs")), key("second")])

    assert named(await watched.act(swap)) == {"changed": ["first"]}
    row = await watched.act(lambda: write_keys(watched.file, []))
    assert named(row) == {"removed": ["first", "second"]}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([key("a")], [key("a")], {}),
        ([key("a")], [key("a", expires=0)], {"ending": ["a until 1970-01-01T00:00:00Z"]}),
        ([key("a", expires=9)], [key("a")], {"changed": ["a"]}),
        ([key("a")], [key("a", "other", expires=0)],
         {"ending": ["a until 1970-01-01T00:00:00Z"], "changed": ["a"]}),
        ([key("a")], [replace(key("a"), tenant="rival")], {"changed": ["a"]}),
        ([key("a")], [key("a", replaced_by="b"), key("b")], {"added": ["b"], "changed": ["a"]}),
        ([], [key("a", expires=0)], {"added": ["a until 1970-01-01T00:00:00Z"]}),
    ],
)  # fmt: skip
def test_differences(before: list[ApiKey], after: list[ApiKey], told: dict[str, Any]) -> None:
    assert differences(before, after) == told


def test_thousands_of_keys_make_no_line_of_megabytes() -> None:
    added = differences([], [key(f"k{at}") for at in range(10_000)])["added"]
    assert len(added) == MAX_IDS + 1
    assert added[-1] == f"and {10_000 - MAX_IDS} more"
