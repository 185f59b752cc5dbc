"""`kvops audit` tells what was recorded and where it was changed, with no node running."""

from __future__ import annotations

import json
from pathlib import Path

from kvops.node.audit_chain import Chain, files_of
from tests.harness import run_kvops

ROW = {"ts": "2026-01-31T13:49:31.000+00:00", "event": "refused", "code": "queue_full"}


def written(home: Path, name: str = "node", records: int = 3) -> Path:
    folder = home / "state" / "audit" / name
    chain = Chain(folder, max_bytes=10**6, keep=2)
    chain.append([{**ROW, "tenant": f"t{number}"} for number in range(records)])
    chain.close()
    return folder


def test_the_last_records_read_well(kvops_home: Path) -> None:
    written(kvops_home)
    env = {"KVOPS_HOME": str(kvops_home)}
    shown = run_kvops("audit", "tail", "-n", "2", env=env)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == [
        f"2026-01-31 13:49:31Z refused  queue_full tenant=t{number}" for number in (1, 2)
    ]
    raw = run_kvops("audit", "tail", "--json", env=env).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in raw] == [1, 2, 3]


def test_a_whole_audit_is_0_and_a_changed_one_1_with_its_first_wrong_line(
    kvops_home: Path,
) -> None:
    folder = written(kvops_home)
    env = {"KVOPS_HOME": str(kvops_home)}
    whole = run_kvops("audit", "verify", env=env)
    assert whole.returncode == 0, whole.stderr
    assert "whole, 3 records" in whole.stdout
    found = json.loads(run_kvops("audit", "verify", "--json", env=env).stdout)
    assert found["whole"] is True
    assert found["last_hash"] in whole.stdout

    (file,) = files_of(folder)
    file.write_bytes(file.read_bytes().replace(b"t1", b"t9"))
    broken = run_kvops("audit", "verify", env=env)
    assert broken.returncode == 1
    assert f"{file}, line 3:" in broken.stderr
    found = run_kvops("audit", "verify", "--json", env=env)
    assert found.returncode == 1
    assert json.loads(found.stdout)["fault"]["line"] == 3


def test_without_an_audit_there_is_nothing_to_prove(kvops_home: Path) -> None:
    env = {"KVOPS_HOME": str(kvops_home)}
    assert run_kvops("audit", "verify", env=env).returncode == 4
    written(kvops_home, "one")
    written(kvops_home, "two")
    several = run_kvops("audit", "verify", env=env)
    assert several.returncode == 2
    assert "one, two" in several.stderr
    unknown = run_kvops("audit", "tail", "--node", "three", env=env)
    assert unknown.returncode == 4
    assert "one, two" in unknown.stderr
