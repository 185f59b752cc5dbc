"""A run that several commands take part in, as on several machines."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

from kvops.load.records import read_records
from tests.harness import KVOPS
from tests.load.scripted import node, serving


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def start(home: Path, *args: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*KVOPS, "load", *args], env={"KVOPS_HOME": str(home), "PATH": "", **env}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_workers_share_the_work_and_the_master_keeps_every_record(tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    with serving(node) as server:
        master = start(
            tmp_path / "master", "run", "needle_recall", "--node", server.url, "--workers", "2", "--bind", place,
            "--lengths", "128", "--depths", "0,50,100", "--repeats", "2", "--seed", "3", "--json",
            KVOPS_API_KEY="of-the-master",
        )  # fmt: skip
        workers = [
            start(
                tmp_path / f"worker{i}", "worker", "needle_recall", "--master", place, KVOPS_API_KEY=f"of-worker-{i}"
            )
            for i in (0, 1)
        ]  # fmt: skip
        out, err = master.communicate(timeout=60)
        ends = [worker.communicate(timeout=30) for worker in workers]
        asked = [r for r in server.requests if r.path == "/v1/chat/completions"]
    assert master.returncode == 0, err
    report = json.loads(out)
    assert (report["report"]["found"], report["report"]["n"]) == (6, 6)
    records = read_records(Path(report["folder"]))
    assert len(records) == len({one.seq for one in records}) == len(asked) == 7
    assert {one.worker for one in records} == {0, 1}
    assert {r.headers["authorization"] for r in asked} == {
        "Bearer of-worker-0",
        "Bearer of-worker-1",
    }
    assert [worker.returncode for worker in workers] == [0, 0], ends
    assert not list(tmp_path.glob("worker*/state/runs/*")), "a worker keeps nothing"


def test_a_worker_of_another_scenario_is_turned_away_and_both_sides_say_why(tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    with serving(node) as server:
        master = start(
            tmp_path / "master", "run", "oversize_injection", "--node", server.url, "--workers", "1", "--bind", place
        )  # fmt: skip
        worker = start(tmp_path / "worker", "worker", "needle_recall", "--master", place)
        _, said = worker.communicate(timeout=60)
        told, _ = master.communicate(timeout=60)
    assert worker.returncode == 1
    assert "the master runs oversize_injection, this worker needle_recall" in said
    assert "the master runs oversize_injection, this worker needle_recall" in told
    assert master.returncode in (1, 3)
