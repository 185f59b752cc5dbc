"""That the beginning of an audit was removed shows, and that `audit.keep` let it go is no fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvops import failpoints
from kvops.node.audit_chain import Chain, digest, files_of
from kvops.node.audit_kept import first_seq
from kvops.node.audit_verify import verify
from tests.harness import run_kvops


def write(folder: Path, *numbers: int, keep: int = 16) -> None:
    """By a process of its own; two or three records a file."""
    chain = Chain(folder, max_bytes=450, keep=keep)
    for number in numbers:
        chain.append([{"event": "answered", "number": number}])
    chain.close()


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files_of(folder) for line in file.read_text().splitlines()]


def numbers(folder: Path) -> list[int]:
    return [record["number"] for record in read(folder) if record["event"] == "answered"]


def fault(folder: Path) -> str:
    found = verify(folder).fault
    assert found is not None, "the removal goes unseen"
    assert (found.file, found.line) == (files_of(folder)[0].name, 1)
    return found.why


def test_removing_the_oldest_files_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, *range(12))
    assert verify(tmp_path).whole
    for file in files_of(tmp_path)[:2]:
        file.unlink()
    begins = first_seq(files_of(tmp_path)[0])
    assert f"begins with seq {begins}, and says that it was kept from 1 on" in fault(tmp_path)


def test_all_but_the_youngest_file_cannot_be_removed_unseen(tmp_path: Path) -> None:
    write(tmp_path, *range(12))
    for file in files_of(tmp_path)[:-1]:
        file.unlink()
    assert "older files were removed" in fault(tmp_path)


def test_the_next_process_does_not_make_good_what_is_gone(tmp_path: Path) -> None:
    write(tmp_path, *range(12))
    files_of(tmp_path)[0].unlink()
    write(tmp_path, *range(12, 20))
    assert "older files were removed" in fault(tmp_path)


def test_the_head_of_an_only_file_is_missed_from_the_next_process_on(tmp_path: Path) -> None:
    for start in (0, 2):
        chain = Chain(tmp_path, max_bytes=10**6, keep=2)
        chain.append([{"event": "answered", "number": start + n} for n in range(2)])
        chain.close()
    (file,) = files_of(tmp_path)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    assert "begins with seq 2" in fault(tmp_path)


def test_what_keep_lets_go_is_told_and_no_fault(tmp_path: Path) -> None:
    for start in range(0, 30, 5):
        write(tmp_path, *range(start, start + 5), keep=3)
        verdict = verify(tmp_path)
        assert verdict.whole, verdict.fault
    assert len(files_of(tmp_path)) == 3
    assert verdict.kept_from == verdict.first_seq == first_seq(files_of(tmp_path)[0])
    assert numbers(tmp_path)[-1] == 29


def test_what_was_removed_before_keep_let_it_go_is_counted_as_lost(tmp_path: Path) -> None:
    write(tmp_path, *range(8), keep=4)
    gone, second, *_ = files_of(tmp_path)
    gone.unlink()
    at = 8
    while second.exists():
        write(tmp_path, at, keep=2)
        at += 1
    assert verify(tmp_path).whole
    lost = [record for record in read(tmp_path) if record["event"] == "lost"]
    assert [(one["records"], one["why"]) for one in lost] == [
        (first_seq(second) - first_seq(gone), "older files were removed")
    ]


def test_a_disk_that_refuses_a_new_file_removes_nothing_unsaid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain(tmp_path, max_bytes=450, keep=2)
    number = 0
    while len(files_of(tmp_path)) < 2:
        chain.append([{"event": "answered", "number": number}])
        number += 1
    oldest = files_of(tmp_path)[0]
    failpoints.arm("audit.fsync.eio")
    try:
        with pytest.raises(OSError, match="Input/output"):
            chain.append([{"event": "answered", "number": number, "filler": "x" * 400}])
        assert oldest.exists()
        assert verify(tmp_path).whole
    finally:
        failpoints.arm("")
    chain.append([{"event": "answered", "number": number}])
    chain.close()
    assert not oldest.exists()
    verdict = verify(tmp_path)
    assert verdict.whole
    assert verdict.kept_from == verdict.first_seq != 1
    assert numbers(tmp_path)[-1] == number


def test_an_audit_from_before_chains_told_of_it_is_believed(tmp_path: Path) -> None:
    old = tmp_path / "state" / "audit" / "old"
    write(old, *range(12))
    strip_of_kept(old)
    files_of(old)[0].unlink()
    verdict = verify(old)
    assert verdict.whole, verdict.fault
    assert verdict.kept_from is None
    shown = run_kvops("audit", "verify", env={"KVOPS_HOME": str(tmp_path)})
    assert shown.returncode == 0
    assert "no line tells why" in shown.stdout
    write(old, 12)
    verdict = verify(old)
    assert verdict.whole, verdict.fault
    assert verdict.kept_from == verdict.first_seq
    files_of(old)[0].unlink()
    assert "older files were removed" in fault(old)
    shown = run_kvops("audit", "verify", env={"KVOPS_HOME": str(tmp_path)})
    assert shown.returncode == 1
    assert "older files were removed" in shown.stderr


def strip_of_kept(folder: Path) -> None:
    """The chain as it was written before: the same records, without those of what was kept."""
    before, seq = "0" * 64, 0
    for file in files_of(folder):
        lines = []
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record["event"] != "kept":
                seq += 1
                lines.append(json.dumps(record | {"seq": seq, "prev": before}).encode())
                before = digest(lines[-1])
        file.unlink()
        first = json.loads(lines[0])["seq"]
        (folder / f"audit-{first:012d}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
