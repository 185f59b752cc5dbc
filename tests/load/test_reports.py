"""The reports of a kept run: one page that needs nothing else, JSON, CSV, and what is left of a broken run."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest
from markupsafe import escape
from msgspec.structs import replace

from kvops.load import runs
from kvops.load.records import REQUESTS_FILE, ErrorClass
from kvops.load.reports import base, csv_export, document, files, summary
from kvops.load.reports.base import RunData
from kvops.printable import printable
from tests.harness import run_kvops
from tests.load.kept_runs import START, chat, keep, recall, samples
from tests.load.made import answer, lost

SCHEMA = Path(__file__).parents[2] / "docs" / "load-report.schema.json"


def read(folder: Path) -> RunData:
    return base.read(runs.load(folder))


def page(folder: Path) -> str:
    data = read(folder)
    return files.page(data, summary.analyse(data)).decode()


class _Outline(HTMLParser):
    """The headings and the text of a page, and every address it could fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.links: list[str] = []
        self.text, self._tags = "", [""]
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tags.append(tag)
        self.tags.add(tag)
        linking = ("href", "src", "xlink:href", "data", "action", "poster")
        self.links += [value or "" for name, value in attrs if name in linking]

    def handle_endtag(self, tag: str) -> None:
        self._tags.pop()

    def handle_data(self, data: str) -> None:
        if self._tags[-1] == "h2":
            self.headings.append(data)
        if self._tags[-1] != "style":
            self.text += data


def test_a_page_says_the_verdict_first_and_shows_what_there_is(tmp_path: Path) -> None:
    client, server = samples(60)
    outline = _Outline(page(keep(tmp_path, chat(120, failed=3), client=client, server=server)))
    assert outline.headings == [
        "What it rests on", "Latency", "Failures", "Over time", "First token by prompt length",
        "Share of requests answered within a time", "Not shown", "How it was run",
    ]  # fmt: skip
    assert outline.text.index("fail") < outline.text.index("What it rests on")
    assert "KV blocks used" in outline.text
    assert "Recall by depth and prompt length: the scenario hides no needles" in outline.text


def test_a_page_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    client, server = samples(60)
    text = page(keep(tmp_path, [*chat(120, failed=3), *recall()], client=client, server=server))
    outline = _Outline(text)
    assert [link for link in outline.links if not link.startswith(("#", "data:"))] == []
    assert not re.search(r"url\((?!['\"]?#)", text)
    assert "@import" not in text
    assert {"script", "link", "iframe", "object", "embed"} & outline.tags == set()
    assert "default-src 'none'" in text


def test_what_a_run_has_not_is_named_with_the_reason(tmp_path: Path) -> None:
    text = _Outline(page(keep(tmp_path, [answer("a", START + at) for at in range(6)]))).text
    assert "Queue and KV blocks over time: the node showed no state during the run" in text
    assert "First token by prompt length: all prompts had about the same length (100 to 100" in text
    assert "the node gave no snapshot before the run" in text
    assert "needs 20 samples" in text


def test_recall_is_a_map_of_counts(tmp_path: Path) -> None:
    asked = {"lengths": [100, 200], "depths": [0, 50], "repeats": 1, "min_recall": 0.5}
    folder = keep(tmp_path, recall(), scenario="needle_recall", report="recall", options=asked)
    outline = _Outline(page(folder))
    assert "Recall by depth and prompt length" in outline.headings
    assert outline.text.count("0/1") == 2, "in the table and in the plot"


@pytest.mark.parametrize("bad", ["<script>alert(1)</script>", "a $x^{2$ b", "\x1b[31m{{ 7*7 }}"])
def test_names_from_elsewhere_stay_text(tmp_path: Path, bad: str) -> None:
    hostile = [replace(lost(bad, START, ErrorClass.HTTP_5XX_OTHER), error=bad), *chat(30)]
    folder = keep(tmp_path, [*hostile, answer(bad, START)], model=bad, reason=bad)
    text = page(folder)
    assert "<script" not in text
    assert text.count(escape(printable(bad))) >= 3, "in the title, the verdict and the failures"


def test_no_request_still_makes_a_page(tmp_path: Path) -> None:
    outline = _Outline(page(keep(tmp_path, [])))
    assert "inconclusive" in outline.text
    assert "Over time: no request came to its end" in outline.text


def test_json_has_a_version_and_no_number_that_is_none(tmp_path: Path) -> None:
    told = summary.as_json(read(keep(tmp_path, chat(30, failed=20))))
    text = json.dumps(told, allow_nan=False)
    assert told["schema_version"] == 1
    assert json.loads(text)["summary"]["ttft"]["p95_with_failures"] == "inf"
    assert told["summary"]["ttft"]["p99"] is None
    assert told["verdict"]["outcome"] == "fail"
    assert {"warm_up", "steadiness", "ledger", "tokens", "client", "objectives"} <= set(told)


def test_csv_has_a_row_for_each_request_and_empty_cells_for_what_is_missing(tmp_path: Path) -> None:
    folder = keep(tmp_path, [*chat(3, failed=1), *recall()])
    rows = list(csv.DictReader(io.StringIO(csv_export.render(read(folder).records).decode())))
    assert len(rows) == 9
    assert tuple(rows[0]) == csv_export.COLUMNS
    assert float(rows[0]["tpot"]) == pytest.approx(0.02)
    assert (rows[0]["gaps"], float(rows[0]["gap_max"])) == ("7", pytest.approx(0.02))
    assert (rows[3]["ttft"], rows[3]["gap_mean"], rows[3]["error_class"]) == ("", "", "http_429")
    assert (rows[0]["needle_found"], rows[4]["needle_found"], rows[7]["needle_found"]) == (
        "", "True", "False",
    )  # fmt: skip


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@sum", "\t=1"])
def test_a_spreadsheet_runs_nothing_of_it(formula: str) -> None:
    table = csv_export.render([answer(formula, 1.0)]).decode()
    row = next(csv.DictReader(io.StringIO(table)))
    assert row["name"] == f"'{formula}"


def cut(folder: Path, keep_bytes: int) -> None:
    file = folder / REQUESTS_FILE
    file.write_bytes(file.read_bytes()[:keep_bytes])


def test_a_half_written_line_is_left_out_and_the_run_is_partial(tmp_path: Path) -> None:
    folder = keep(tmp_path, chat(30))
    cut(folder, len((folder / REQUESTS_FILE).read_bytes()) - 20)
    data = read(folder)
    assert len(data.records) == 29
    found = summary.judge(data)
    assert found.outcome == "inconclusive"
    assert found.reasons == (
        "partial: requests.jsonl ends in a line that was not written whole: it is left out",
    )
    assert "that was not written whole" in page(folder)


def test_a_whole_last_line_without_its_end_counts(tmp_path: Path) -> None:
    folder = keep(tmp_path, chat(30))
    cut(folder, len((folder / REQUESTS_FILE).read_bytes()) - 1)
    data = read(folder)
    assert (len(data.records), data.damage) == (30, ())
    assert summary.judge(data).outcome == "pass"


@pytest.mark.parametrize("junk", [b"{\n", b"\x00\xff\n", b"[]\n", b'{"run": 1}\n', b"\n"])
def test_broken_lines_in_the_middle_cost_only_themselves(tmp_path: Path, junk: bytes) -> None:
    folder = keep(tmp_path, chat(30))
    lines = (folder / REQUESTS_FILE).read_bytes().splitlines(keepends=True)
    (folder / REQUESTS_FILE).write_bytes(b"".join([*lines[:10], junk, junk, *lines[10:]]))
    data = read(folder)
    assert len(data.records) == 30
    assert data.damage == ("2 lines of requests.jsonl cannot be read: they are left out",)
    assert summary.judge(data).outcome == "inconclusive"


def test_a_failure_in_a_partial_run_is_still_one(tmp_path: Path) -> None:
    folder = keep(tmp_path, chat(30, failed=1))
    with (folder / REQUESTS_FILE).open("ab") as file:
        file.write(b'{"run": "r", "scen')
    found = summary.judge(read(folder))
    assert found.outcome == "fail"
    assert any(line.startswith("partial: ") for line in found.reasons)


def test_a_run_that_was_killed_never_ended(tmp_path: Path) -> None:
    found = summary.judge(read(keep(tmp_path, chat(30), status="running", finished_at=None)))
    assert (found.outcome, found.reasons) == ("inconclusive", ("the run never ended",))


def test_gaps_read_back_are_those_written(tmp_path: Path) -> None:
    written = chat(3)
    found = read(keep(tmp_path, written)).records
    assert [list(record.itl) for record in found] == [list(record.itl) for record in written]


def test_equal_failures_are_one_line_with_their_count() -> None:
    same = [lost("a", at, ErrorClass.HTTP_429) for at in range(40)]
    kinds = [lost(f"b{number}", 1, ErrorClass.TLS) for number in range(7)]
    lines = base.failure_lines([*same, *kinds])
    assert lines[0] == "a: http_429: made (40 times)"
    assert (len(lines), lines[-1]) == (6, "and 3 more failures")


def test_show_writes_what_is_asked_for(tmp_path: Path, kvops_home: Path) -> None:
    folder = keep(tmp_path, chat(30))
    html, table = tmp_path / "a.html", tmp_path / "a.csv"
    done = run_kvops("load", "show", str(folder), "--html", str(html), "--csv", str(table), env={})
    assert done.returncode == 0, done.stderr
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert len(table.read_text().splitlines()) == 31
    assert "PASS" in done.stdout
    nowhere = str(tmp_path / "no" / "a.html")
    done = run_kvops("load", "show", str(folder), "--html", nowhere, env={})
    assert done.returncode == 2
    assert f"--html {nowhere}: No such file or directory" in done.stderr


def test_json_is_of_its_published_schema(tmp_path: Path) -> None:
    published = json.loads(SCHEMA.read_text())
    made = json.loads(json.dumps(document.schema()))
    assert published == made, "python -m kvops.load.reports.document writes it"
    client, server = samples(60)
    for records in ([], chat(120, failed=70), recall()):
        told = summary.as_json(read(keep(tmp_path, records, client=client, server=server)))
        jsonschema.validate(json.loads(json.dumps(told, allow_nan=False)), published)


def test_what_json_has_no_number_for_is_a_word_or_nothing() -> None:
    odd = {"a": [math.inf, -math.inf, math.nan, 1.5], "b": {"c": (math.inf,)}}
    assert document.as_json(odd) == {"a": ["inf", "-inf", None, 1.5], "b": {"c": ["inf"]}}


def test_a_warm_up_is_left_out_of_typical_latencies_and_counted_in_the_verdict(
    tmp_path: Path,
) -> None:
    slow = [answer("chat", START + at, ttft=5.0 - at / 10) for at in range(40)]
    warm = [replace(one, t_send=one.t_send + 40) for one in chat(300, failed=1)]
    folder = keep(tmp_path, [*slow, *warm])
    told = summary.as_json(read(folder))
    assert 40 <= told["warm_up"]["dropped"] <= 60
    assert told["typical"]["ttft"]["p95"] < 1 < told["summary"]["ttft"]["p95"]
    assert told["summary"]["requests"] == 341
    assert told["verdict"]["outcome"] == "fail"
    text = _Outline(page(folder)).text
    assert "After the warm-up" in text
    assert f"warm-up: the first {told['warm_up']['dropped']} of 341 requests" in text
