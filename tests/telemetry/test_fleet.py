"""The fleet file: names of nodes, and which of them may be put under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import ConfigError, NodeNotFound, UsageError
from kvops.load import targets
from kvops.telemetry import fleet

FILE = """
- {name: near, url: "http://127.0.0.1:8000"}
- {name: shy, url: "http://localhost:8001", allow_load: false}
- {name: far, url: "https://node.example", control_url: "https://node.example:8001"}
- {name: lent, url: "http://10.0.0.7:8000", allow_load: true}
"""


@pytest.fixture
def known(kvops_home: Path) -> fleet.Fleet:
    fleet.default_file().parent.mkdir(parents=True)
    fleet.default_file().write_text(FILE)
    return fleet.read()


def test_a_name_becomes_its_urls(known: fleet.Fleet) -> None:
    far = targets.resolve("far", known)
    assert (far.url, far.control_url) == ("https://node.example", "https://node.example:8001")
    assert targets.resolve("http://10.0.0.9:1", known).url == "http://10.0.0.9:1"
    with pytest.raises(NodeNotFound):
        targets.resolve("absent", known)


def test_only_this_machines_nodes_may_be_loaded_unasked(known: fleet.Fleet) -> None:
    assert [entry.name for entry in known.entries if entry.may_be_loaded] == ["near", "lent"]


@pytest.mark.parametrize(
    ("url", "hosts"),
    [("http://127.0.0.1:8001", ()), ("https://node.example:443/", ("node.example",))],
)
def test_an_entry_that_does_not_allow_load_is_refused_whatever_else_is_allowed(
    known: fleet.Fleet, url: str, hosts: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match="is not to be loaded") as raised:
        targets.check_target(url, hosts, known)
    assert "allow_load: true" in raised.value.hint


def test_an_entry_that_allows_load_does_not_make_another_machine_this_one(
    known: fleet.Fleet,
) -> None:
    with pytest.raises(UsageError, match="--allow-remote"):
        targets.check_target("http://10.0.0.7:8000", (), known)
    targets.check_target("http://10.0.0.7:8000", ("10.0.0.7",), known)
    targets.check_target("http://127.0.0.1:8000", (), known)
    targets.check_target("http://127.0.0.1:9999", (), known)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- {name: a, url: 'http://x', colour: red}", "0.colour: Extra inputs"),
        ("- {name: A B, url: 'http://x'}", "0.name"),
        ("- {name: a, url: 'x:1'}", "is not an http(s) URL"),
        ("- {name: a, url: 'http://x'}\n- {name: a, url: 'http://y'}", "a is named twice"),
        ("- {name: a, url: 'http://x', allow_load: perhaps}", "0.allow_load"),
        ("[", "cannot read"),
        ("nodes: 3", "valid tuple"),
    ],
)
def test_a_fleet_file_with_a_mistake_names_it(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        fleet.read(file)
    assert wanted in raised.value.message
    assert "a list of nodes" in raised.value.hint or "name of its own" in raised.value.hint


def test_a_file_that_was_named_must_be_there(tmp_path: Path, kvops_home: Path) -> None:
    assert fleet.read().entries == ()
    with pytest.raises(ConfigError, match="cannot read"):
        fleet.read(tmp_path / "absent.yaml")


def test_the_sample_that_comes_with_kvops_is_sound() -> None:
    sample = fleet.read(Path(__file__).parents[2] / "configs" / "fleet.yaml")
    assert [(entry.name, entry.may_be_loaded) for entry in sample.entries] == [
        ("staging", True),
        ("production", False),
    ]
