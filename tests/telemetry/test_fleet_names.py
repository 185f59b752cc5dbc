"""Names of the fleet file at every command that looks at a node, and the credentials that it names for each."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvops.errors import NodeNotFound, UsageError
from kvops.telemetry import fleet
from kvops.telemetry.snapshot import decode_snapshot
from tests.harness import RunningNode, run_kvops

TOKEN = "kvops-admin-token-of-gpu1"


def write(folder: Path, *entries: dict[str, str]) -> Path:
    file = folder / "fleet.yaml"
    file.write_text(yaml.safe_dump(list(entries)))
    return file


def far(folder: Path, **more: str) -> fleet.Fleet:
    entry = {"name": "gpu1", "url": "http://10.0.0.7:8000"}
    return fleet.read(write(folder, entry | more))


def test_a_node_has_the_credentials_its_entry_names(
    tmp_path: Path, kvops_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin").write_text(TOKEN + "\n")
    (tmp_path / "key").write_text("kvk_key\n")
    known = far(tmp_path, token_file="admin", api_key_file=str(tmp_path / "key"))
    monkeypatch.setenv("KVOPS_ADMIN_TOKEN", "of-another-node")
    target = fleet.resolve("gpu1", known)
    assert (target.token, target.api_key) == (TOKEN, "kvk_key")
    (tmp_path / "typed").write_text("typed\n")
    assert fleet.resolve("gpu1", known, token_file=tmp_path / "typed").token == "typed"


def test_a_token_file_that_cannot_be_read_is_named(tmp_path: Path, kvops_home: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*absent"):
        fleet.resolve("gpu1", far(tmp_path, token_file="absent"))


def test_a_name_that_is_nowhere_is_told_where_it_was_sought(
    tmp_path: Path, kvops_home: Path
) -> None:
    known = far(tmp_path)
    with pytest.raises(NodeNotFound) as caught:
        fleet.resolve("gpu2", known)
    assert str(known.path) in caught.value.message


def test_a_damaged_default_file_is_no_matter_to_the_only_node(kvops_home: Path) -> None:
    fleet.default_file().parent.mkdir(parents=True)
    fleet.default_file().write_text("[")
    with pytest.raises(NodeNotFound, match="no node runs"):
        fleet.find(None, None)


def test_a_snapshot_of_a_node_of_the_fleet(tiny_node: RunningNode, tmp_path: Path) -> None:
    """From another home, where the node is known by the fleet file alone."""
    env = {"KVOPS_HOME": str(tmp_path / "home")}
    (tmp_path / "admin").write_text(tiny_node.token + "\n")
    known = {
        "name": "gpu1",
        "url": tiny_node.url,
        "control_url": tiny_node.control_url,
        "token_file": "admin",
    }
    blind = {"name": "gpu2", "url": tiny_node.url}
    file = write(tmp_path, known, blind)

    told = run_kvops("snapshot", "--node", "gpu1", "--fleet", str(file), "--json", env=env)
    assert told.returncode == 0, told.stderr
    assert decode_snapshot(told.stdout.encode()).node == tiny_node.name
    assert tiny_node.token not in told.stdout + told.stderr

    (tmp_path / "home" / "config").mkdir(parents=True)
    (tmp_path / "home" / "config" / "fleet.yaml").write_text(
        yaml.safe_dump([known | {"token_file": str(tmp_path / "admin")}])
    )
    assert run_kvops("snapshot", "--node", "gpu1", env=env).returncode == 0

    unknown = run_kvops("snapshot", "--node", "gpu2", "--fleet", str(file), env=env)
    assert unknown.returncode == 2
    assert "control_url in the fleet file" in unknown.stderr
