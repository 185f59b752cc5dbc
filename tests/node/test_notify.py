"""What a node tells systemd, read from a real datagram socket as systemd reads it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvops.node.notify import Notifier
from tests.conftest import REPO
from tests.harness import start_node

UNIT = REPO / "configs" / "systemd" / "kvops-node@.service"


class Receiver:
    """systemd's end: what came, a list of lines a message."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.settimeout(60)
        self.address = address

    def next(self) -> list[str]:
        return self.sock.recv(65_536).decode().split("\n")

    def until(self, line: str) -> list[str]:
        """All lines up to the message that has `line`."""
        lines: list[str] = []
        while line not in lines:
            lines += self.next()
        return lines

    def waiting(self) -> list[str]:
        """What has come and was not read."""
        lines: list[str] = []
        self.sock.setblocking(False)
        try:
            while True:
                lines += self.next()
        except BlockingIOError:
            return lines
        finally:
            self.sock.settimeout(60)


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Receiver]:
    abstract = f"@kvops-test-{os.getpid()}"
    receiver = Receiver(abstract if request.param == "abstract" else str(tmp_path / "notify"))
    yield receiver
    receiver.sock.close()


def notifier(receiver: Receiver, **environment: str) -> Notifier:
    return Notifier({"NOTIFY_SOCKET": receiver.address, **environment})


def test_the_report_of_a_start_and_of_an_end_is_followed(receiver: Receiver) -> None:
    said: list[tuple[str, str]] = []
    report = notifier(receiver).following(lambda step, detail: said.append((step, detail)), 40.0)
    report("model loaded", "135 M parameters\n1.0 s")
    report("ready", "kvops node stop ends it")
    report("settings", "applied")
    report("stopping", "2 requests in flight")
    lines = receiver.waiting()
    assert lines == [
        "STATUS=model loaded: 135 M parameters 1.0 s",
        "EXTEND_TIMEOUT_USEC=600000000",
        "READY=1",
        "STATUS=ready",
        "STATUS=settings: applied",
        "STOPPING=1",
        "STATUS=stopping: 2 requests in flight",
        "EXTEND_TIMEOUT_USEC=70000000",
    ]
    assert [step for step, _ in said] == ["model loaded", "ready", "settings", "stopping"]


async def test_what_systemd_has_no_room_for_is_said_later_and_in_order(receiver: Receiver) -> None:
    report = notifier(receiver).following(lambda step, detail: None, 1.0)
    for number in range(30):  # Linux queues eleven
        report(f"step {number}", "")
    report("ready", "")
    lines = receiver.waiting()
    assert "READY=1" not in lines, "the queue was not full: this shows nothing"
    async with asyncio.timeout(60):
        while "READY=1" not in lines:
            await asyncio.sleep(0.01)
            lines += receiver.waiting()
    steps = [line.split()[1] for line in lines if line.startswith("STATUS=step")]
    assert steps == [f"{number}:" for number in range(30)]


async def test_the_watchdog_hears_of_progress_only(receiver: Receiver) -> None:
    asked, enough = 0, asyncio.Event()

    def healthy() -> bool:
        nonlocal asked
        asked += 1
        if asked == 6:
            enough.set()
        return asked <= 3

    watch = asyncio.create_task(notifier(receiver, WATCHDOG_USEC="1000").watch(healthy))
    async with asyncio.timeout(60):
        await enough.wait()
    watch.cancel()
    assert receiver.waiting() == ["WATCHDOG=1"] * 3


@pytest.mark.parametrize(
    "environment", [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}]
)  # fmt: skip
async def test_no_watchdog_where_none_is_asked_for(
    receiver: Receiver, environment: dict[str, str]
) -> None:
    async with asyncio.timeout(60):
        await notifier(receiver, **environment).watch(lambda: True)
    assert receiver.waiting() == []


async def test_without_systemd_nothing_is_said_and_nothing_fails(tmp_path: Path) -> None:
    for environment in (
        {},
        {"NOTIFY_SOCKET": str(tmp_path / "nobody")},
        {"NOTIFY_SOCKET": "@kvops-nobody"},
    ):
        silent = Notifier(environment)
        report = silent.following(lambda step, detail: None, 1.0)
        report("checks", "…")
        report("ready", "")
    async with asyncio.timeout(60):
        await Notifier({"WATCHDOG_USEC": "1000"}).watch(lambda: True)


def test_the_address_is_not_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.setenv(name, "1")
    Notifier.of_process()
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ)


def test_a_node_says_ready_after_its_warm_up_and_stopping_when_it_stops(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", receiver.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 32},
        "runtime": {"threads": 1},
    }
    node = start_node(tmp_path / "home", settings, name="told")
    try:
        start = receiver.until("READY=1")
        assert any(line.startswith("STATUS=warm-up generation") for line in start)
        assert "WATCHDOG=1" not in start, "nothing is watched before it is ready"
        receiver.until("WATCHDOG=1")
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{node.engine().pid}/environ").read_bytes()
    finally:
        assert node.stop() == 0
    assert "STOPPING=1" in receiver.until("STOPPING=1")
    receiver.sock.close()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit_without_a_complaint(tmp_path: Path) -> None:
    kvops = Path(sys.executable).with_name("kvops")
    unit = tmp_path / "kvops-node@.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/kvops", str(kvops)))
    named = tmp_path / "kvops-node@chat.service"
    named.write_text(unit.read_text())
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(named)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in checked.stderr.splitlines() if "kvops-node" in line]
    assert (checked.returncode, complaints) == (0, [])


def test_the_unit_waits_longer_than_a_drain() -> None:
    text = UNIT.read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)s$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > 30 + 30, "drain_timeout and the rest of an end"
    for line in ("Type=notify", "KillMode=mixed", "Restart=on-failure", "LimitCORE=0"):
        assert line in text.splitlines()
