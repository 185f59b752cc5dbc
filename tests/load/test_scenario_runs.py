"""Every scenario once for real, short: a locust process against a node without a model, judged by its own report."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvops import testing
from kvops.load import launcher, runs, scenarios
from kvops.load.reports import base, summary
from kvops.load.statistics.steadiness import LEAST_ANSWERS
from kvops.testing import FaultyNode
from tests.load import commands as load_commands

SMALL = {"runtime.max_queue": 4, "runtime.max_batch_size": 4}


@pytest.fixture(scope="module")
def node() -> Iterator[FaultyNode]:
    with testing.serve(settings=SMALL) as one:
        yield one


@pytest.fixture(autouse=True)
def home(kvops_home: Path) -> Path:
    """Runs are kept in a folder of the test's own."""
    return kvops_home


def load(
    node: FaultyNode, name: str, *options: str, users: int | None = None, duration: float | None = None,
    key: bool = True,
) -> base.RunData:  # fmt: skip
    chosen = scenarios.find(name)
    plan = launcher.Plan(
        scenario=chosen, target=node.target(key=key), options=chosen.parse(options),
        users=users or chosen.users, duration=duration or chosen.duration, seed=7,
        pacing=chosen.pacing or launcher.Pacing(),
    )  # fmt: skip
    made = launcher.run(plan, lambda _: None, threading.Event())
    assert made.info.status == "finished", made.info.reason
    return base.read(made)


def outcome(data: base.RunData) -> str:
    """A busy machine makes the client late, which is right to say and not what is looked at here."""
    verdict = summary.judge(msgspec.structs.replace(data, client=[]))
    assert summary.as_json(data)["report"] is not None
    return f"{verdict.outcome}: {' | '.join(verdict.reasons)}"


def facts(data: base.RunData) -> dict[str, Any]:
    return summary.REPORTS[data.info.report].facts(data)


def test_malformed_input(node: FaultyNode) -> None:
    data = load(node, "malformed_input")
    assert outcome(data) == "pass: "
    assert len(data.records) == 1 + 3 * len(facts(data)["cases"])
    status = {case["case"]: case["status"] for case in facts(data)["cases"]}
    assert status["content type text"] == 400, "the type was sent: else the body would be sound"


def test_long_document(node: FaultyNode) -> None:
    data = load(node, "long_document", "--lengths", "64,128", "--repeats", "5", "--max-tokens", "2")
    assert outcome(data) == "pass: "
    rows = facts(data)["lengths"]
    assert [row["length"] - row["tokens"] for row in rows] == pytest.approx([0, 0], abs=4)


def test_shared_prefix(node: FaultyNode) -> None:
    data = load(node, "shared_prefix", "--groups", "6", "--prompts", "3", "--prefix-tokens", "300")
    assert outcome(data) == "pass: "
    assert facts(data)["hit_share"] > 0.6


def test_agent_loop(node: FaultyNode) -> None:
    data = load(node, "agent_loop", "--loops", "2", "--turns", "4")
    assert outcome(data) == "pass: "
    sizes = [turn["prompt_tokens"] for turn in facts(data)["turns"]]
    assert sizes == sorted(sizes)
    assert facts(data)["reuse"] > 0.9


def test_a_loop_ends_where_its_context_is_full(node: FaultyNode) -> None:
    data = load(
        node, "agent_loop", "--loops", "1", "--turns", "12", "--tool-tokens", "900", users=1
    )
    assert outcome(data).startswith("inconclusive: ")
    assert not any(one.failed for one in data.records)
    assert 3 <= len(facts(data)["turns"]) < 6


def test_batch_offline(node: FaultyNode) -> None:
    data = load(node, "batch_offline", "--requests", "30", "--max-tokens", "8", users=4)
    assert outcome(data) == "pass: "
    assert facts(data)["output_tokens"] == 30 * 8
    assert sum(one.name == "probe" for one in data.records) == 1, (
        "four users ask once for the class"
    )


def test_chat_online_by_plain_locust(node: FaultyNode, home: Path) -> None:
    scenario = scenarios.find("chat_online").path
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(scenario),
        "--headless",
        "--only-summary",
        "-H",
        node.url,
    ]
    # Of some seeds nobody would come within so short a run.
    options = ["--think", "0.1s", "--run-time", "4s", "--max-tokens", "4", "--seed", "0"]
    control = {
        "KVOPS_CONTROL_URL": node.control_url,
        "KVOPS_ADMIN_TOKEN": node.target().token or "",
    }
    result = subprocess.run(
        [*command, *options], env=os.environ | {"KVOPS_HOME": str(home)} | control, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "INCONCLUSIVE: chat_online" in result.stderr
    data = base.read(runs.find(None))
    assert data.info.before is not None
    assert data.info.after is not None
    assert data.info.pacing.kind == "poisson"
    assert data.info.users == 1
    assert data.records
    assert all(one.t_intended is not None for one in data.records if one.name == "turn 1")
    assert outcome(data).startswith("inconclusive: ")


def test_a_trace_is_replayed_row_by_row(node: FaultyNode, tmp_path: Path) -> None:
    """Its default turns and duration would make more requests of it, and fewer."""
    rows = [(0, 50, 8), (0.4, 100, 16), (0.5, 150, 4), (0.9, 40, 8)]
    file = tmp_path / "trace.csv"
    lines = "\n".join(",".join(map(str, row)) for row in rows)
    file.write_text(f"time,input_tokens,output_tokens\n{lines}\n")
    said = load_commands.load(
        "run", "chat_online", "--node", node.url, "--trace", str(file), "--json"
    )
    assert f"{file}: 4 rows over 900 ms, one request each" in said.stderr
    records = sorted(base.read(runs.find(None)).records, key=lambda one: one.t_intended or 0.0)
    start = records[0].t_intended or 0.0
    assert [
        (
            pytest.approx((one.t_intended or 0.0) - start, abs=1e-3),
            one.asked_input,
            one.asked_output,
        )
        for one in records
    ] == rows
    assert [one.completion_tokens for one in records] == [row[2] for row in rows]
    counted = [one.prompt_tokens for one in records]
    assert counted == [pytest.approx(row[1], rel=0.05, abs=10) for row in rows]


def test_soak(node: FaultyNode) -> None:
    data = load(node, "soak", "--max-tokens", "4", "--prompt-tokens", "40", duration=3)
    assert "say nothing of drift" in outcome(data)
    answered = sum(one.expected for one in data.records)
    told = facts(data)["drifts"][0]["trend"] is not None
    after = answered - facts(data)["warm_up"]["dropped"]
    assert told == (after >= LEAST_ANSWERS), after
    assert answered >= 20


def test_whale_and_minnows(node: FaultyNode) -> None:
    data = load(
        node,
        "whale_and_minnows",
        "--phase-seconds",
        "2",
        "--max-tokens",
        "2",
        "--slo-percentile",
        "0.8",
    )
    assert outcome(data) == "pass: "
    sides = facts(data)["sides"]
    assert all(side["answered"] for side in sides)
    assert sides[2]["prompt_tokens"] / sides[2]["answered"] == pytest.approx(2000, rel=0.15)


def test_noisy_tenant_with_keys(home: Path) -> None:
    with testing.serve(keys=True) as node:
        keys = home / "keys"
        home.mkdir(exist_ok=True)
        keys.write_text(f"# by name\nquiet {testing.KEY}\nnoisy {testing.OTHER_KEY}\n")
        options = ("--tenant-keys", str(keys), "--phase-seconds", "2", "--slo-percentile", "0.8")
        data = load(node, "noisy_tenant", *options, users=9)
    assert outcome(data) == "pass: "
    assert facts(data)["sides"][2]["refused"] > 0, "the noisy tenant met its bound"
    for file in data.folder.iterdir():
        assert testing.KEY.encode() not in file.read_bytes()


def test_burst_and_recover(node: FaultyNode) -> None:
    seconds = ("--baseline-seconds", "1", "--burst-seconds", "1", "--recovery-seconds", "5")
    data = load(node, "burst_and_recover", *seconds, "--max-tokens", "2", users=40)
    assert outcome(data) == "pass: "
    assert facts(data)["overloaded"]


STORM = ("--storm-seconds", "1.5", "--settle", "1s", "--patience", "100ms")


def test_disconnect_storm(node: FaultyNode) -> None:
    data = load(node, "disconnect_storm", *STORM, users=4)
    assert outcome(data) == "pass: "
    found = facts(data)
    assert found["hung_up"] >= 10
    assert found["after"]["used"] == found["before"]["used"] == 0


def test_a_node_that_leaks_fails_the_disconnect_storm() -> None:
    with testing.serve("leaks_after_disconnect") as node:
        data = load(node, "disconnect_storm", *STORM, users=4)
    assert outcome(data).startswith("fail: ")
    assert "still" in outcome(data)


def test_ramp_to_knee(node: FaultyNode) -> None:
    """The node runs four and lets four wait: what is refused bounds it."""
    steps = ("--start", "4", "--most", "16", "--step-seconds", "0.5", "--resolution", "0.5")
    data = load(node, "ramp_to_knee", *steps, "--max-tokens", "4", "--slo-percentile", "0.8")
    assert outcome(data) == "pass: "
    found = facts(data)
    assert 4 <= found["knee"] < found["first_bad"] <= 16
    assert "queue" in found["limits"]


BURST = (
    "--baseline-seconds",
    "1",
    "--burst-seconds",
    "1",
    "--recovery-seconds",
    "4",
    "--recover-within",
    "2s",
)
BROKEN: list[tuple[str, str, tuple[str, ...], int, float | None, str]] = [
    ("malformed_input", "server_error_for_bad_json", (), 1, None, "malformed JSON"),
    ("malformed_input", "any_field", (), 1, None, "unknown field"),
    ("malformed_input", "any_model", (), 1, None, "unknown model"),
    (
        "long_document",
        "ttft_cliff",
        ("--lengths", "256,512,1024"),
        1,
        None,
        "tokens the first token takes",
    ),
    ("shared_prefix", "no_reuse", ("--groups", "2"), 2, None, "came from the cache"),
    ("agent_loop", "no_reuse", ("--loops", "2"), 2, None, "came from the cache"),
    ("batch_offline", "no_done", ("--requests", "8"), 4, None, "8 of 8 were not answered"),
    (
        "burst_and_recover",
        "no_retry_after",
        (*BURST, "--max-tokens", "2"),
        60,
        None,
        "without a Retry-After",
    ),
    (
        "burst_and_recover",
        "no_recovery",
        (*BURST, "--max-tokens", "2"),
        60,
        None,
        "back near its baseline",
    ),
    (
        "soak",
        "slows_down",
        ("--max-tokens", "4", "--least-seconds", "2s"),
        2,
        10.0,
        "first token grew",
    ),
    (
        "soak",
        "leaks_block_per_request",
        ("--max-tokens", "4", "--least-seconds", "2s"),
        2,
        15.0,
        "KV blocks in use",
    ),
    ("disconnect_storm", "leaks_block_per_request", STORM, 4, None, "blocks are still used"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "defect", "options", "users", "duration", "words"), BROKEN)
def test_a_broken_node_fails_the_scenario_that_looks_for_it(
    name: str, defect: str, options: tuple[str, ...], users: int, duration: float | None, words: str
) -> None:
    with testing.serve(defect, settings=SMALL) as broken:
        data = load(broken, name, *options, users=users, duration=duration)
    assert outcome(data).startswith("fail: "), outcome(data)
    assert words in outcome(data)


@pytest.mark.long
@pytest.mark.parametrize("name", scenarios.names())
def test_every_scenario_runs_by_plain_locust(node: FaultyNode, home: Path, name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        str(scenarios.find(name).path),
        "--headless",
        "--only-summary",
    ]
    result = subprocess.run(
        [*command, "-H", node.url, "--run-time", "5s"], env=os.environ | {"KVOPS_HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    data = base.read(runs.find(None))
    assert data.info.users == (1 if name == "chat_online" else scenarios.find(name).users)
    assert data.records
    assert not any(one.failed for one in data.records), [
        one.error for one in data.records if one.failed
    ]
