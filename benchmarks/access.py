"""What getting in costs and promises: a key is never refused while keys are rotated, and the checks are cheap."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.node import MODEL_HOME, Node, running_node
from benchmarks.table import Row
from kvops.node.keys import changes
from kvops.node.keys.changes import NewKey

ROTATIONS = 10
CLIENTS = 4
KEYS = 100
REQUESTS = 400
PATIENCE = 60.0


def rows() -> Iterator[Row]:
    yield rotation()
    yield cost()


def rotation() -> Row:
    """Requests without pause while their key is rotated and other keys come and go."""
    with tempfile.TemporaryDirectory(prefix="kvops-keys-") as folder:
        file = Path(folder) / "keys.yaml"
        holder = [changes.create(file, "bench", None, None)]
        with running_node(settings={"KVOPS_SERVER__API_KEYS_FILE": str(file)}) as node:
            statuses: Counter[int] = Counter()
            with _asking(node, holder, statuses) as used:
                for _ in range(ROTATIONS):
                    _rotate(node, file, holder, used)
    total = sum(statuses.values())
    return Row(
        f"requests refused in {ROTATIONS} rotations of a key",
        f"{statuses[401]} of {total}, {total - statuses[200] - statuses[401]} others failed",
        "each with a key that is good",
        total - statuses[200],
        0,
        False,
    )


def _rotate(node: Node, file: Path, holder: list[NewKey], used: list[NewKey]) -> None:
    """The old key is used until the new one is in force, and revoked when nobody uses it any more."""
    old = holder[0]
    for at in range(20):
        changes.create(file, "others", f"other-{at}", None)
    new, _ = changes.rotate(file, old.key.id, 3600.0, new_id=None, lifetime=None)
    changes.revoke(file, [f"other-{at}" for at in range(20)])
    _until(lambda: _status(node, new) == 200)
    holder[0] = new
    _until(lambda: all(key is new for key in used))
    changes.revoke(file, [old.key.id])
    _until(lambda: _status(node, old) == 401)


def _status(node: Node, key: NewKey) -> int:
    headers = {"Authorization": f"Bearer {key.secret}"}
    return httpx.get(f"{node.url}/v1/models", headers=headers, timeout=PATIENCE).status_code


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"what was waited for did not come within {PATIENCE:g} s")
        time.sleep(0.02)


@contextmanager
def _asking(node: Node, holder: list[NewKey], statuses: Counter[int]) -> Iterator[list[NewKey]]:
    """The key that each client has in use."""
    done, used = threading.Event(), holder * CLIENTS

    def ask(at: int) -> None:
        body = {"model": "smollm2-135m", "prompt": "x", "max_tokens": 1}
        with httpx.Client(base_url=node.url, timeout=PATIENCE, trust_env=False) as client:
            while not done.is_set():
                used[at] = holder[0]
                headers = {"Authorization": f"Bearer {used[at].secret}"}
                if at == 0:
                    answer = client.post("/v1/completions", json=body, headers=headers)
                else:
                    answer = client.get("/v1/models", headers=headers)
                statuses[answer.status_code] += 1

    workers = [threading.Thread(target=ask, args=(at,)) for at in range(CLIENTS)]
    for worker in workers:
        worker.start()
    try:
        yield used
    finally:
        done.set()
        for worker in workers:
            worker.join()


def cost() -> Row:
    """What the daemon spends on a request for knowing who asks, admitting it and telling the audit."""
    with tempfile.TemporaryDirectory(prefix="kvops-bench-") as folder:
        (Path(folder) / "data").symlink_to(MODEL_HOME / "data")
        file = Path(folder) / "keys.yaml"
        keys = [changes.create(file, "bench", None, None) for _ in range(KEYS)]
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            measured = pool.submit(_timed_node, folder, file)
            _ask_one_by_one(Path(folder), keys[-1])
            spent = measured.result()[-REQUESTS:]
    p50, p95 = statistics.median(spent), statistics.quantiles(spent, n=20)[-1]
    return Row(
        "authentication + admission + audit, p95",
        f"{p95 * 1e3:.3f} ms, median {p50 * 1e3:.3f} ms",
        f"{len(spent)} requests, {KEYS} keys",
        p95 * 1e3,
        1,
        False,
        " ms",
    )


def _timed_node(home: str, keys_file: Path) -> list[float]:
    """A whole node in this process, its checks timed, until it is told to stop; seconds of each request."""
    os.environ["KVOPS_HOME"] = home
    from kvops.config.load import load_config
    from kvops.node.admission import Admission
    from kvops.node.audit import AuditLog
    from kvops.node.auth import KeyRing
    from kvops.node.daemon import run_node

    timer = _Timer()
    timer.begins_with(KeyRing, "identify")
    for owner, name in ((Admission, "admit"), (AuditLog, "record"), (AuditLog, "check")):
        timer.adds(owner, name)
    settings = {
        "model.name": "smollm2-135m",
        "name": "bench",
        "server.port": 0,
        "server.control_port": 0,
        "server.api_keys_file": str(keys_file),
    }
    run_node(load_config(None, settings), lambda step, detail: None)
    return timer.spent


def _ask_one_by_one(home: Path, key: NewKey) -> None:
    """Wait for the node, ask it, and end it."""
    file = home / "state" / "nodes" / "bench" / "node.json"
    _until(file.exists)
    record = json.loads(file.read_text())
    headers = {"Authorization": f"Bearer {key.secret}"}
    try:
        with httpx.Client(base_url=record["url"], headers=headers, timeout=PATIENCE) as client:
            _until(lambda: client.get("/readyz").status_code == 200)
            for at in range(REQUESTS):
                body = {"model": "smollm2-135m", "prompt": f"Report {at}", "max_tokens": 1}
                client.post("/v1/completions", json=body).raise_for_status()
    finally:
        os.kill(record["pid"], signal.SIGTERM)


class _Timer:
    """Adds up the time in some methods, by request."""

    def __init__(self) -> None:
        self.spent: list[float] = []

    def begins_with(self, owner: type, name: str) -> None:
        """A call of this method is the first of a request."""
        self._wrap(owner, name, lambda seconds: self.spent.append(seconds))

    def adds(self, owner: type, name: str) -> None:
        self._wrap(owner, name, self._add)

    def _add(self, seconds: float) -> None:
        if self.spent:
            self.spent[-1] += seconds

    def _wrap(self, owner: type, name: str, take: Callable[[float], None]) -> None:
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                take(time.perf_counter() - begun)

        setattr(owner, name, timed)
