"""Ends a run as a whole, in the process that started it: the local locust, or the master of several."""

from __future__ import annotations

import logging
from typing import Any

import gevent

from kvops.load.endings import MARK, Ending


class Conductor:
    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.ended: tuple[Ending, str] | None = None

    def end(self, ending: Ending, reason: str) -> None:
        """End the whole run; what is written is kept. The first ending counts."""
        if self.ended is None:
            self.ended = ending, " ".join(reason.split())
            self._environment.process_exit_code = int(ending)
            logging.error("%s%s", MARK, self.ended[1])
            gevent.spawn(self._environment.runner.quit)
