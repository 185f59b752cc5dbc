"""Files that a run reads as it goes on: those who take part need the same."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from kvops.errors import LoadRunError, UsageError
from kvops.load import inputs, runs, scenarios
from kvops.load.pacing import Pacing
from kvops.load.spread import Address
from tests.load.driven import drive, plan
from tests.load.scripted import node, serving
from tests.load.test_workers import place, take_part

__all__ = ["place"]
CHAT = scenarios.find("chat_online")
ROWS = "time,input_tokens,output_tokens\n0,30,7\n"


@pytest.fixture
def info(tmp_path: Path) -> runs.RunInfo:
    """Of a run with a trace and a file of lengths."""
    (tmp_path / "trace.csv").write_text(ROWS)
    (tmp_path / "lengths").write_text("20\n30\n")
    pacing = Pacing(kind="trace", trace=str(tmp_path / "trace.csv"))
    options = CHAT.parse(["--prompt-tokens", f"file:{tmp_path / 'lengths'}"], pacing)
    return runs.RunInfo(
        run="r", scenario=CHAT.name, report=CHAT.report, options=options, users=1, pacing=pacing, seed=1,
        target="http://127.0.0.1:1", started_at=0.0, inputs=inputs.digests(CHAT, options, pacing),
    )  # fmt: skip


def test_the_same_files_pass(info: runs.RunInfo) -> None:
    inputs.check(CHAT, info)
    assert len(info.inputs) == 2


@pytest.mark.parametrize(
    ("name", "flag", "other"),
    [("trace.csv", "--trace", ROWS + "9,1,1\n"), ("lengths", "--prompt-tokens", "20\n31\n")],
)
def test_another_file_or_none_is_named_with_its_flag(
    info: runs.RunInfo, tmp_path: Path, name: str, flag: str, other: str
) -> None:
    file = tmp_path / name
    file.write_text(other)
    with pytest.raises(UsageError, match=rf"{flag} .*{name} is another file here") as raised:
        inputs.check(CHAT, info)
    assert "copy it" in raised.value.hint
    file.unlink()
    with pytest.raises(UsageError, match=rf"{flag} .*{name}: No such file"):
        inputs.check(CHAT, info)


def test_keys_are_each_machines_own_but_must_be_there(tmp_path: Path, info: runs.RunInfo) -> None:
    tenants = scenarios.find("noisy_tenant")
    file = tmp_path / "keys"
    file.write_text("quiet aaaa\nnoisy bbbb\n")
    options = tenants.parse(["--tenant-keys", str(file)])
    info = msgspec.structs.replace(info, options=options, pacing=Pacing(), inputs={})
    assert inputs.digests(tenants, options, Pacing()) == {}
    file.write_text("quiet cccc\nnoisy dddd\n")
    inputs.check(tenants, info)
    file.unlink()
    with pytest.raises(UsageError, match=r"--tenant-keys .*No such file"):
        inputs.check(tenants, info)


def test_who_starts_a_run_for_workers_is_told_what_they_need(info: runs.RunInfo) -> None:
    made = plan(
        "http://127.0.0.1:1", Path("."), workers=2, pacing=info.pacing, options=info.options
    )
    made = msgspec.structs.replace(made, scenario=CHAT)
    *told, last = made.notes()
    assert "kvops load worker chat_online" in last
    assert all(any(path in one for one in told) for path in info.inputs)
    assert msgspec.structs.replace(made, workers=0).notes() == []


@pytest.mark.long
def test_a_worker_with_another_trace_takes_no_part(tmp_path: Path, place: Address) -> None:
    trace, out = tmp_path / "trace.csv", tmp_path / "runs"
    trace.write_text(ROWS)
    pacing = Pacing(kind="trace", trace=str(trace))
    with serving(node) as server, ThreadPoolExecutor() as pool:
        made = plan(server.url, out, pacing=pacing, duration=None, workers=1, bind=place)
        running = pool.submit(drive, made)
        until = time.monotonic() + 30
        while not list(out.glob("*/run.json")) and time.monotonic() < until:
            time.sleep(0.05)
        trace.write_text(ROWS + "1,30,7\n")
        with pytest.raises(LoadRunError, match="is another file here"):
            take_part(place, "key")
        run, records = running.result(60)
    assert (run.info.status, records) == ("failed", [])
    assert "is another file here" in run.info.reason
