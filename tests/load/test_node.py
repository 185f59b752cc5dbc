"""The scenarios against our own node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvops.load import server_samples
from kvops.load.client import Client
from kvops.load.injection import expectations
from kvops.load.records import read_server
from tests.harness import RunningNode


def load(node: RunningNode, *args: str, timeout: float = 300) -> tuple[int, Any]:
    result = node.kvops("load", "run", *args, "--node", node.name, "--json", timeout=timeout)
    assert result.stdout.startswith("{"), result.stderr
    return result.returncode, json.loads(result.stdout)


def test_injections_leave_our_node_unharmed(tiny_node: RunningNode) -> None:
    code, report = load(tiny_node, "oversize_injection", "--seed", "1")
    assert code == 0, report["verdict"]
    assert [case["case"] for case in report["report"]["cases"]] == list(expectations())
    before, after = (report["run"][when]["progress"]["value"] for when in ("before", "after"))
    assert after["steps"] > before["steps"]
    assert after["engine_restarts"] == before["engine_restarts"]
    assert after["invariant_violations"] == 0
    assert tiny_node.token not in json.dumps(report)


def test_a_random_model_recalls_nothing_and_that_is_said(tiny_node: RunningNode) -> None:
    code, report = load(
        tiny_node, "needle_recall", "--lengths", "300", "--depths", "0,100", "--seed", "1"
    )
    assert code == 1
    assert (report["report"]["found"], report["report"]["n"]) == (0, 2)
    assert report["summary"]["errors"] == {"wrong_answer": 2}
    assert report["summary"]["prompt_tokens"] == pytest.approx(300, rel=0.02), (
        "only the control is as expected"
    )


def test_ramp_counts_what_the_node_counts(tiny_node: RunningNode) -> None:
    args = ("--users", "2", "--step-seconds", "3", "--prompt-tokens", "60", "--max-tokens", "100")
    code, report = load(tiny_node, "ramp", *args)
    before, after = (report["run"][when]["traffic"]["value"] for when in ("before", "after"))
    total = report["summary"]
    assert code == 0, report["verdict"]
    assert total["failed"] == 0
    samples = read_server(Path(report["folder"]))
    made = [one.generation_tokens for one in samples if one.generation_tokens is not None]
    assert len(made) == len(samples) >= 3
    assert made == sorted(made)
    assert before["generation_tokens"] < made[-1] <= after["generation_tokens"]
    assert max(one.running or 0 for one in samples) >= 1, "they were taken during the load"
    if not total["cancelled"]:
        assert after["generation_tokens"] - before["generation_tokens"] == total["output_tokens"]
        assert after["prompt_tokens"] - before["prompt_tokens"] == total["prompt_tokens"]


@pytest.mark.parametrize("with_control", [True, False])
def test_our_node_tells_the_same_by_snapshot_and_by_metrics(
    tiny_node: RunningNode, with_control: bool
) -> None:
    body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    body["model"] = httpx.get(tiny_node.url + "/v1/models").json()["data"][0]["id"]
    httpx.post(tiny_node.url + "/v1/completions", json=body, timeout=30).raise_for_status()
    control = tiny_node.control_url if with_control else None
    take = server_samples.source(Client(tiny_node.url), control, tiny_node.token)
    assert take is not None
    sample = take()
    truth = server_samples.of_snapshot(tiny_node.snapshot(), 0.0)
    assert sample is not None
    told = ("kv_total", "kv_used", "kv_cached", "prompt_tokens", "generation_tokens", "running", "waiting",
            "requests", "preemptions", "evictions", "engine_restarts", "prefix_query_tokens")  # fmt: skip
    assert {name: getattr(sample, name) for name in told} == {
        name: getattr(truth, name) for name in told
    }
    assert None not in [getattr(sample, name) for name in told]
    assert sample.generation_tokens >= 4  # type: ignore[operator]


@pytest.mark.model
def test_the_default_model_recalls_every_needle(smol_node: RunningNode) -> None:
    code, report = load(
        smol_node, "needle_recall", "--lengths", "256,512", "--depths", "0,50,100", "--seed", "11"
    )
    assert code == 0, report["verdict"]
    assert (report["report"]["found"], report["report"]["n"]) == (6, 6)
    assert not any("off their asked length" in note for note in report["verdict"]["notes"]), (
        "prompts are within 2 % of their asked length, by the node's own count"
    )
