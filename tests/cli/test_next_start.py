"""A node reads its own file at each start: what was rolled back or applied since is not lost without a word."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from kvops.config import next_start
from kvops.config.history import History
from kvops.config.load import load_config, load_document
from kvops.node.reload import begin
from tests.harness import RunningNode, run_kvops, start_node

GOOD, BAD = {"max_batch_size": 4}, {"max_batch_size": 32, "max_queue": 9}


def settings_of(model: Path, runtime: dict[str, int]) -> dict[str, Any]:
    return {
        "model": {"name": str(model)},
        "kv_cache": {"blocks": 64},
        "runtime": runtime | {"threads": 1},
    }


def told(done: CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def started(node: RunningNode) -> list[str]:
    """The command that was told for the next start, as arguments to run."""
    command = told(node.kvops("config", "rollback", "v1", "--node", node.name, "--json"))
    words: list[str] = shlex.split(command["next_start"]["command"])
    return words[1:]


def test_a_rollback_that_the_file_takes_back_is_told_before_and_after(
    tiny_model: Path, tmp_path: Path
) -> None:
    node = start_node(tmp_path, settings_of(tiny_model, GOOD), name="two")
    assert node.stop() == 0
    node = start_node(tmp_path, settings_of(tiny_model, BAD), name="two")
    file, current = tmp_path / "two.yaml", tmp_path / "state/nodes/two/config/current.json"
    try:
        assert "leaves v1" not in node.log.read_text(), "a file that was edited is no surprise"
        said = node.kvops("config", "rollback").stdout
        assert f"next: kvops node stop --node two, then kvops node start -c {current}" in said
        assert f"your file {file} still says runtime.max_batch_size: 32 (v3: 4)" in said
        assert f"leaves v3: correct it, or start with: kvops node start -c {current}" in said
        assert "not taken" not in said
    finally:
        assert node.stop() == 0
    node = start_node(tmp_path, settings_of(tiny_model, BAD), name="two")
    try:
        report = node.log.read_text()
        assert f"this start leaves v3 (rollback to v1, by {current_user()}): {file}" in report
        assert "warning            settings: runtime.max_batch_size: 4 → 32" in report
        assert f"kvops config rollback v3 --node two; and correct {file}, or: kvops node" in report
        assert "version_left" in node.kvops("node", "logs").stdout
        words = started(node)
    finally:
        assert node.stop() == 0
    shown = run_kvops("config", "show", "-c", words[words.index("-c") + 1], "--json", env=node.env)
    assert told(shown)["config"]["runtime"]["max_batch_size"] == 4


def current_user() -> str:
    from kvops.config.history import user

    return user()


@pytest.fixture
def history(kvops_home: Path) -> History:
    return History.of("served")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "served.yaml"
    file.write_text(yaml.safe_dump({"runtime": GOOD}))
    return file


def lines_of(history: History, file: Path | None, **options: Any) -> list[str]:
    """What a start says of its settings."""
    lines: list[str] = []
    loaded = load_config(file, {"name": "served", **options})
    begin(history, loaded, lambda step, detail: lines.append(f"{step}: {detail}"))
    return lines


def test_what_was_applied_and_is_in_the_file_needs_no_word(history: History, file: Path) -> None:
    assert len(lines_of(history, file)) == 1
    applied = load_document({"name": "served", "runtime": BAD}, "reload", {"name": "served"})
    history.record(applied, "alice", "faster")
    file.write_text(yaml.safe_dump({"runtime": BAD}))
    assert len(lines_of(history, file)) == 1
    file.write_text(yaml.safe_dump({"runtime": GOOD}))
    assert len(lines_of(history, file)) == 1, "edited after a start with what was applied"


def test_a_start_without_a_file_leaves_what_was_applied(history: History) -> None:
    lines_of(history, None)
    history.record(load_document({"runtime": BAD}, "reload", {"name": "served"}), "alice", "faster")
    lines = lines_of(history, None)
    assert lines[0] == (
        "warning: settings: this start leaves v2 (faster, by alice): the command line says otherwise"
    )
    assert "warning: settings: runtime.max_queue: 9 → 64" in lines
    assert f"or start with: kvops node start -c {history.current_file} --name served" in lines[-2]


def test_a_version_that_is_not_valid_any_more_is_told(history: History, file: Path) -> None:
    lines_of(history, file)
    history.record(load_document({"runtime": BAD}, "reload", {"name": "served"}), "alice")
    (gone,) = {one for one in (history.folder / "versions").iterdir() if b"32" in one.read_bytes()}
    gone.unlink()
    assert "which cannot be compared: version 2 cannot be read" in lines_of(history, file)[0]


def test_while_none_runs_the_next_start_is_told_with_its_flags(
    history: History, file: Path, kvops_home: Path
) -> None:
    lines_of(history, file, **{"server.port": 9000})
    env = {"KVOPS_HOME": str(kvops_home)}
    new = file.with_name("new.yaml")
    new.write_text("server: {port: 1}\nruntime: {max_queue: 7}")
    said = run_kvops("config", "apply", str(new), "--node", "served", env=env).stdout
    way = f"kvops node start -c {history.current_file} --name served --port 9000"
    assert f"served does not run; next: {way}\n" in said
    assert f"your file {file} still says runtime.max_queue: 64 (v2: 7)" in said
    assert "not taken       server.port: the command line is stronger" in said
    assert "name" not in said.partition("not taken")[2].splitlines()[0]
    said = run_kvops("config", "rollback", "1", "--node", "served", env=env).stdout
    assert "still says" not in said
    file.write_text("nonsense")
    said = run_kvops("config", "rollback", "2", "--node", "served", env=env).stdout
    assert f"your file {file} cannot be compared: {file} is no mapping" in said


def test_only_what_another_value_is_given_for_is_told_as_stronger() -> None:
    document = {"name": "served", "runtime": {"max_queue": 9, "max_batch_size": 8}}
    overrides = {"name": "served", "runtime.max_queue": 10}
    loaded = load_document(document, "reload", overrides)
    assert next_start.overridden(loaded) == {"runtime.max_queue": "command line"}


def test_the_environment_is_stronger_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVOPS_RUNTIME__MAX_QUEUE", "3")
    found = next_start.overridden(load_document({"runtime": {"max_queue": 9}}, "reload"))
    assert found == {"runtime.max_queue": "environment KVOPS_RUNTIME__MAX_QUEUE"}
    assert next_start.overridden(load_document({"runtime": {"max_queue": 3}}, "reload")) == {}
