"""`kvops keys` as a person and a script use it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from kvops import registry
from kvops.node.auth import KeyRing
from kvops.node.keys.file import default_file, read_keys
from tests.harness import run_kvops


def keys(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_kvops("keys", *args, env={"KVOPS_HOME": str(home)} | env)


def test_from_the_first_key_to_the_last(kvops_home: Path) -> None:
    made = keys(kvops_home, "create", "--tenant", "acme", "--id", "ci", "--expires", "30d")
    secret = made.stdout.removesuffix("\n")
    assert made.returncode == 0, made.stderr
    assert secret.startswith("kvk_"), "the key is alone on standard output"
    assert "\n" not in secret
    assert secret not in made.stderr
    assert "shown this once" in made.stderr
    assert "expires 20" in made.stderr
    assert "no node that runs here reads it" in made.stderr
    assert KeyRing(read_keys(default_file())).identify(f"Bearer {secret}").tenant == "acme"

    turned = keys(kvops_home, "rotate", "ci", "--id", "ci-2", "--overlap", "1h", "--json")
    assert json.loads(turned.stdout)["key"].startswith("kvk_")
    assert "already ending; its successor is ci-2" in keys(kvops_home, "rotate", "ci").stderr
    listed = json.loads(keys(kvops_home, "list", "--json").stdout)
    assert [key["id"] for key in listed["keys"]] == ["ci", "ci-2"]
    assert all(key["state"] == "active" and key["expires"] for key in listed["keys"])
    shown = keys(kvops_home, "list").stdout
    digest = read_keys(default_file())[0].digest.hex()
    assert "ci-2" in shown
    for text in (shown, json.dumps(listed)):
        assert secret not in text
        assert digest not in text

    before = default_file().stat()
    assert keys(kvops_home, "revoke", "--expired").stdout == "none has expired\n"
    assert keys(kvops_home, "revoke", "--expired").stderr == ""
    assert default_file().stat() == before, "nothing was written"
    assert keys(kvops_home, "revoke", "ci", "ci-2").returncode == 0
    assert json.loads(keys(kvops_home, "list", "--json").stdout)["keys"] == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["create", "--expires", "soon"], "--expires"),
        (["create", "--expires", "0s"], "--expires"),
        (["create", "--id", "no good"], "id 'no good'"),
        (["create", "--tenant", "/"], "tenant '/'"),
        (["rotate", "none"], "no key 'none'"),
        (["rotate", "none", "--overlap", "x"], "--overlap"),
        (["revoke", "none"], "no key 'none'"),
        (["revoke"], "--expired"),
        (["revoke", "a", "--expired"], "--expired"),
        (["list"], "kvops keys create"),
    ],
)
def test_what_is_wrong_is_named(kvops_home: Path, args: list[str], words: str) -> None:
    result = keys(kvops_home, *args)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert result.stdout == ""


def test_which_file_is_meant(kvops_home: Path, tmp_path: Path) -> None:
    pointed, named = tmp_path / "pointed.yaml", tmp_path / "named.yaml"
    variable = {"KVOPS_API_KEYS_FILE": str(pointed)}
    assert keys(kvops_home, "create", **variable).returncode == 0
    assert keys(kvops_home, "create", "--file", str(named), **variable).returncode == 0
    assert (len(read_keys(pointed)), len(read_keys(named))) == (1, 1)
    assert not default_file().exists()
    assert keys(kvops_home, "list", "--node", "gone").returncode == 4


def test_the_file_of_the_node_that_runs(kvops_home: Path) -> None:
    """This process stands in for the node: of it only its record matters."""
    files = {name: kvops_home / f"{name}.yaml" for name in ("one", "two")}

    def register(name: str) -> None:
        registry.write(
            registry.NodeRecord(
                name=name,
                pid=os.getpid(),
                pid_created=psutil.Process().create_time(),
                url="http://127.0.0.1:1",
                control_url="http://127.0.0.1:2",
                model="m",
                started_at=0.0,
                version="0",
                api_keys_file=str(files[name]),
            )
        )

    register("one")
    made = keys(kvops_home, "create")
    assert made.returncode == 0, made.stderr
    assert "in force within a second at one" in made.stderr
    assert len(read_keys(files["one"])) == 1
    register("two")
    assert "--node" in keys(kvops_home, "create").stderr
    assert keys(kvops_home, "create", "--node", "two").returncode == 0
    assert len(read_keys(files["two"])) == 1
