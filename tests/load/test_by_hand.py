"""A scenario that is run by plain locust, without `kvops load`: it is guarded, seeded and checked alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvops.load import runs, scenarios
from tests.load.scripted import Reply, Request, Server, node, serving

REMOTE = "http://192.0.2.7:8000"


def locust(name: str, host: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = str(scenarios.find(name).path)
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        file,
        "--headless",
        "--only-summary",
        "-H",
        host,
    ]
    return subprocess.run(
        [*command, *options], env=os.environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip


def asked(server: Server) -> int:
    return sum(request.path == "/v1/chat/completions" for request in server.requests)


def test_a_node_on_another_machine_is_refused_without_leave(kvops_home: Path) -> None:
    done = locust("soak", REMOTE)
    assert done.returncode != 0
    assert "192.0.2.7 is not this machine" in done.stderr
    assert "--allow-remote 192.0.2.7" in done.stderr
    assert runs.folders() == []


def test_a_node_whose_fleet_entry_allows_no_load_is_refused_whatever_else_is_given(
    kvops_home: Path, tmp_path: Path
) -> None:
    with serving(node) as server:
        file = tmp_path / "fleet.yaml"
        file.write_text(f"- {{name: prod, url: '{server.url}', allow_load: false}}\n")
        for host in (server.url, "prod"):
            done = locust("soak", host, "--fleet", str(file), "--allow-remote", "127.0.0.1")
            assert done.returncode != 0
            assert "prod is not to be loaded: allow_load is false" in done.stderr
        assert server.requests == []


def test_each_run_draws_a_seed_of_its_own_and_says_it(kvops_home: Path) -> None:
    seeds = []
    with serving(node) as server:
        for _ in range(2):
            done = locust("soak", server.url, "--run-time", "1s")
            assert done.returncode == 0, done.stderr
            seeds.append(runs.find(None).info.seed)
            assert f"--seed {seeds[-1]} " in done.stderr
        prompts = [json.loads(r.body)["messages"] for r in server.requests if r.body]
    assert seeds[0] != seeds[1]
    assert len({str(one) for one in prompts}) == len(prompts), "no prompt was sent twice"


def test_a_length_without_room_is_told_before_anything_is_sent(kvops_home: Path) -> None:
    def four_a_word(request: Request, reply: Reply) -> None:
        if request.path == "/v1/tokenize":
            return reply.json(
                200, {"count": 4 * len(request.json()["messages"][0]["content"].split())}
            )
        return node(request, reply)

    with serving(four_a_word) as server:
        done = locust("needle_recall", server.url, "--lengths", "128,512")
        assert asked(server) == 0
    assert done.returncode != 0
    assert "--lengths 128 is too short" in done.stderr


@pytest.mark.parametrize(("name", "users"), [("oversize_injection", "2"), ("ramp_to_knee", "3")])
def test_more_users_than_a_scenario_takes_are_refused(
    kvops_home: Path, name: str, users: str
) -> None:
    with serving(node) as server:
        done = locust(name, server.url, "--users", users)
        assert asked(server) == 0
    assert done.returncode != 0
    assert f"--users {users}: {name} takes at most 1" in done.stderr
