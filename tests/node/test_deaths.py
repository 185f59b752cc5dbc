"""The error that a node ends with when its engine is gone: it sends nobody to an empty file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kvops.node.child import EngineChild
from kvops.node.deaths import death
from kvops.node.wire import Fatal


async def killed_engine(log: Path) -> EngineChild:
    child = EngineChild(log)
    await child.spawn()
    child.kill()
    assert await child.wait() < 0
    return child


def test_of_one_that_was_killed_the_exit_code_is_in_the_nodes_own_log(tmp_path: Path) -> None:
    child = asyncio.run(killed_engine(tmp_path / "engine.log"))
    assert not child.spoke
    error = death("the engine ended", None, child)
    assert error.message == "the engine ended: exit code -9"
    assert "kvops node logs" in error.hint
    assert "--engine" not in error.hint


def test_of_one_that_said_why_both_logs_are_named(tmp_path: Path) -> None:
    child = asyncio.run(killed_engine(tmp_path / "engine.log"))
    error = death("the engine ended", Fatal("engine_died", "no kernel", ""), child)
    assert error.message == "the engine ended: no kernel"
    assert "kvops node logs has" in error.hint
    assert "kvops node logs --engine" in error.hint


def test_of_one_that_wrote_something_both_logs_are_named(tmp_path: Path) -> None:
    child = asyncio.run(killed_engine(tmp_path / "engine.log"))
    child._output.last_line = "Segmentation fault"
    error = death("the engine ended", None, child)
    assert error.message.endswith("Segmentation fault")
    assert "kvops node logs --engine" in error.hint
