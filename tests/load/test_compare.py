"""`kvops load compare`: alike runs only, a verdict for each measure, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvops.load import runs
from kvops.load.pacing import Pacing
from kvops.load.records import REQUESTS_FILE, RequestRecord
from kvops.load.reports import base, listing
from kvops.load.reports.compare import RunComparison, compare_runs, differences
from tests.harness import run_kvops
from tests.load.kept_runs import chat, keep, recall


def compared(tmp_path: Path, old: list[RequestRecord], new: list[RequestRecord]) -> RunComparison:
    before, after = (base.read(runs.load(keep(tmp_path, one))) for one in (old, new))
    return compare_runs(before, after, 0.10)


def outcomes(found: RunComparison) -> dict[str, str]:
    return {row.measure: row.comparison.outcome for row in found.rows}


def test_equal_runs_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, chat(600, seed=1), chat(600, seed=2))
    assert outcomes(found) == {
        "first token": "same", "its slow tail": "same", "per token": "same", "whole answer": "same",
        "output": "same", "failed": "same",
    }  # fmt: skip
    assert found.outcome == "same"


def test_a_slower_run_is_worse_and_a_faster_one_better(tmp_path: Path) -> None:
    slow = compared(tmp_path, chat(300), chat(300, scale=1.3, seed=2))
    assert slow.outcome == "worse"
    assert outcomes(slow)["first token"] == "worse"
    assert outcomes(slow)["failed"] != "worse"
    fast = outcomes(compared(tmp_path, chat(300), chat(300, scale=0.7, seed=2)))
    assert fast["first token"] == fast["whole answer"] == "better"


def test_the_mix_of_lengths_hides_nothing(tmp_path: Path) -> None:
    """Kinds of requests differ fourfold, the runs by a third: each kind is held against itself."""
    old, new = ([*_kind("short", 1, 1.0), *_kind("long", 4, scale)] for scale in (1.0, 1.3))
    row = compared(tmp_path, old, new).rows[0]
    assert row.comparison.shift == pytest.approx(0.15, abs=0.1)
    same = compared(tmp_path, old, [*_kind("short", 1, 1.0), *_kind("long", 4, 1.0)])
    assert same.rows[0].comparison.outcome == "same"


def _kind(name: str, length: float, scale: float) -> list[RequestRecord]:
    import msgspec

    return [msgspec.structs.replace(one, name=name) for one in chat(200, scale=length * scale)]


def test_failures_are_worse_by_share_and_by_time(tmp_path: Path) -> None:
    found = outcomes(compared(tmp_path, chat(400), chat(400, failed=100)))
    assert found["failed"] == found["its slow tail"] == "worse"


def test_few_requests_cannot_tell(tmp_path: Path) -> None:
    found = compared(tmp_path, chat(4), chat(4))
    assert found.outcome == "inconclusive"
    assert "same" not in outcomes(found).values()


def test_recall_is_compared_where_there_are_needles(tmp_path: Path) -> None:
    found = compared(tmp_path, recall(), recall())
    assert found.rows[-1].measure == "recall"
    assert (found.rows[-1].before, found.rows[-1].comparison.before_samples) == (0.75, 4)


def test_a_partial_run_is_never_the_same_or_better(tmp_path: Path) -> None:
    before = keep(tmp_path, chat(600, seed=1))
    after = keep(tmp_path, chat(600, seed=2), status="interrupted")
    found = compare_runs(base.read(runs.load(before)), base.read(runs.load(after)), 0.10)
    assert found.outcome == "inconclusive"
    assert found.doubts == ("after: the run is interrupted",)


def test_what_differs_is_named(tmp_path: Path) -> None:
    one = runs.load(keep(tmp_path, [])).info
    options = one.options | {"step_seconds": 1.5}
    other = runs.load(
        keep(
            tmp_path, [], users=3, seed=9, options=options, pacing=Pacing(kind="poisson", rate=2.0)
        )
    ).info
    told = differences(one, other)
    assert told[0] == "users: 2 and 3"
    assert "'rate': 2.0" in told[1]
    assert told[2] == f"--step_seconds: {one.options['step_seconds']} and 1.5"
    assert len(told) == 3
    assert differences(one, one) == []


def test_the_command_refuses_unlike_runs_unless_forced(tmp_path: Path, kvops_home: Path) -> None:
    before, after = keep(tmp_path, chat(300)), keep(tmp_path, chat(300, scale=1.5), users=9)
    refused = run_kvops("load", "compare", str(before), str(after), env={})
    assert refused.returncode == 2
    assert "users: 2 and 9" in refused.stderr
    assert "--force" in refused.stderr
    forced = run_kvops("load", "compare", str(before), str(after), "--force", "--json", env={})
    assert forced.returncode == 1, forced.stderr
    told = json.loads(forced.stdout)
    assert (told["schema_version"], told["outcome"]) == (1, "worse")
    assert told["differences"] == ["users: 2 and 9"]


def test_the_command_shows_a_table(tmp_path: Path, kvops_home: Path) -> None:
    before, after = keep(tmp_path, chat(600, seed=1)), keep(tmp_path, chat(600, seed=2))
    done = run_kvops("load", "compare", str(before), str(after), env={"COLUMNS": "100"})
    assert done.returncode == 0, done.stderr
    assert "SAME" in done.stdout
    assert "first token" in done.stdout


def test_kept_runs_are_listed_with_their_outcome_and_unreadable_ones_too(kvops_home: Path) -> None:
    parent = kvops_home / "state" / "runs"
    whole, broken = (keep(parent, chat(5), run=name) for name in ("whole-1", "broken-1"))
    (broken / "run.json").write_bytes(b"{")
    (whole / "report.json").write_bytes(b'{"verdict": {"outcome": "pass"}}')
    (broken / REQUESTS_FILE).unlink()
    lines = {one.run: one for one in listing.kept()}
    assert lines["whole-1"].outcome == "pass"
    assert "finished" in str(lines["whole-1"])
    assert str(lines["broken-1"]) == "broken-1  unreadable"
    assert lines["broken-1"].as_json()["status"] == "unreadable"


def test_a_run_of_few_requests_has_no_throughput_to_compare(tmp_path: Path) -> None:
    """Windows of a few requests each would come and go by chance."""
    assert outcomes(compared(tmp_path, chat(300), chat(40, seed=3)))["output"] == "too few"
