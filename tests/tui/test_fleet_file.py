"""The console over a fleet file: several nodes of other machines at once, each with its own token."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from kvops.errors import UsageError
from kvops.tui.app import Console
from kvops.tui.glyphs import UNICODE
from kvops.tui.session import Session
from kvops.tui.start import watches
from kvops.tui.store import Store
from tests.harness import RunningNode
from tests.tui.screen import shown, until


@pytest.fixture
def file(tiny_node: RunningNode, tmp_path: Path, kvops_home: Path) -> Path:
    (tmp_path / "right").write_text(tiny_node.token + "\n")
    (tmp_path / "wrong").write_text("kvops-admin-wrong\n")
    place = {"url": tiny_node.url, "control_url": tiny_node.control_url}
    entries = [
        {"name": "gpu1", "token_file": "right", **place},
        {"name": "gpu2", "token_file": "wrong", **place},
        {"name": "gpu3", "url": "http://127.0.0.1:9"},
    ]
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(yaml.safe_dump(entries))
    return fleet


async def test_all_nodes_of_the_file_are_watched(tiny_node: RunningNode, file: Path) -> None:
    store = Store(watches([], file), interval=0.5)
    app = Console(Session(store, glyphs=UNICODE, write=False))
    async with app.run_test(size=(120, 35)) as pilot:
        text = await until(pilot, app, "gpu1", "gpu2", "gpu3", "● OK", "DENIED", "UNSEEN")
        assert tiny_node.token not in text
        await pilot.press("G")
        assert "control_url" in await until(pilot, app, "control plane of")
        assert tiny_node.token not in shown(app)


async def test_those_that_are_named_are_watched_alone(file: Path) -> None:
    assert [watch.name for watch in watches(["gpu2"], file)] == ["gpu2"]


def test_a_file_without_nodes_is_a_mistake(tmp_path: Path, kvops_home: Path) -> None:
    empty = tmp_path / "fleet.yaml"
    empty.write_text("[]")
    with pytest.raises(UsageError, match="names no node"):
        watches([], empty)
