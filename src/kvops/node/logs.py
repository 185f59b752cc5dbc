"""The node's log: JSON lines in its folder, rotated by size. Never prompt text, never a key."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import structlog

from kvops.paths import make_private

MAX_BYTES = 10 * 2**20
BACKUPS = 3


def log_to(file: Path) -> None:
    """Send structlog's and the libraries' records to `file`, 0600."""
    make_private(file.parent)
    file.touch(mode=0o600)
    handler = RotatingFileHandler(file, maxBytes=MAX_BYTES, backupCount=BACKUPS, encoding="utf-8")
    stamps: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_without_values, *stamps],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for chatty in ("uvicorn.error", "asyncio", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.configure(
        processors=[*stamps, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _without_values(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A library's exception is named, not quoted: its text may hold a request."""
    record = event.get("_record")
    error = event.pop("exc_info", None) or getattr(record, "exc_info", None)
    if record is not None:
        record.exc_info = None
    if isinstance(error, tuple) and error[0] is not None:
        event["error"] = error[0].__name__
    return event
