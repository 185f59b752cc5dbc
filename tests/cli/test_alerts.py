"""`kvops alerts`, as an operator types it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from kvops.alerts.rulebook import rulebook
from kvops.alerts.sink import open_sink
from tests.harness import RunningNode, run_kvops


def test_list_shows_what_is_not_quiet_and_all_of_it(tiny_node: RunningNode) -> None:
    short, full = tiny_node.kvops("alerts", "list"), tiny_node.kvops("alerts", "list", "--all")
    assert (short.returncode, full.returncode) == (0, 0)
    assert "no channel: nobody is told" in short.stdout
    assert "are quiet: --all shows them" in short.stdout
    assert [rule.name for rule in rulebook() if rule.name not in full.stdout] == []


def test_list_as_json(tiny_node: RunningNode) -> None:
    report = json.loads(tiny_node.kvops("alerts", "list", "--json").stdout)
    states = {row["state"] for row in report["rules"]}
    assert states <= {"inactive", "pending", "firing", "resolved"}
    assert report["channels"] == []
    assert all((row["value"] is None) or not row["no_data"] for row in report["rules"])


def test_a_drill_without_a_channel_is_no_pass(tiny_node: RunningNode) -> None:
    result = tiny_node.kvops("alerts", "test")
    assert result.returncode == 1
    assert "no channel is configured: nobody would be told" in result.stderr


def test_a_drill_with_a_sink_is_seen_here(tiny_node: RunningNode) -> None:
    result = tiny_node.kvops("alerts", "test", "--sink", "--json")
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    (row,) = outcome["channels"]
    assert (row["channel"], row["seen"], outcome["passed"]) == ("drill-sink", True, True)
    assert 0 < outcome["fired_after_seconds"] < row["seconds"]


def test_silence_for_some_time_and_end_it(tiny_node: RunningNode) -> None:
    silenced = tiny_node.kvops(
        "alerts", "silence", "QueueLong", "--for", "2h", "--reason", "a test"
    )
    assert silenced.returncode == 0, silenced.stderr
    assert "QueueLong is silenced until" in silenced.stdout
    assert " UTC by " in tiny_node.kvops("alerts", "list").stdout
    ended = tiny_node.kvops("alerts", "silence", "QueueLong", "--for", "0s", "--reason", "over")
    assert "QueueLong is no longer silenced" in ended.stdout
    assert "silenced" not in tiny_node.kvops("alerts", "list", "--all").stdout


def test_what_can_be_neither_silenced_nor_acknowledged(tiny_node: RunningNode) -> None:
    wrong = tiny_node.kvops("alerts", "silence", "Nope", "--for", "1h", "--reason", "r")
    assert (wrong.returncode, "there is no rule 'Nope'" in wrong.stderr) == (1, True)
    unclear = tiny_node.kvops("alerts", "silence", "QueueLong", "--for", "soon", "--reason", "r")
    assert (unclear.returncode, "--for 'soon'" in unclear.stderr) == (2, True)
    quiet = tiny_node.kvops("alerts", "ack", "BlockPoolBroken")
    assert (quiet.returncode, "nothing to acknowledge" in quiet.stderr) == (1, True)


def test_export_needs_no_node(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(yaml.safe_dump({"alerts": {"disabled": ["QueueOld"]}}))
    out = tmp_path / "rules.yml"
    env = {"KVOPS_HOME": str(tmp_path / "home")}
    result = run_kvops("alerts", "export", "-c", str(config), "-o", str(out), env=env)
    assert result.returncode == 0, result.stderr
    printed = run_kvops("alerts", "export", "-c", str(config), env=env)
    assert printed.stdout == out.read_text()
    names = [rule["alert"] for rule in yaml.safe_load(out.read_text())["groups"][0]["rules"]]
    assert names == [rule.name for rule in rulebook(disabled=["QueueOld"])] + ["NodeDown"]
    assert f"{len(names) - 1} rules, and NodeDown for a node that is gone, are in" in result.stdout
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "rules", str(out)], check=True, capture_output=True)


def test_export_of_wrong_rules(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text(yaml.safe_dump({"alerts": {"disabled": ["QueueOl"]}}))
    env = {"KVOPS_HOME": str(tmp_path / "home")}
    result = run_kvops("alerts", "export", "-c", str(config), env=env)
    assert (result.returncode, "did you mean QueueOld?" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", b"no json"),
        ("", b'{"alerts": []}'),
        ("", b"[" * 5000),
        ("/elsewhere", b'{"alerts": [{"labels": {"nonce": "n"}}]}'),
    ],
)
def test_a_sink_takes_only_what_is_for_it(path: str, body: bytes) -> None:
    with open_sink() as sink:
        assert httpx.post(sink.url + path, content=body).status_code == 400
        assert sink.seen == {}
        good = b'{"alerts": [{"labels": {"nonce": "n"}}]}'
        assert httpx.post(sink.url, content=good).status_code == 200
        assert set(sink.seen) == {"n"}
