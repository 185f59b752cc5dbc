"""JSON, JUnit, HTML and Markdown of the same run say the same, and nothing that a node said is markup in them."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import msgspec
import pytest

from kvops.errors import UsageError
from kvops.load.records import REQUESTS_FILE
from kvops.load.runs import RUN_FILE, Run
from kvops.verify import html, junit, markdown, outputs, pictures, result, runs, words
from kvops.verify.result import BaselineFacts, Kept, Report
from kvops.verify.verdict import Verdict
from tests.load import made as load
from tests.verify.made import WAIVER, report, row, series

SCHEMA = Path(__file__).parents[2] / "docs" / "verdict.schema.json"
EVIL = "<script>alert(1)</script> | `x` \x1b[2J\x00 & ]]>"


def everything() -> Report:
    return report(
        row("pass", "a.pass", samples={"ttft.short": series([0.1, 0.2, 0.3], lost=1)}),
        row("fail", "a.fail", observed=EVIL, remedy=EVIL, evidence={"seen": EVIL, "count": 3}),
        row("fail", "a.advised", severity="advisory"),
        row("warn", "a.warn"),
        row("skip", "a.skip", n=0),
        row("inconclusive", "a.open", n=1, min_samples=30),
        row("error", "a.error"),
        row("fail", "resp.short", waived=WAIVER, unit="seconds", observed=0.25, expected=0.2, op="<="),
        not_run=("z.left",),
        left_out={"z.out": "--skip"},
        waivers=(WAIVER,),
        baseline=BaselineFacts(
            run_id="r0", started_at="2026-01-01T00:00:00", differences=("configuration a then, b now",)
        ),
        partial=True,
    )  # fmt: skip


def test_the_published_schema_is_that_of_the_code() -> None:
    assert SCHEMA.read_bytes() == result.schema(), (
        "made by: kvops verify schema > docs/verdict.schema.json"
    )


def test_a_result_is_valid_by_the_published_schema() -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(result.encode(everything()))
    jsonschema.validate(document, schema)
    document["checks"][0]["verdict"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_a_result_of_an_earlier_version_can_still_be_read() -> None:
    document = json.loads(result.encode(everything()))
    new = ("profile_source", "profile_hash", "environment", "waivers", "baseline", "resumed_at")
    for name in new:
        del document[name]
    for check in document["checks"]:
        for name in ("area", "op", "min_samples", "started_at", "waived", "samples", "artifacts"):
            check.pop(name, None)
    read = result.decode(json.dumps(document).encode())
    assert [check.id for check in read.checks] == [check.id for check in everything().checks]
    assert words.conclusion(read)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("a.pass", None, ""),
        ("a.fail", "failure", "script"),
        ("a.advised", None, ""),
        ("a.warn", None, ""),
        ("a.skip", "skipped", "skip"),
        ("a.open", "skipped", "inconclusive"),
        ("a.error", "error", "mend"),
        ("resp.short", "skipped", "waived by ops (uid 7)"),
        ("z.left", "skipped", "not run"),
    ],
)
def test_junit_calls_nothing_passed_that_did_not_pass(
    name: str, kind: str | None, message: str
) -> None:
    root = ElementTree.fromstring(junit.render(everything()))
    (case,) = [one for one in root.iter("testcase") if one.get("name") == name]
    found = [child for child in case if child.tag in ("failure", "error", "skipped")]
    assert [one.tag for one in found] == ([] if kind is None else [kind])
    if found:
        assert message in str(found[0].get("message"))


def test_junit_counts_and_carries_what_was_measured() -> None:
    root = ElementTree.fromstring(junit.render(everything()))
    suite = next(root.iter("testsuite"))
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9", "failures": "1", "errors": "1", "skipped": "4",
    }  # fmt: skip
    assert (suite.get("timestamp"), suite.get("hostname")) == ("2026-01-02T03:04:05", "here")
    stated = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert (stated["verdict"], stated["exit_code"], stated["baseline"]) == ("fail", "1", "r0")
    (case,) = [one for one in root.iter("testcase") if one.get("name") == "resp.short"]
    measured = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert (measured["observed"], measured["expected"]) == ("250 ms", "≤ 200 ms")
    assert measured["verdict"] == "fail"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_html_needs_nothing_else_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "plot.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' onload='x()'/>")
    plot = Kept(title="KV over time", path="plot.svg", plot=True)
    gone = Kept(title="gone", path="gone.svg", plot=True)
    made = everything()
    rows = (msgspec.structs.replace(made.checks[0], artifacts=(plot, gone)), *made.checks[1:])
    page = html.render(msgspec.structs.replace(made, checks=rows), tmp_path).decode(
        "utf-8", "strict"
    )
    tags = _Tags()
    tags.feed(page)
    assert not {"script", "link", "iframe", "object", "svg"} & {tag for tag, _ in tags.seen}
    sources = [attrs["src"] for _, attrs in tags.seen if "src" in attrs]
    assert len(sources) == 1
    assert str(sources[0]).startswith("data:image/svg+xml;base64,")
    assert not any(name.startswith("on") for _, attrs in tags.seen for name in attrs)
    assert "KV over time" in page
    assert page.index("✗ fail") < page.index("What to do") < page.index("Checks</h2>")


@pytest.mark.parametrize("kind", ["html", "markdown"])
def test_a_page_says_all_that_matters(kind: outputs.Format) -> None:
    page = outputs.render(kind, everything()).decode()
    for said in (
        "a.error",
        "ops (uid 7)",
        "mended in the next",
        "z.out",
        "z.left",
        "run r0",
        "partial",
    ):
        assert said in page.replace("\\", ""), said
    assert "\x1b" not in page
    assert "\x00" not in page


def test_in_markdown_a_node_can_neither_end_a_cell_nor_write_html() -> None:
    lines = markdown.render(everything()).decode().splitlines()
    (line,) = [line for line in lines if line.startswith("|") and "a.fail" in line]
    assert line.replace("\\|", "").count("|") == 7
    assert "<script>" not in line
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(everything().checks)


@pytest.mark.parametrize(
    ("verdict", "rows", "says"),
    [
        ("pass", [row()], "every required check passed"),
        ("fail", [row("fail", "a.b"), row("fail", "a.c", severity="advisory")], "failed: a.b"),
        ("inconclusive", [row("error", "a.b"), row("inconclusive", "a.c")], "undecided: a.b, a.c"),
        ("inconclusive", [row("skip", "a.b")], "nothing could be looked at: a.b"),
        ("warn", [row("fail", waived=WAIVER)], "passed with 1 waiver"),
        ("warn", [row("fail", waived=WAIVER), row("warn", "a.b")],
         "passed with 1 waiver; 1 of 2 required checks passed; with remarks: a.b"),
        ("fail", [row("fail", "a.b"), row("fail", waived=WAIVER)], "failed: a.b (1 finding waived)"),
        ("pass", [row(), row("skip", "a.b"), row("skip", "a.c")],
         "1 of 3 required checks passed; 2 could not be looked at, each says what it needs: a.b, a.c"),
        ("pass", [row(), row("skip", "a.b", severity="advisory")], "every required check passed"),
        ("pass", [row(), row("skip", words.NOT_COMPARED, observed="no run")],
         "every required check passed; not compared: no run"),
        ("warn", [row(), row("warn", "a.b")], "every required check passed; with remarks: a.b"),
    ],
)  # fmt: skip
def test_the_verdict_says_why_and_never_hides_a_waiver(
    verdict: Verdict, rows: list[result.CheckResult], says: str
) -> None:
    made = report(*rows)
    assert made.verdict == verdict
    assert says in words.conclusion(made)
    for kind in ("junit", "html", "markdown"):
        page = outputs.render(kind, made).decode().replace("\\", "")  # type: ignore[arg-type]
        assert says in page, kind


def test_all_four_are_kept_and_each_goes_where_it_was_asked_for(
    kvops_home: Path, tmp_path: Path
) -> None:
    made = everything()
    kept = outputs.keep(made)
    assert {file.name for file in Path(kept).parent.iterdir()} == set(outputs.FILES.values())
    assert runs.find("last") == made
    (out := tmp_path / "out").mkdir()
    wanted: outputs.Wanted = {kind: str(out / kind) for kind in outputs.FILES}
    outputs.require_places(wanted)
    assert list(out.iterdir()) == []
    assert outputs.deliver(made, wanted) == []
    for kind, name in outputs.FILES.items():
        assert (out / kind).read_bytes() == (Path(kept).parent / name).read_bytes()


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"html": "/nonexist/x.html"}, "--html /nonexist/x.html: there is no folder /nonexist"),
        ({"junit": "/"}, "--junit / is a folder"),
        ({"markdown": "/dev/full"}, "--markdown /dev/full is not a regular file"),
        ({"json": "x", "html": "./x"}, "another report goes there too"),
        ({"json": "-", "junit": "-"}, "another report goes there too"),
        ({"html": "/proc/x.html"}, "/proc"),
    ],
)
def test_a_place_that_takes_no_report_is_told_before_the_run(
    wanted: outputs.Wanted, says: str, kvops_home: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        outputs.require_places(wanted)
    assert says in caught.value.message
    assert caught.value.hint


def test_a_disk_without_room_is_told_before_the_run(
    kvops_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "_probe", _full)
    with pytest.raises(UsageError, match="No space left"):
        outputs.require_places({})


def _full(folder: Path) -> None:
    raise OSError(28, os.strerror(28))


def test_a_report_that_breaks_takes_no_verdict_and_no_other_report(
    kvops_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(made: Report) -> bytes:
        raise ZeroDivisionError("a defect of the report")

    monkeypatch.setattr(junit, "render", broken)
    made = everything()
    (error,) = outputs.deliver(
        made, {"junit": str(tmp_path / "j.xml"), "html": str(tmp_path / "h.html")}
    )
    assert "--junit" in error.message
    assert "a defect of the report" in error.message
    assert f"kvops verify show {made.run_id} --junit" in error.hint
    assert (tmp_path / "h.html").exists()
    assert "not saved: junit.xml" in outputs.keep(made)


def test_load_runs_are_drawn_once_and_one_that_is_damaged_is_named(kvops_home: Path) -> None:
    answers = [load.answer("recall", float(at), scenario="needle_recall") for at in range(20)]
    data = load.run("needle_recall", answers)
    whole, damaged = runs.folder("r") / "needle_recall-1", runs.folder("r") / "needle_recall-2"
    for one in (whole, damaged):
        one.mkdir(parents=True)
        Run(one, data.info).save()
        lines = b"\n".join(msgspec.json.encode(record) for record in data.records)
        (one / REQUESTS_FILE).write_bytes(lines + b"\n")
    (damaged / RUN_FILE).write_text("{")
    named = tuple(Kept(title="load run", path=str(one)) for one in (whole, damaged))
    other = (Kept(title="a file", path="/nowhere"), named[0])
    first, second = pictures.drawn(
        report(row(artifacts=named), row(id="b", artifacts=other), run_id="r")
    ).checks
    plots = [one for one in first.artifacts if one.plot]
    assert 1 <= len(plots) <= pictures.EACH
    assert [one.title for one in first.artifacts if not one.path] == [
        next(
            one.title
            for one in first.artifacts
            if one.title.startswith("no plot of needle_recall-2")
        )
    ]
    assert second.artifacts == other
    for plot in plots:
        ElementTree.fromstring((runs.folder("r") / plot.path).read_text())
    page = outputs.render("html", report(first, run_id="r")).decode()
    assert page.count("<img ") == len(plots)
