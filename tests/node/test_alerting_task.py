"""The task that looks at the alert rules ends when it is told to, whatever wakes it at that moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvops.config.load import load_document
from kvops.node.alerting import Alerting
from kvops.telemetry.snapshot import NodeSnapshot


def _no_snapshot() -> NodeSnapshot:
    raise AssertionError("alerts are off: nobody looks")


@pytest.mark.parametrize("ticks", range(8))
async def test_new_settings_at_the_very_end_do_not_keep_it(tmp_path: Path, ticks: int) -> None:
    config = load_document({"alerts": {"enabled": False}}, "the test").config
    alerting = Alerting(config, tmp_path, _no_snapshot)
    task = asyncio.create_task(alerting.run())
    for _ in range(ticks):
        await asyncio.sleep(0)
    alerting.take(config)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=5)
    assert done == {task}
    assert task.cancelled()
