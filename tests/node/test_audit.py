"""Each decision and act is one line of a chain that shows every change, and a disk that refuses loses none unsaid."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvops import failpoints
from kvops.config.schema import Audit, Server
from kvops.errors import AuditUnavailable
from kvops.node import audit as audits
from kvops.node.access import Access
from kvops.node.audit import AuditLog
from kvops.node.audit_chain import GENESIS, Chain, digest, files_of
from kvops.node.audit_verify import verify
from kvops.node.keys import changes
from tests.node.conftest import eventually


@pytest.fixture(autouse=True)
def _no_faults() -> Iterator[None]:
    yield
    failpoints.arm("")


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files_of(folder) for line in file.read_text().splitlines()]


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [record["number"] for record in found if record["event"] != "kept"]


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"event": "answered", "number": number} for number in numbers]


def small_chain(folder: Path, keep: int = 100) -> Chain:
    """Three records a file."""
    return Chain(folder, max_bytes=450, keep=keep)


def test_each_line_names_the_one_before_across_files_and_restarts(tmp_path: Path) -> None:
    for start in (0, 5):
        chain = small_chain(tmp_path)
        for number in range(start, start + 5):
            chain.append(rows(number))
        chain.close()
    found = records(tmp_path)
    assert numbers(found) == list(range(10))
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    assert found[0]["prev"] == GENESIS
    assert len(files_of(tmp_path)) > 2
    verdict = verify(tmp_path)
    assert verdict.whole
    assert (verdict.records, verdict.first_seq, verdict.last_seq) == (len(found), 1, len(found))
    last = files_of(tmp_path)[-1].read_bytes().splitlines()[-1]
    assert verdict.last_hash == digest(last)


def test_the_oldest_files_go_and_the_rest_still_proves_itself(tmp_path: Path) -> None:
    chain = small_chain(tmp_path, keep=2)
    for number in range(20):
        chain.append(rows(number))
    assert len(files_of(tmp_path)) == 2
    verdict = verify(tmp_path)
    assert verdict.whole
    assert verdict.first_seq is not None
    assert 1 < verdict.first_seq == verdict.kept_from
    assert numbers(records(tmp_path))[-1] == 19


def change_a_value(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"number":0', b'"number":9'), *lines[1:]]


def leave_one_out(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *lines[2:]]


def swap_two(lines: list[bytes]) -> list[bytes]:
    return [lines[1], lines[0], *lines[2:]]


def put_one_in(lines: list[bytes]) -> list[bytes]:
    forged = {**json.loads(lines[0]), "seq": 2, "prev": digest(lines[0])}
    return [lines[0], json.dumps(forged).encode(), *lines[1:]]


def put_words_in(lines: list[bytes]) -> list[bytes]:
    return [lines[0], b"words", *lines[1:]]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (change_a_value, 2),
        (leave_one_out, 2),
        (swap_two, 2),
        (put_one_in, 3),
        (put_words_in, 3),
    ],
)
def test_a_change_shows_at_the_first_line_that_is_wrong(
    change: Callable[[list[bytes]], list[bytes]], line: int, tmp_path: Path
) -> None:
    chain = Chain(tmp_path, max_bytes=10**6, keep=2)
    chain.append(rows(0, 1, 2, 3))
    (file,) = files_of(tmp_path)
    assert verify(tmp_path).whole
    file.write_bytes(b"".join(row + b"\n" for row in change(file.read_bytes().splitlines())))
    fault = verify(tmp_path).fault
    assert fault is not None
    assert (fault.file, fault.line) == (file.name, line)


def test_a_missing_file_and_a_changed_last_line_of_a_file_show(tmp_path: Path) -> None:
    chain = small_chain(tmp_path)
    for number in range(12):
        chain.append(rows(number))
    first, second, third, *_ = files_of(tmp_path)
    kept = second.read_bytes()
    second.unlink()
    fault = verify(tmp_path).fault
    assert fault is not None
    assert (fault.file, fault.line) == (third.name, 1)
    second.write_bytes(kept)
    assert verify(tmp_path).whole
    first.write_bytes(first.read_bytes().replace(b'"answered"', b'"accepted"'))
    fault = verify(tmp_path).fault
    assert fault is not None
    assert fault.file == first.name


def test_a_line_cut_by_a_crash_is_kept_and_told(tmp_path: Path) -> None:
    chain = Chain(tmp_path, max_bytes=10**6, keep=2)
    chain.append(rows(0, 1))
    chain.close()
    (file,) = files_of(tmp_path)
    whole = file.read_bytes()
    for cut in (1, 40, len(whole.splitlines()[-1])):
        file.write_bytes(whole[:-cut])
        assert verify(tmp_path).unfinished
        again = Chain(tmp_path, max_bytes=10**6, keep=2)
        again.append(rows(2))
        again.close()
        verdict = verify(tmp_path)
        assert verdict.whole, cut
        assert (verdict.torn, verdict.unfinished) == (1, False)
        assert json.loads(file.read_bytes().splitlines()[-1])["number"] == 2


def remove(file: Path) -> None:
    file.unlink()


def replace(file: Path) -> None:
    forged = file.with_name("other")
    forged.write_bytes(file.read_bytes().replace(b'"number":2', b'"number":9'))
    forged.rename(file)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])


@pytest.mark.parametrize("harm", [remove, replace, cut])
def test_a_file_that_is_harmed_while_it_is_written_is_a_failure_and_told(
    harm: Callable[[Path], None], tmp_path: Path
) -> None:
    chain = Chain(tmp_path, max_bytes=10**6, keep=5)
    chain.append(rows(0, 1, 2))
    (file,) = files_of(tmp_path)
    last = digest(file.read_bytes().splitlines()[-1])
    harm(file)
    with pytest.raises(OSError, match="removed, replaced or cut"):
        chain.append(rows(3))
    chain.append(rows(3))
    chain.append(rows(4))
    told, *others = [json.loads(line) for line in files_of(tmp_path)[-1].read_bytes().splitlines()]
    assert (told["event"], told["seq"], told["prev"]) == ("lost", 4, last)
    assert told["records"] == {remove: 3, replace: 0, cut: 2}[harm]
    assert numbers(others) == [3, 4]
    assert verify(tmp_path).whole == (harm is remove)


def test_a_file_that_was_copied_into_place_whole_is_gone_on_with(tmp_path: Path) -> None:
    chain = Chain(tmp_path, max_bytes=10**6, keep=5)
    chain.append(rows(0, 1))
    (file,) = files_of(tmp_path)
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.rename(file)
    with pytest.raises(OSError, match="replaced"):
        chain.append(rows(2))
    chain.append(rows(2))
    assert [record["number"] for record in records(tmp_path)] == [0, 1, 2]
    assert verify(tmp_path).whole


def test_fail_closed_refuses_until_a_removed_file_has_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditLog(tmp_path, Audit(on_full="fail_closed"))
    audit.record("answered", number=1)
    assert audit.flush(60)
    monkeypatch.setattr(audits, "RETRY_SECONDS", 600.0)
    files_of(tmp_path)[0].unlink()
    audit.record("answered", number=2)
    eventually(lambda: audit.failing, "the failure is seen", 60)
    with pytest.raises(AuditUnavailable):
        audit.check()
    audit.close()  # which tries at once
    assert [record["event"] for record in records(tmp_path)] == ["lost", "kept", "answered"]
    assert (audit.failing, verify(tmp_path).lost) == (False, 1)


def test_an_empty_audit_proves_nothing(tmp_path: Path) -> None:
    assert not verify(tmp_path).whole
    (tmp_path / "audit-000000000001.jsonl").touch()
    assert not verify(tmp_path).whole


def test_what_cannot_be_synced_is_written_again_and_fail_closed_refuses_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "RETRY_SECONDS", 0.01)
    audit = AuditLog(tmp_path, Audit(on_full="fail_closed"))
    audit.check()
    failpoints.arm("audit.fsync.eio")
    audit.record("answered", number=1)
    eventually(lambda: audit.failing, "the failure is seen", 60)
    with pytest.raises(AuditUnavailable) as refused:
        audit.check()
    assert (refused.value.http_status, refused.value.code) == (503, "audit_unavailable")
    audit.record("answered", number=2)
    assert records(tmp_path) == []
    failpoints.arm("")
    assert audit.flush(60)
    audit.check()
    audit.close()
    assert [record["number"] for record in records(tmp_path)] == [1, 2]
    assert audit.dropped == 0
    assert verify(tmp_path).whole


def test_what_is_lost_while_fail_open_serves_is_told_in_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(audits, "QUEUE_RECORDS", 5)
    failpoints.arm("audit.fsync.eio")
    audit = AuditLog(tmp_path, Audit())
    for number in range(20):
        audit.record("answered", number=number)
        audit.check()
    assert audit.dropped == 15
    failpoints.arm("")
    assert audit.flush(60)
    audit.close()
    assert [record.get("number") for record in records(tmp_path)] == [0, 1, 2, 3, 4, None]
    verdict = verify(tmp_path)
    assert verdict.whole
    assert verdict.lost == 15


def test_strangers_do_not_fill_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "REFUSALS_PER_WINDOW", 3)
    audit = AuditLog(tmp_path, Audit())
    for _ in range(50):
        audit.refused_stranger("invalid_api_key", client="192.0.2.1")
    audit.refused_stranger("forbidden", client="192.0.2.1")
    audit.close()
    assert [record["code"] for record in records(tmp_path)] == ["invalid_api_key"] * 3 + [
        "forbidden"
    ]
    held_back = AuditLog(tmp_path, Audit())
    monkeypatch.setattr(held_back._flood, "_seconds", 0.0)
    held_back._flood._seen["invalid_api_key"] = 50
    held_back.refused_stranger("invalid_api_key")
    held_back.close()
    assert verify(tmp_path).held_back == 47


async def test_a_change_of_the_keys_is_told_with_the_hashes_of_both_files(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    changes.create(file, "acme", "first", None)
    access, audit = Access(Server(api_keys_file=file)), AuditLog(tmp_path / "audit", Audit())
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    watch = asyncio.create_task(access.watch(audit))
    try:
        changes.create(file, "acme", "second", None)
        deadline = asyncio.get_running_loop().time() + 60
        while not records(tmp_path / "audit"):
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
    finally:
        watch.cancel()
        audit.close()
    (act,) = records(tmp_path / "audit")
    assert (act["what"], act["before"]) == ("reload api_keys", before)
    assert act["after"] == hashlib.sha256(file.read_bytes()).hexdigest()
