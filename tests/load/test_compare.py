"""`kvops load compare`: alike runs only, a verdict for each measure, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from kvops.load import runs
from kvops.load.pacing import Pacing
from kvops.load.records import REQUESTS_FILE, ClientSample, ErrorClass, RequestRecord
from kvops.load.reports import base, listing
from kvops.load.reports.compare import RunComparison, compare_runs, differences
from tests.harness import run_kvops
from tests.load.kept_runs import START, chat, keep, recall
from tests.load.made import lost


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


def crowded(seconds: int) -> list[ClientSample]:
    return [
        ClientSample(START + at, 1, 1, 0.1, 0.0, 0.0, 0, 0.95, 0.1, 0.2) for at in range(seconds)
    ]


def full(seconds: int) -> list[ClientSample]:
    return [ClientSample(START + at, 1, 1, 0.99, 0.3) for at in range(seconds)]


@pytest.mark.parametrize(
    ("client", "words"),
    [(full(300), "after: the client was the bottleneck"), (crowded(300), "after: other processes")],
)
def test_slower_is_not_worse_where_the_client_or_a_crowd_may_have_made_it_so(
    tmp_path: Path, client: list[ClientSample], words: str
) -> None:
    before = base.read(runs.load(keep(tmp_path, chat(300))))

    def against(records: list[RequestRecord]) -> RunComparison:
        after = base.read(runs.load(keep(tmp_path, records, client=client)))
        return compare_runs(before, after, 0.10)

    slow = against(chat(300, scale=1.5, seed=2))
    assert (outcomes(slow)["first token"], slow.outcome) == ("worse", "inconclusive")
    assert slow.doubts[0].startswith(words)
    assert slow.rows[0].why == "does not count, for the doubts below"
    assert against(chat(300, scale=0.5, seed=2)).outcome == "inconclusive", "nor is faster better"
    broken = against(chat(300, failed=100, seed=2))
    assert (outcomes(broken)["failed"], broken.outcome) == ("worse", "worse")


def test_what_the_client_had_no_room_for_is_no_failure_of_the_node(tmp_path: Path) -> None:
    left = [lost("chat", START + at, ErrorClass.CLIENT_SATURATED) for at in range(100)]
    found = compared(tmp_path, chat(400), [*chat(400), *left])
    assert found.outcome == "inconclusive"
    assert outcomes(found)["failed"] == "too few", "none of 400 and none of 400"
    assert found.rows[-1].after == 0.0
    assert "100 requests of 500 had no room at the client" in found.doubts[0]


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
    assert told[1:] == [
        "--arrivals: closed and poisson",
        "--rate: none and 2.0",
        f"--step-seconds: {one.options['step_seconds']} and 1.5",
    ]
    assert differences(one, one) == []


def test_the_same_said_otherwise_is_no_difference(tmp_path: Path) -> None:
    one = runs.load(keep(tmp_path, [])).info
    texts = {name: value if value is None else str(value) for name, value in one.options.items()}
    plain = {name: value for name, value in one.options.items() if not isinstance(value, list)}
    other = runs.load(keep(tmp_path, [], options=one.options | {n: texts[n] for n in plain})).info
    assert differences(one, other) == []


def test_two_scenarios_are_told_to_be_two_and_nothing_more(
    tmp_path: Path, kvops_home: Path
) -> None:
    before, after = keep(tmp_path, chat(9)), keep(tmp_path, chat(9), scenario="soak", report="soak")
    refused = run_kvops("load", "compare", str(before), str(after), env={})
    assert refused.returncode == 2
    assert "two different scenarios: ramp and soak" in refused.stderr
    assert "--" not in refused.stderr


def test_a_row_that_cannot_tell_says_what_it_lacks(tmp_path: Path, kvops_home: Path) -> None:
    few = {row.measure: row.why for row in compared(tmp_path, chat(4), chat(3)).rows}
    assert few["first token"] == "4 and 3 requests; 5 in each run are the least"
    assert "rates a run are the least" in few["output"]
    kinds = [
        [msgspec.structs.replace(one, name=f"kind {at}") for at, one in enumerate(chat(9))]
        for _ in range(2)
    ]
    assert "of a kind in both runs" in compared(tmp_path, *kinds).rows[0].why
    vague = compared(tmp_path, chat(20), chat(20, seed=2)).rows[0]
    assert vague.comparison.outcome == "too few"
    assert "times as many requests may tell" in vague.why
    told = compared(tmp_path, chat(600), chat(600, seed=2))
    assert [row.why for row in told.rows] == [""] * len(told.rows)
    folders = [str(keep(tmp_path, chat(n))) for n in (4, 3)]
    done = run_kvops("load", "compare", *folders, env={"COLUMNS": "80"})
    assert "4 and 3 requests; 5 in each run are the least" in " ".join(done.stdout.split())


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
    assert lines["whole-1"].cells()[:3] == ["whole-1", "pass", "finished"]
    assert lines["broken-1"].cells()[:3] == ["broken-1", "–", "unreadable"]
    listed = run_kvops("load", "runs", env={}).stdout.splitlines()
    assert listed[0].split() == listing.COLUMNS
    assert {line.split()[0] for line in listed[1:]} == {"whole-1", "broken-1"}
    assert lines["broken-1"].as_json()["status"] == "unreadable"


def test_a_run_that_nobody_judged_is_judged_by_show(kvops_home: Path) -> None:
    folder = keep(kvops_home / "state" / "runs", chat(9), run="bare-1")
    assert [one.outcome for one in listing.kept()] == [None]
    shown = run_kvops("load", "show", "bare-1", env={})
    assert shown.returncode == 0, shown.stderr
    assert [one.outcome for one in listing.kept()] == ["pass"]
    assert (folder / "report.html").exists()


def test_a_run_of_few_requests_has_no_throughput_to_compare(tmp_path: Path) -> None:
    """Windows of a few requests each would come and go by chance."""
    assert outcomes(compared(tmp_path, chat(300), chat(40, seed=3)))["output"] == "too few"
