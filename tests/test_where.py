"""Where nodes are looked for is said when there is none, and how the nodes of the systemd unit are reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops import registry
from kvops.errors import NodeNotFound
from tests.harness import run_kvops


def test_a_command_that_finds_no_node_says_where_it_looked(kvops_home: Path) -> None:
    for command in (("node", "status"), ("node", "stop"), ("node", "drain", "--node", "chat")):
        done = run_kvops(*command, env={"KVOPS_HOME": str(kvops_home)})
        assert done.returncode == 4
        assert f"(looked in {kvops_home}/state/nodes)" in done.stderr, done.stderr


def test_the_nodes_of_the_unit_are_named(kvops_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = f"sudo -u kvops KVOPS_HOME={kvops_home} kvops node status"
    monkeypatch.setattr(registry, "SERVICE_HOME", kvops_home)
    assert way not in registry.nothing_found("none").hint, "there are none"
    kvops_home.mkdir()
    assert way not in registry.nothing_found("none").hint, "that is where we look"
    monkeypatch.setenv("KVOPS_HOME", str(kvops_home.parent / "other"))
    with pytest.raises(NodeNotFound) as nothing:
        registry.the_only_one()
    assert way in nothing.value.hint


def test_the_home_of_the_unit_is_the_one_that_is_told() -> None:
    unit = Path(__file__).parents[1] / "configs" / "systemd" / "kvops-node@.service"
    text = unit.read_text()
    assert f"Environment=KVOPS_HOME={registry.SERVICE_HOME}\n" in text
    assert "LoadCredential=api" not in text
    assert "KVOPS_API_KEYS_FILE" not in text, "a credential is a copy that no rotation reaches"
