"""What the node itself needs to go on: room on its disk, a log and an audit that are kept, files that can be read."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable

from kvops import paths
from kvops.node.audit import AuditLog
from kvops.node.logs import dropped
from kvops.node.watched import WatchedFiles
from kvops.telemetry.snapshot import Known, NotExposed, Reading, Upkeep


def upkeep(watched: Iterable[WatchedFiles], audit: AuditLog) -> Reading[Upkeep]:
    folder = paths.state_dir()
    try:
        disk = shutil.disk_usage(folder)
    except OSError as error:
        return NotExposed(f"{folder}: {error.strerror}")
    state = Upkeep(
        log_dropped=dropped(),
        disk_free=disk.free,
        disk_total=disk.total,
        stale_files=tuple(files.what for files in watched if files.fault is not None),
        audit_failing=audit.failing,
        audit_dropped=audit.dropped,
    )
    return Known(state, time.time())
