from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.harness import KVOPS, RunningNode, run_kvops


def test_the_log_of_a_running_node_reads_well(tiny_node: RunningNode) -> None:
    shown = tiny_node.kvops("node", "logs", "-n", "100000")
    assert shown.returncode == 0, shown.stderr
    assert " INFO  ready " in shown.stdout
    assert "{" not in shown.stdout.splitlines()[0]
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ", shown.stdout)
    assert tiny_node.kvops("node", "logs", "--engine").returncode == 0
    raw = tiny_node.kvops("node", "logs", "--json", "-n", "3").stdout.splitlines()
    assert len(raw) <= 3
    assert all("event" in json.loads(line) for line in raw)


def test_following_shows_what_comes_and_survives_rotation(kvops_home: Path) -> None:
    log = kvops_home / "state" / "nodes" / "gone" / "node.log"
    log.parent.mkdir(parents=True)
    log.write_text("not json\n")
    command = [*KVOPS, "node", "logs", "--node", "gone", "-f"]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "not json\n"
        with log.open("a") as appended:
            appended.write('{"event": "a longer line than the first", "level": "info"}\n')
        assert "a longer line" in follower.stdout.readline()
        log.write_text('{"event": "new"}\n')
        assert "new" in follower.stdout.readline()
    finally:
        follower.kill()
        follower.wait()


def test_a_node_that_never_ran_has_no_log(kvops_home: Path) -> None:
    result = run_kvops("node", "logs", "--node", "nobody", env={"KVOPS_HOME": str(kvops_home)})
    assert result.returncode == 4
    assert "nobody" in result.stderr


def test_the_last_that_ran_is_the_default_and_the_known_are_named(kvops_home: Path) -> None:
    for at, name in enumerate(("older", "newer")):
        log = kvops_home / "state" / "nodes" / name / "node.log"
        log.parent.mkdir(parents=True)
        log.write_text(json.dumps({"event": f"words of {name}"}) + "\n")
        os.utime(log, (at + 1, at + 1))
    env = {"KVOPS_HOME": str(kvops_home)}
    last = run_kvops("node", "logs", env=env)
    assert "words of newer" in last.stdout
    assert "the last that ran here is newer" in last.stderr
    unknown = run_kvops("node", "logs", "--node", "nobody", env=env)
    assert unknown.returncode == 4
    assert "newer, older" in unknown.stderr
