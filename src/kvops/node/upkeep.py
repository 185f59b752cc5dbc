"""What the node itself needs to go on: room on its disk, and a log that keeps its lines."""

from __future__ import annotations

import shutil
import time

from kvops import paths
from kvops.node.logs import dropped
from kvops.telemetry.snapshot import Known, NotExposed, Reading, Upkeep


def upkeep() -> Reading[Upkeep]:
    folder = paths.state_dir()
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:
        return NotExposed(f"{folder}: {error.strerror}")
    return Known(Upkeep(dropped(), disk.free, disk.total), time.time())
