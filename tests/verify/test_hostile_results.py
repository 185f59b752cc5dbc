"""A result file may come from anybody: it reaches no file, steers no terminal, and its rows outweigh its verdict."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvops.errors import UsageError
from kvops.load.records import REQUESTS_FILE
from kvops.load.runs import Run
from kvops.verify import html, outputs, pictures, result, runs
from kvops.verify.result import Kept, Report
from tests.harness import run_kvops
from tests.load import made as load
from tests.verify.made import WAIVER, report, row

STEERING = "\x1b[2J\x00\x7f\x9b31m\u202e\u2066\u2028\r\n| `x`"


def written(folder: Path, made: Report, **fields: Any) -> Path:
    """`made` as a file, with the fields that somebody edited."""
    file = folder / "foreign.json"
    file.write_text(json.dumps(json.loads(result.encode(made)) | fields))
    return file


def edited(folder: Path, **fields: Any) -> Path:
    """A result whose only row has these fields."""
    document = json.loads(result.encode(report(row())))
    document["checks"][0] |= fields
    file = folder / "foreign.json"
    file.write_text(json.dumps(document))
    return file


@pytest.mark.parametrize("path", ["../secret.svg", "{absolute}", "link.svg", "\x00", "a" * 5000])
def test_a_plot_is_taken_from_the_runs_own_folder_alone(path: str, tmp_path: Path) -> None:
    (own := tmp_path / "run").mkdir()
    secret = tmp_path / "secret.svg"
    secret.write_text("<svg>secret</svg>")
    (own / "link.svg").symlink_to(secret)
    (own / "plot.svg").write_text("<svg/>")
    named = [
        Kept(title="a plot", path=one, plot=True)
        for one in (path.format(absolute=secret), "plot.svg")
    ]
    page = html.render(report(row(artifacts=tuple(named))), own).decode()
    assert page.count("<img ") == 1
    assert "PHN2Zy8+" in page, "the plot that is the run's own"


def test_one_plot_that_is_named_many_times_is_shown_once(tmp_path: Path) -> None:
    (tmp_path / "plot.svg").write_text("<svg/>")
    (tmp_path / "large.svg").write_bytes(bytes(html.MAX_PLOT + 1))
    named = [Kept(title="a plot", path="plot.svg", plot=True)] * 50
    named.append(Kept(title="a large one", path="large.svg", plot=True))
    page = html.render(report(row(artifacts=tuple(named))), tmp_path).decode()
    assert page.count("<img ") == 1


def test_no_load_run_outside_of_the_runs_own_folder_is_drawn(
    kvops_home: Path, tmp_path: Path
) -> None:
    answers = [load.answer("recall", float(at), scenario="needle_recall") for at in range(20)]
    data = load.run("needle_recall", answers)
    (elsewhere := tmp_path / "needle_recall-1").mkdir()
    Run(elsewhere, data.info).save()
    lines = b"\n".join(msgspec.json.encode(record) for record in data.records)
    (elsewhere / REQUESTS_FILE).write_bytes(lines + b"\n")
    made = report(row(artifacts=(Kept(title="load run", path=str(elsewhere)),)), run_id="r")
    assert pictures.drawn(made) == made
    assert not runs.folder("r").exists()


@pytest.mark.parametrize("run_id", ["../../..", "/etc", "", "a/b", "a" * 65, "a\n", "\x1b[2J"])
def test_a_run_id_is_no_path(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no result of kvops verify.*run_id"):
        runs.read(written(tmp_path, report(row()), run_id=run_id))


@pytest.mark.parametrize(
    ("rows", "says", "verdict"),
    [
        ([row(), row("fail", "a.b")], ("pass", 0), "fail"),
        ([row("fail", "a.b")], ("fail", 0), "fail"),
        ([row("fail", "a.b")], ("warn", 0), "fail"),
        ([row("error", "a.b")], ("pass", 0), "inconclusive"),
        ([row("skip", "a.b")], ("pass", 0), "inconclusive"),
        ([], ("pass", 0), "inconclusive"),
        ([row("fail", waived=WAIVER)], ("pass", 0), "warn"),
        ([row()], ("fail", 1), "pass"),
        ([row()], ("interrupted", 0), "interrupted"),
        ([], ("unreachable", 0), "unreachable"),
    ],
)
def test_rows_outweigh_the_verdict_that_a_file_claims(
    rows: list[result.CheckResult], says: tuple[str, int], verdict: str, tmp_path: Path
) -> None:
    file = written(tmp_path, report(*rows), verdict=says[0], exit_code=says[1])
    read = runs.read(file)
    assert (read.verdict, read.exit_code) == (verdict, result.exit_code(read.verdict))
    for kind in ("junit", "html", "markdown"):
        page = outputs.render(kind, read).decode().replace("\\", "")  # type: ignore[arg-type]
        assert f"the file says {says[0]}, exit code {says[1]}" in page, kind
    assert json.loads(outputs.render("json", read))["contradicts"]


def test_a_run_that_left_checks_out_unasked_did_not_pass(tmp_path: Path) -> None:
    read = runs.read(written(tmp_path, report(row()), not_run=["a.b"]))
    assert (read.verdict, read.exit_code) == ("inconclusive", 3)


def test_a_file_whose_rows_agree_is_read_as_it_is(tmp_path: Path) -> None:
    for made in (
        report(row()),
        report(row("fail")),
        report(row("fail", severity="advisory")),
        report(verdict="unreachable"),
        report(row(), verdict="interrupted", not_run=("a.b",)),
    ):
        assert runs.read(written(tmp_path, made)) == made


def test_show_exits_as_the_rows_say(kvops_home: Path, tmp_path: Path) -> None:
    file = written(tmp_path, report(row("fail", "a.b")), verdict="pass", exit_code=0)
    shown = run_kvops("verify", "show", str(file), env={"KVOPS_HOME": str(kvops_home)})
    assert shown.returncode == 1
    assert "the file says pass, exit code 0" in shown.stdout


def test_too_many_rows_are_refused(tmp_path: Path) -> None:
    rows = [row(id=f"a.{index}") for index in range(result.MAX_ROWS + 1)]
    with pytest.raises(UsageError, match=r"length <= 2000.*\$\.checks"):
        runs.read(written(tmp_path, report(*rows)))
    assert len(runs.read(written(tmp_path, report(*rows[1:]))).checks) == result.MAX_ROWS


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, report(row()))
    monkeypatch.setattr(runs, "MAX_BYTES", file.stat().st_size - 1)
    with pytest.raises(UsageError, match="larger than"):
        runs.read(file)


def test_a_pipe_is_not_waited_for() -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        runs.read(Path("/dev/zero"))


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 5000,
        "\ud800",
        "{}",
        "",
    ],
)
def test_what_is_no_result_is_said_to_be_none(text: str, tmp_path: Path) -> None:
    (file := tmp_path / "x.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(UsageError, match="no result of kvops verify"):
        runs.read(file)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "a\x00b"},
        {"id": "a b"},
        {"id": ""},
        {"id": "a\n"},
        {"n": -1},
        {"n": 10**30},
        {"took_seconds": -1},
        {"took_seconds": 1e308},
        {"min_samples": -1},
    ],
)
def test_a_value_that_no_run_has_is_refused_by_its_name(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=rf"\$\.checks\[0\]\.{next(iter(fields))}"):
        runs.read(edited(tmp_path, **fields))


@pytest.mark.parametrize("value", [1e308, -1e308, 2**63, -(2**63), 1e-320])
@pytest.mark.parametrize("unit", ["seconds", "bytes", "tokens", "×"])
def test_any_number_can_be_shown(value: float, unit: str, tmp_path: Path) -> None:
    read = runs.read(edited(tmp_path, observed=value, expected=value, unit=unit))
    for kind in outputs.FILES:
        assert outputs.render(kind, read)


def steering() -> Report:
    """Control characters wherever a text may stand."""
    waiver = msgspec.structs.replace(WAIVER, id=STEERING, by=STEERING, reason=STEERING)
    bad = row(
        "fail", id=f"{STEERING}.b", title=STEERING, purpose=STEERING, observed=STEERING, expected=STEERING,
        unit=STEERING, remedy=STEERING, evidence={STEERING: STEERING}, started_at=STEERING,
        artifacts=(Kept(title=STEERING, path=STEERING),), waived=waiver,
    )  # fmt: skip
    made = report(bad, row(observed=3, unit=STEERING))
    target = msgspec.structs.replace(
        made.target, url=STEERING, name=STEERING, engine=STEERING, gpus=(STEERING,)
    )
    return msgspec.structs.replace(
        made, target=target, profile=STEERING, profile_hash=STEERING, kvops_version=STEERING, run_id=STEERING,
        started_at=STEERING, finished_at=STEERING, not_run=(STEERING,), left_out={STEERING: "--skip"},
        waivers=(waiver,), resumed_at=(STEERING,), contradicts=STEERING,
        environment=msgspec.structs.replace(made.environment, host=STEERING),
        baseline=result.BaselineFacts(
            run_id=STEERING, started_at=STEERING, differences=(STEERING,), new=(STEERING,)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("kind", outputs.FILES)
def test_no_report_has_characters_that_steer_a_terminal(kind: outputs.Format) -> None:
    page = outputs.render(kind, steering()).decode()
    found = {c for c in page if not c.isprintable() and c != "\n"}
    assert not found
    if kind == "junit":
        ElementTree.fromstring(page)
    if kind == "json":
        assert json.loads(page)["checks"][0]["title"] == STEERING


def test_a_table_has_no_characters_that_steer_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console

    from kvops.verify import table

    for width in (60, 140):
        table.show(steering(), Console(width=width))
    page = capsys.readouterr().out
    assert "the file says" in page
    assert not {c for c in page if not c.isprintable() and c != "\n"}


@pytest.mark.parametrize("text", ["", "a" * 5000, "\x00"])
def test_a_name_that_can_be_no_run_is_said_to_be_none(text: str, kvops_home: Path) -> None:
    runs.save(report(row()))
    with pytest.raises(UsageError, match="no run"):
        runs.find(text)
