"""Run folders that were changed after the run, or written under a clock that jumped: no report is made up of them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console, RenderableType

from kvops import paths
from kvops.cli.main import report
from kvops.errors import RunUnreadable, UsageError
from kvops.load import runs, scenarios
from kvops.load.records import REQUESTS_FILE, ErrorClass
from kvops.load.reports import base, csv_export, files, listing, summary
from kvops.load.reports.base import RunData
from tests.load.kept_runs import START, keep, samples
from tests.load.made import answer, lost


def read(folder: Path) -> RunData:
    return base.read(runs.load(folder))


def edited(folder: Path, **changes: Any) -> Path:
    """With fields of its run.json changed."""
    file = folder / runs.RUN_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def batch_run(folder: Path) -> Path:
    records = [answer("request", START + at) for at in range(5)]
    options = scenarios.find("batch_offline").defaults() | {"requests": 5}
    return keep(folder, records, scenario="batch_offline", report="batch", options=options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"report": "nope"}, "report is 'nope'"),
        ({"options": {"requests": "x"}}, "options.requests is 'x', not a whole number from 1"),
        ({"options": {"requests": 5, "min_tokens_per_second": True}}, "min_tokens_per_second is 'True'"),
        ({"options": {"requests": None}}, "options.requests is 'None'"),
        ({"started_at": 1e308}, "started_at"),
        ({"users": -5}, "users"),
    ],
)  # fmt: skip
def test_settings_that_no_run_has_make_it_unreadable(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    folder = edited(batch_run(tmp_path), **changes)
    with pytest.raises(RunUnreadable) as raised:
        read(folder)
    assert words in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_file_that_is_nested_without_end_is_unreadable_and_a_line_is_damage(
    tmp_path: Path,
) -> None:
    folder = batch_run(tmp_path)
    deep = "[" * 100_000
    with (folder / REQUESTS_FILE).open("a") as file:
        file.write('{"more": ' + deep + "\n")
    assert read(folder).damage == ("1 lines of requests.jsonl cannot be read: they are left out",)
    (folder / runs.RUN_FILE).write_text('{"options": {"a": ' + deep)
    with pytest.raises(RunUnreadable, match="recursion"):
        read(folder)


def test_a_run_without_its_options_is_judged_by_the_defaults_but_does_not_pass(
    tmp_path: Path,
) -> None:
    folder = batch_run(tmp_path)
    assert summary.judge(read(folder)).outcome == "pass"
    found = summary.judge(read(edited(folder, options={"requests": 5})))
    assert found.outcome == "inconclusive"
    assert "run.json lacks the options max_tokens, min_tokens_per_second" in found.reasons[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "another"}, "are of another run"),
        ({"seq": 1}, "repeat the number of another request"),
        ({"error_class": ErrorClass.HTTP_429}, "as expected and that it was not"),
        ({"expected": False}, "as expected and that it was not"),
        ({"e2e": -0.1}, "negative or without bound"),
        ({"connect": -3600.0}, "negative or without bound"),
        ({"itl": (0.1, -0.1)}, "negative or without bound"),
        ({"ttft": 1e308, "last": 1e308, "e2e": 1e308}, "negative or without bound"),
        ({"ttft": 5.0}, "after the end of its answer"),
        ({"t_intended": START + 30.0}, "sent before they were wanted"),
        ({"t_send": 1.0}, "while the run did not go on"),
        ({"completion_tokens": 10**30}, "count of tokens"),
        ({"prompt_tokens": -1}, "count of tokens"),
    ],
)
def test_a_line_that_cannot_be_is_left_out_and_no_run_passes_with_it(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    folder = keep(tmp_path, [answer("a", START + at) for at in range(6)])
    sound = read(folder)
    assert (sound.damage, summary.judge(sound).outcome) == ((), "pass")
    last = msgspec.json.encode(replace(sound.records[-1], itl=tuple(sound.records[-1].itl)))
    bad = json.dumps(json.loads(last) | msgspec.to_builtins(changes))
    (folder / REQUESTS_FILE).write_bytes(
        b"".join((folder / REQUESTS_FILE).read_bytes().splitlines(keepends=True)[:-1])
        + bad.encode() + b"\n"
    )  # fmt: skip
    data = read(folder)
    assert len(data.records) == 5
    assert words in data.damage[0]
    assert summary.judge(data).outcome == "inconclusive"


def test_a_sample_that_cannot_be_is_left_out(tmp_path: Path) -> None:
    client, server = samples(5)
    records = [answer("a", START + at) for at in range(6)]
    bad = [replace(client[0], lag=-3600.0), *client[1:]]
    data = read(keep(tmp_path, records, client=bad, server=server))
    assert (len(data.client), len(data.server)) == (4, 5)
    assert "client.jsonl" in data.damage[0]


def test_a_list_that_took_no_time_has_no_rate(tmp_path: Path) -> None:
    instant = [answer("request", START, ttft=0.0, itl=0.0, e2e=0.0)]
    options = scenarios.find("batch_offline").defaults() | {"requests": 1}
    more = {"scenario": "batch_offline", "report": "batch"}
    data = read(keep(tmp_path, instant, options=options, **more))
    assert "1 of 1 answered in" in console_text(summary.render(data))
    wanted = read(keep(tmp_path, instant, options=options | {"min_tokens_per_second": 1.0}, **more))
    assert summary.judge(wanted).outcome == "inconclusive"


def console_text(shown: RenderableType) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


BAD = "a\x1b]0;owned\x07\x1b[31mred\nPASS\u202eb\x9bc"


def test_what_a_node_says_stays_one_line_without_control_characters(kvops_home: Path) -> None:
    hostile = [
        replace(lost(BAD, START + at, ErrorClass.HTTP_5XX_OTHER), error=BAD, group=BAD, finish_reason=BAD)
        for at in range(3)
    ]  # fmt: skip
    good = [answer(BAD, START + 3 + at) for at in range(20)]
    folder = keep(
        paths.runs_dir(), [*hostile, *good], model=BAD, target=BAD, status="failed", reason=BAD
    )
    data = read(folder)
    assert "PASS" in summary.judge(data).reasons[0]
    listed = [cell for line in listing.kept() for cell in line.cells()]
    page = files.page(data, summary.analyse(data)).decode()
    table = csv_export.render(data.records).decode()
    for text in (console_text(summary.render(data)), page, table, *summary.judge(data).reasons):
        assert all(line.isprintable() for line in text.splitlines()), repr(text)
        assert "\nPASS" not in text
    assert all(cell.isprintable() for cell in listed)


def test_an_error_stays_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    report(UsageError(f"the node says {BAD}", hint="look\nthere"))
    told = capsys.readouterr().err
    assert all(line.isprintable() for line in told.splitlines())
    assert "look\nthere" in told


def test_an_empty_name_is_no_run(kvops_home: Path) -> None:
    with pytest.raises(UsageError, match="an empty name"):
        runs.find("")
