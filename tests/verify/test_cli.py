"""`kvops verify` as a user or a pipeline runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kvops.cli import main
from kvops.errors import UsageError
from kvops.testing import LIMIT, TOKEN, serve
from kvops.verify import runs
from kvops.verify.checks import CHECKS
from kvops.verify.profile import load_profile
from tests.harness import KVOPS, run_kvops
from tests.verify.made import report, row

SLOW = """
schema_version: 1
name: slow
checks:
- {id: reach.health, timeout: 60s, parameters: {answer_within: 60}}
- {id: resp.short}
"""


@pytest.fixture
def env(kvops_home: Path) -> dict[str, str]:
    return {"KVOPS_HOME": str(kvops_home), "COLUMNS": "200"}


def test_a_sound_node_exits_0_and_leaves_the_result_on_disk(
    env: dict[str, str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    with serve() as node:
        args = ("--node", node.url, "--control-url", node.control_url, "--token-file", str(token))
        done = run_kvops("verify", *args, "--json", str(tmp_path / "out.json"), env=env)
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["schema_version"] == 1
    assert (document["verdict"], document["exit_code"]) == ("pass", 0)
    assert len(document["checks"]) == 11
    assert document["target"]["max_model_len"] == LIMIT
    assert document["target"]["revision"] == "0123456789ab"
    (saved,) = Path(env["KVOPS_HOME"]).glob("state/runs/verify-*/result.json")
    assert json.loads(saved.read_text()) == document
    assert str(saved) in done.stdout
    assert TOKEN not in saved.read_text()


def test_a_broken_node_exits_1_and_json_goes_to_stdout_alone(env: dict[str, str]) -> None:
    with serve("wrong_usage") as node:
        done = run_kvops(
            "verify", "--node", node.url, "--only", "resp.short", "--json", "-", env=env
        )
    assert done.returncode == 1
    assert json.loads(done.stdout)["checks"][0]["verdict"] == "fail"
    assert "✗ fail" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--profile", "smok"), 2, "did you mean smoke?"),
        (("--json", "/nonexist/x.json"), 2, "--json /nonexist/x.json: there is no folder"),
        (("--json", "/"), 2, "--json / is a folder"),
        (("--only", "resp.shor"), 2, "did you mean resp.short?"),
        (("--node", "ftp://x"), 2, "http"),
        (("--node", "http://127.0.0.1:9", "--token-file", "/nowhere"), 2, "cannot read"),
        (("--node", "http://127.0.0.1:9"), 4, "unreachable"),
        (("--node", "no-such-node"), 4, "no node 'no-such-node'"),
        ((), 4, "no node runs"),
    ],
)
def test_exit_codes_of_what_is_not_a_check(
    args: tuple[str, ...], code: int, says: str, env: dict[str, str]
) -> None:
    done = run_kvops("verify", *args, env=env)
    assert done.returncode == code, done.stderr
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_of_only_skipped_checks_exits_3(env: dict[str, str]) -> None:
    with serve() as node:
        done = run_kvops("verify", "--node", node.url, "--only", "memory.adds_up", env=env)
    assert done.returncode == 3
    assert "– skip" in done.stdout


def test_a_part_of_the_profile_says_so(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with serve() as node:
        args = ("--only", "resp.short", "--only", "resp.errors", "--skip", "resp.errors")
        done = run_kvops("verify", "--node", node.url, *args, "--json", str(out), env=env)
    assert done.returncode == 0
    last = done.stdout.splitlines()[-2]
    assert "partial: 1 of 11 checks run" in last
    assert "every required check passed" not in last
    assert "left out by --skip: resp.errors" in done.stdout
    document = json.loads(out.read_text())
    assert document["partial"] is True
    assert len(document["left_out"]) == 10
    assert document["left_out"]["resp.errors"] == "--skip"
    assert document["left_out"]["resp.near_limit"] == "--only"


def test_no_folder_is_made_for_json(env: dict[str, str], tmp_path: Path) -> None:
    with serve() as node:
        where = str(tmp_path / "no" / "x.json")
        done = run_kvops("verify", "--node", node.url, "--json", where, env=env)
        assert node.asked == 0
    assert done.returncode == 2
    assert not (tmp_path / "no").exists()


def test_results_without_a_place_are_refused_before_the_node_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run_kvops(
        "verify", "--node", "http://127.0.0.1:9", env={"KVOPS_HOME": str(tmp_path / "file")}
    )
    assert done.returncode == 2
    assert "KVOPS_HOME" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_terminal_each_check_is_told_as_it_ends(env: dict[str, str]) -> None:
    with serve() as node:
        args = ("--only", "resp.short", "--only", "resp.errors")
        done = run_kvops("verify", "--node", node.url, *args, env=env)
    lines = [line for line in done.stderr.splitlines() if "/2 " in line]
    assert [line.split()[:4] for line in lines] == [
        ["1/2", "✓", "pass", "resp.short"],
        ["2/2", "✓", "pass", "resp.errors"],
    ]


def test_a_missing_key_is_said_to_be_missing(env: dict[str, str]) -> None:
    with serve(keys=True) as node:
        done = run_kvops("verify", "--node", node.url, env=env)
    assert done.returncode == 2
    assert "none was given" in done.stderr
    assert "--api-key-file" in done.stderr


def test_a_node_is_named_as_in_the_fleet_and_not_loaded_against_its_entry(
    env: dict[str, str],
) -> None:
    file = Path(env["KVOPS_HOME"]) / "config" / "fleet.yaml"
    file.parent.mkdir(parents=True)
    with serve() as node:
        file.write_text(f"- {{name: big, url: '{node.url}', allow_load: false}}\n")
        refused = run_kvops("verify", "--node", "big", "--profile", "golive", env=env)
        assert (refused.returncode, node.asked) == (2, 0), refused.stderr
        assert "big is not to be loaded" in refused.stderr
        asked = run_kvops("verify", "--node", "big", "--only", "resp.short", env=env)
    assert asked.returncode == 0, asked.stderr
    assert node.url in asked.stdout


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_seen_and_exits_130(
    ending: signal.Signals, env: dict[str, str]
) -> None:
    profile = Path(env["KVOPS_HOME"]).parent / "slow.yaml"
    profile.write_text(SLOW)
    with serve("hangs") as node:
        command = [*KVOPS, "verify", "--node", node.url, "--profile", str(profile)]
        process = subprocess.Popen(
            command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        _wait(lambda: node.asked >= 1)
        process.send_signal(ending)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130, out + err
    assert "interrupted" in out
    (saved,) = Path(env["KVOPS_HOME"]).glob("state/runs/verify-*/result.json")
    document = json.loads(saved.read_text())
    assert document["verdict"] == "interrupted"
    assert document["not_run"] == ["reach.health", "resp.short"]


def test_an_interrupted_run_goes_on_where_it_was(env: dict[str, str], tmp_path: Path) -> None:
    with serve() as node:
        command = [*KVOPS, "verify", "--node", node.url]
        process = subprocess.Popen(
            command, env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        _wait(lambda: " 1/11 " in process.stderr.readline())  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
        (saved,) = Path(env["KVOPS_HOME"]).glob("state/runs/verify-*/result.json")
        first = json.loads(saved.read_text())
        again = f"go on with: kvops verify --resume {first['run_id']} --node {node.url}"
        assert again in out.splitlines()
        done = run_kvops(*again.split()[4:], "--json", str(tmp_path / "out.json"), env=env)
    assert done.returncode == 0, done.stderr
    whole = json.loads((tmp_path / "out.json").read_text())
    kept = len(first["checks"])
    assert 1 <= kept < 11
    assert f"then {11 - kept} checks" in done.stderr
    assert whole["checks"][:kept] == first["checks"]
    assert (len(whole["checks"]), whole["verdict"], whole["not_run"]) == (11, "pass", [])
    assert (whole["run_id"], len(whole["resumed_at"])) == (first["run_id"], 1)


def test_a_waived_finding_exits_0_and_is_in_every_report(
    env: dict[str, str], tmp_path: Path
) -> None:
    with serve("wrong_usage") as node:
        args = ("--only", "resp.short", "--waive", "resp.short", "--reason", "mended in 1.3")
        out = (
            "--json",
            str(tmp_path / "j"),
            "--markdown",
            str(tmp_path / "m"),
            "--baseline",
            "last",
        )
        done = run_kvops("verify", "--node", node.url, *args, *out, env=env)
    assert done.returncode == 0, done.stderr
    assert "passed with 1 waiver" in done.stdout.splitlines()[-2]
    first, compared = json.loads((tmp_path / "j").read_text())["checks"]
    assert (first["verdict"], first["waived"]["reason"]) == ("fail", "mended in 1.3")
    assert (compared["id"], compared["verdict"]) == ("baseline.none", "skip")
    folder = Path(done.stdout.splitlines()[-1].removeprefix("result: ")).parent
    for file in (
        tmp_path / "m",
        *(folder / name for name in ("report.html", "junit.xml", "report.md")),
    ):
        assert "mended in 1.3" in file.read_text().replace("\\", ""), file


def cli(*args: str) -> Result:
    return CliRunner().invoke(main.app, ["verify", *args])


def test_kept_runs_are_listed_and_shown_again(kvops_home: Path, tmp_path: Path) -> None:
    assert "no run is kept" in cli("runs").stdout
    runs.save(report(row(), run_id="20260101T000000-aaaaaa"))
    runs.save(report(row("fail"), run_id="20260102T000000-bbbbbb"))
    lines = cli("runs").stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["20260101T000000-aaaaaa", "pass"],
        ["20260102T000000-bbbbbb", "fail"],
    ]
    assert [one["exit_code"] for one in json.loads(cli("runs", "--json").stdout)] == [0, 1]
    with runs.held("20260101T000000-aaaaaa"):
        assert " running " in cli("runs").stdout
    last = cli("show")
    assert (last.exit_code, "failed: resp.short" in last.stdout) == (1, True)
    assert cli("show", "20260101", "--html", str(tmp_path / "x.html")).exit_code == 0
    assert "every required check passed" in (tmp_path / "x.html").read_text()
    xml = cli("show", "--junit", "-")
    assert (xml.exit_code, xml.stdout[:11]) == (1, "<testsuites")


def test_checks_are_listed_with_what_they_are_for() -> None:
    rows = json.loads(cli("checks", "--profile", "smoke", "--json").stdout)
    assert [one["id"] for one in rows] == [entry.id for entry in load_profile("smoke").checks]
    assert all(one["purpose"] and one["severity"] for one in rows)
    text = cli("checks").stdout
    assert all(f"\n{check.id}" in f"\n{text}" for check in CHECKS)
    assert json.loads(cli("schema").stdout)["title"] == "Result of kvops verify"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--node", "x", "runs"), "an option stands before 'runs'"),
        (("--resume", "last"), "no interrupted run is kept"),
        (("--resume", "last", "--profile", "smoke"), "leave --profile out"),
        (("--force-baseline",), "add --baseline RUN"),
        (("--require-baseline",), "--require-baseline: nothing is compared"),
        (("--baseline", "nothing"), "no run 'nothing'"),
        (("--waive", "resp.short"), "each needs the other"),
        (("--waive", "resp.shot", "--reason", "x"), "did you mean resp.short?"),
        (("--only", "V99"), "no check 'V99'"),
        (("checks", "--profile", "smok"), "did you mean smoke?"),
        (("show", "nothing"), "no run 'nothing'"),
    ],
)
def test_what_is_typed_wrongly_is_named_before_a_node_is_looked_for(
    args: tuple[str, ...], says: str, kvops_home: Path
) -> None:
    error = cli(*args).exception
    assert isinstance(error, UsageError)
    assert says in str(error)
    assert error.hint


def _wait(condition: object, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
