"""Ends a run as a whole, in the process that started it: the local locust, or the master of several."""

from __future__ import annotations

import logging
from typing import Any

import gevent

from kvops.load import runs
from kvops.load.endings import MARK, Ending


class Conductor:
    def __init__(self, environment: Any, run: runs.Run, *, own: bool) -> None:
        """`own`: nobody but this process finishes the run's folder."""
        self._environment, self._run, self._own = environment, run, own
        self.ended: tuple[Ending, str] | None = None

    def end(self, ending: Ending, reason: str) -> None:
        """End the whole run; what is written is kept. The first ending counts."""
        if self.ended is None:
            self.ended = ending, " ".join(reason.split())
            self._environment.process_exit_code = int(ending)
            logging.error("%s%s", MARK, self.ended[1])
            gevent.spawn(self._environment.runner.quit)

    def close(self) -> None:
        if not self._own:
            return
        if self.ended is None:
            self._run.finish("finished")
        else:
            self._run.finish("failed", self.ended[1])
        logging.info("kvops load show %s", self._run.folder)
