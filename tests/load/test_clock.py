"""What a run is stamped by does not follow a wall clock that is set meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

from kvops.load.client import Client
from kvops.load.pacing import Pacing
from kvops.load.records import read_client
from tests.load.driven import drive, plan
from tests.load.scripted import node, serving


def test_a_step_of_the_wall_clock_moves_no_line_of_a_run(tmp_path: Path) -> None:
    pacing = Pacing(kind="constant", rate=10)
    began = time.time()
    with serving(node) as server:
        made = plan(server.url, tmp_path, "stepped", users=1, pacing=pacing, duration=2.5)
        run, records = drive(made)
    ended = time.time()
    assert run.info.status == "finished", run.info.reason
    assert len(records) == 25
    assert all(began < one.t_send < ended for one in records)
    assert all(one.lateness is not None and 0 <= one.lateness < 60 for one in records)
    samples = read_client(run.folder)
    assert samples
    assert all(began < one.at < ended and one.late < 60 for one in samples)


def test_a_step_while_a_connection_is_made_does_not_move_its_send() -> None:
    began = time.time()
    with serving(node) as server, mock.patch("time.time", return_value=0.0):
        got = Client(server.url).complete("/v1/chat/completions", {"messages": [{"content": "17"}]})
    assert began <= got.t_send <= time.time()
