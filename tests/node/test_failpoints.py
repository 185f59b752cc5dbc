"""Every fault on purpose × every check: afterwards nothing is held, leaked, changed or lost."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from kvops import failpoints, paths
from kvops.errors import ConfigError
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import eventually, eventually_idle

PATIENCE = 90.0


# The points themselves.


@pytest.fixture
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.mark.usefixtures("disarmed")
def test_nothing_happens_unless_it_is_turned_on() -> None:
    failpoints.arm("")
    assert not any(failpoints.reach(name) for name in failpoints.POINTS)
    failpoints.arm("engine.logits.nan")
    assert failpoints.armed() == ("engine.logits.nan",)
    assert [failpoints.reach(name) for name in ("engine.logits.nan", "engine.step.raises")] == [
        True,
        False,
    ]


@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize(
    ("times", "happens"),
    [("", "12345"), ("@1", "1"), ("@3", "3"), ("@2-4", "234"), ("@4+", "45"), ("@9", "")],
)
def test_it_happens_when_it_shall(times: str, happens: str) -> None:
    failpoints.arm(f"engine.logits.nan{times}")
    assert "".join(str(n) for n in range(1, 6) if failpoints.reach("engine.logits.nan")) == happens


@pytest.mark.usefixtures("disarmed")
def test_a_point_does_what_its_name_says_or_what_it_is_told() -> None:
    failpoints.arm("log.write.enospc, audit.fsync.eio=raise:EROFS, engine.step.raises")
    with pytest.raises(OSError, match="No space left") as full:
        failpoints.reach("log.write.enospc")
    assert full.value.errno == 28
    with pytest.raises(OSError, match="Read-only"):
        failpoints.reach("audit.fsync.eio")
    with pytest.raises(RuntimeError, match=r"engine\.step\.raises"):
        failpoints.reach("engine.step.raises")


@pytest.mark.usefixtures("disarmed")
@pytest.mark.parametrize(
    "faults",
    ["engine.step.rases", "engine.step.raises=explode", "log.write.enospc=raise:EWHAT", "engine.step.hangs=hang:soon",
     "engine.step.hangs=hang:1.2.3", "engine.logits.nan=kill:9", "engine.logits.nan@0", "engine.logits.nan@3-2", "@",
     "engine.logits.nan@", "a b"],
)  # fmt: skip
def test_what_is_no_failpoint_is_said(faults: str) -> None:
    with pytest.raises(ConfigError, match=failpoints.VARIABLE):
        failpoints.arm(faults)


def test_a_node_does_not_start_with_an_unknown_one() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kvops.cli", "node", "start"],
        env=os.environ | {failpoints.VARIABLE: "engine.step.rases"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 2
    assert "engine.step.rases" in result.stderr
    assert "engine.step.raises" in result.stderr


def test_a_crash_between_write_and_rename_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "file"
    paths.write_atomic(file, b"old")
    program = (
        "from kvops import failpoints, paths; from pathlib import Path; import sys;"
        "failpoints.arm_from_environment(); paths.write_atomic(Path(sys.argv[1]), b'new')"
    )
    crashed = subprocess.run(
        [sys.executable, "-c", program, str(file)],
        env=os.environ | {failpoints.VARIABLE: "disk.rename.crash"},
        timeout=60,
    )
    assert crashed.returncode == -signal.SIGKILL
    assert file.read_bytes() == b"old"
    paths.write_atomic(file, b"new")
    assert file.read_bytes() == b"new"


# A node under faults.


def ask(node: RunningNode, *, stream: bool = False, **fields: object) -> httpx.Response:
    """A completion over a connection of its own, which leaves nothing open in the node."""
    body = {
        "model": MODEL[0],
        "prompt": "hello",
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    return httpx.post(f"{node.url}/v1/completions", json=body | fields, timeout=PATIENCE)


MODEL: list[str] = []


def code_of(answer: httpx.Response) -> str:
    """How a request ended: `done`, or the code of its error, as a status or as the last event."""
    if answer.status_code != 200:
        return str(answer.json()["error"]["code"])
    if not answer.headers["content-type"].startswith("text/event-stream"):
        return "done"
    last = answer.text.strip().rpartition("data: ")[2]
    return "done" if last == "[DONE]" else str(json.loads(last)["error"]["code"])


def load(node: RunningNode, count: int = 6, max_tokens: int = 200) -> list[str]:
    """So many requests at once, streamed and plain, more than there are places: how each ended."""

    def one(number: int) -> str:
        prompt = f"request number {number}"
        try:
            return code_of(ask(node, stream=number % 2 == 0, prompt=prompt, max_tokens=max_tokens))
        except httpx.RemoteProtocolError:
            return "cut"

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def ready(node: RunningNode) -> bool:
    return httpx.get(f"{node.url}/readyz", timeout=PATIENCE).status_code == 200


def metrics(node: RunningNode) -> dict[str, float]:
    lines = httpx.get(f"{node.url}/metrics", timeout=PATIENCE).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def restarts(node: RunningNode, reason: str) -> float:
    return metrics(node)[f'kvops_engine_restarts_total{{reason="{reason}"}}']


@dataclass
class Footprint:
    """What the daemon holds of the system."""

    threads: int
    descriptors: int
    tasks: float
    children: int

    @classmethod
    def of(cls, node: RunningNode) -> Footprint:
        tasks = metrics(node)["kvops_daemon_tasks"]
        process = psutil.Process(node.process.pid)
        return cls(process.num_threads(), process.num_fds(), tasks, len(process.children()))

    def within(self, bound: Footprint) -> bool:
        return (
            self.threads <= bound.threads
            and self.descriptors <= bound.descriptors
            and self.tasks <= bound.tasks
            and self.children == 1
        )


@dataclass
class Checker:
    """What has to hold after every fault, against what held before the first."""

    node: RunningNode
    canary: str = field(init=False)
    footprint: Footprint = field(init=False)
    counters: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        load(self.node, max_tokens=4)
        self.canary = self._sing()
        eventually_idle(self.node)
        self.footprint = Footprint.of(self.node)
        self.counters = self._counters()

    def check(self) -> None:
        node = self.node
        eventually(lambda: ready(node), "the node is ready", PATIENCE)
        eventually_idle(node)
        self._check_picture()
        assert self._sing() == self.canary, "the same prompt has another answer"
        eventually_idle(node)
        self._check_counters()
        eventually(
            lambda: Footprint.of(node).within(self.footprint),
            f"{Footprint.of(node)} is within {self.footprint}",
            PATIENCE,
        )
        self._check_audit()

    def _sing(self) -> str:
        return str(
            ask(self.node, prompt="the canary sings", max_tokens=48).json()["choices"][0]["text"]
        )

    def _counters(self) -> dict[str, float]:
        return {name: value for name, value in metrics(self.node).items() if "_total" in name}

    def _check_picture(self) -> None:
        snapshot = self.node.snapshot()
        assert isinstance(snapshot.kv, Known)
        assert isinstance(snapshot.queue, Known)
        assert isinstance(snapshot.progress, Known)
        kv, queue = snapshot.kv.value, snapshot.queue.value
        assert kv.free_blocks + kv.cached_blocks == kv.total_blocks
        assert (kv.used_blocks, queue.running, queue.waiting) == (0, 0, 0)
        assert snapshot.progress.value.invariant_violations == 0

    def _check_counters(self) -> None:
        now = self._counters()
        fell = {
            name: (was, now.get(name))
            for name, was in self.counters.items()
            if now.get(name, -1) < was
        }
        assert not fell, f"counters that went back: {fell}"
        self.counters = now

    def _check_audit(self) -> None:
        verified = self.node.kvops("audit", "verify", "--node", self.node.name)
        assert verified.returncode == 0, verified.stdout + verified.stderr


SETTINGS: dict[str, object] = {
    "kv_cache": {"blocks": 256},
    "runtime": {"threads": 1, "max_batch_size": 4, "stall_after": "2s"},
    "restart": {"budget": 100, "backoff": "10ms"},
    "quarantine": {"crashes": 1000},
}


def start_armed(home: Path, model: Path, name: str, faults: str) -> RunningNode:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, faults)
        node = start_node(home, {"model": {"name": str(model)}, **SETTINGS}, name=name)
    MODEL[:] = [httpx.get(f"{node.url}/v1/models").json()["data"][0]["id"]]
    return node


@dataclass
class Rig:
    """A node whose next engine gets the faults that are written into a file."""

    node: RunningNode
    file: Path
    checker: Checker

    def arm(self, faults: str) -> None:
        """The next engine starts with these, the one after it without."""
        self.file.write_text(faults)
        engine = self.node.engine()
        before = restarts(self.node, "killed")
        engine.kill()
        eventually(lambda: restarts(self.node, "killed") > before, "the loss is counted", PATIENCE)
        eventually(lambda: ready(self.node), "the next engine is ready", PATIENCE)
        self.file.unlink()

    def counted(self, reason: str, times: float) -> None:
        """Whoever waited is told first."""
        eventually(lambda: restarts(self.node, reason) >= times, "it is counted", PATIENCE)
        assert restarts(self.node, reason) == times


@pytest.fixture(scope="module")
def rig(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    home = tmp_path_factory.mktemp("faulty")
    node = start_armed(home, tiny_model, "faulty", f"@{home / 'faults'}")
    yield Rig(node, home / "faults", Checker(node))
    assert node.stop() == 0


def test_a_step_that_raises_ends_its_requests_by_name(rig: Rig) -> None:
    rig.arm("engine.step.raises@20")
    before = restarts(rig.node, "fatal")
    assert set(load(rig.node)) == {"engine_restarted"}, "running, queued, streamed and plain alike"
    rig.counted("fatal", before + 1)
    rig.checker.check()


def test_a_step_that_hangs_is_ended(rig: Rig) -> None:
    rig.arm("engine.step.hangs@20")
    before = restarts(rig.node, "stalled")
    assert set(load(rig.node)) == {"engine_restarted"}
    rig.counted("stalled", before + 1)
    rig.checker.check()


def test_a_failed_allocation_ends_its_batch_and_nothing_else(rig: Rig) -> None:
    rig.arm("engine.allocation.fails@20")
    engine = rig.node.engine()
    ends = load(rig.node)
    assert set(ends) == {"internal_error", "done"}, "those of the step, and those that waited"
    assert rig.node.engine() == engine
    rig.checker.check()


def test_logits_that_are_no_numbers_end_their_requests_and_nothing_else(rig: Rig) -> None:
    rig.arm("engine.logits.nan@20")
    engine = rig.node.engine()
    assert set(load(rig.node)) == {"internal_error", "done"}
    assert rig.node.engine() == engine
    rig.checker.check()


def test_a_short_read_of_weights_is_named_and_tried_again(rig: Rig) -> None:
    before = restarts(rig.node, "fatal")
    rig.file.write_text("model.read.short@5")
    rig.node.engine().kill()
    eventually(lambda: restarts(rig.node, "fatal") > before, "the engine could not load", PATIENCE)
    rig.file.unlink()
    rig.checker.check()
    written = rig.node.kvops("node", "logs", "--node", "faulty", "--lines", "400").stdout
    assert "model_corrupt" in written


def test_a_short_read_at_the_start_ends_the_start(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"error \[model_corrupt\]: model.safetensors gave"):
        start_armed(tmp_path / "home", tiny_model, "short", "model.read.short@5")


def test_disks_and_clients_that_fail_cost_no_answer(tiny_model: Path, tmp_path: Path) -> None:
    faults = "log.write.enospc@20-60, audit.fsync.eio@20-24, sse.write.epipe@40-41"
    node = start_armed(tmp_path / "home", tiny_model, "sick", faults)
    try:
        assert "FAILPOINTS ON" in node.log.read_text()
        checker = Checker(node)
        ends: list[str] = []

        def survived() -> bool:
            ends.extend(load(node, max_tokens=8))
            return "cut" in ends and metrics(node)["kvops_log_dropped_total"] > 0

        eventually(survived, "a stream is cut and log lines are lost", PATIENCE)
        assert set(ends) == {"done", "cut"}
        checker.check()
    finally:
        assert node.stop() == 0


def started_unless_killed(home: Path, model: Path, faults: str) -> RunningNode | None:
    try:
        return start_armed(home, model, "crashed", faults)
    except AssertionError as ended:
        if "node ended with -9" not in str(ended):
            raise
        return None


def test_a_start_survives_crashes_at_every_rename_before_it(
    tiny_model: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for at in itertools.count(1):
        assert at < 12, "a node renames so many files?"
        node = started_unless_killed(home, tiny_model, f"disk.rename.crash@{at}")
        if node is not None and node.stop() == 0:
            break
    assert at > 1
    node = start_armed(home, tiny_model, "crashed", "")
    assert code_of(ask(node, max_tokens=4)) == "done"
    assert node.stop() == 0
