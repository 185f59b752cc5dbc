"""Tenants of a running node: their class, their places, their blocks, each without harm to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvops.telemetry.snapshot import Known, TenantUsage
from tests.harness import RunningNode, start_node
from tests.node.conftest import (
    HTTP,
    KEYS,
    error_of,
    eventually,
    eventually_idle,
    keys_file,
)

TENANTS = {
    "alice": {"class": "normal", "max_running": 1, "max_waiting": 0},
    "bob": {"class": "batch", "kv_quota": 4},
}


@pytest.fixture(scope="module")
def shared_node(
    long_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    home = tmp_path_factory.mktemp("shared")
    tenants = KEYS | {"carol": "kvk_carol_secret"}
    keys = keys_file(home, tenants)
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {"threads": 1},
        "server": {"api_keys_file": str(keys)},
        "tenants": TENANTS,
        "tenant_defaults": {"kv_quota": "50%"},
    }
    node = start_node(home, settings, name="shared")
    yield node
    assert node.stop() == 0


def ask(node: RunningNode, who: str, **fields: Any) -> httpx.Response:
    body = {
        "model": "long-llama",
        "prompt": "hello",
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": 4,
    }
    headers = {"Authorization": f"Bearer kvk_{who}_secret"}
    return HTTP.post(f"{node.url}/v1/completions", json=body | fields, headers=headers)


def usage_of(node: RunningNode, tenant: str) -> TenantUsage:
    tenants = node.snapshot().tenants
    assert isinstance(tenants, Known)
    return next(one for one in tenants.value if one.tenant == tenant)


def test_a_key_for_a_tenant_that_is_not_named_is_made_with_a_warning(
    shared_node: RunningNode,
) -> None:
    made = shared_node.kvops("keys", "create", "--tenant", "alicee")
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("kvk_")
    assert "warning: alicee is not of the tenants of shared; did you mean alice?" in made.stderr
    assert "warning" not in shared_node.kvops("keys", "create", "--tenant", "bob").stderr


def test_a_tenant_has_its_class(shared_node: RunningNode) -> None:
    above = ask(shared_node, "bob", priority="online")
    assert (above.status_code, error_of(above)["param"]) == (400, "priority")
    assert "batch" in error_of(above)["message"]
    assert ask(shared_node, "alice", priority="online").status_code == 400
    assert ask(shared_node, "alice", priority="batch").status_code == 200
    assert ask(shared_node, "carol", priority="online").status_code == 200


def test_a_tenant_out_of_places_gets_429_and_others_go_on(shared_node: RunningNode) -> None:
    body = {
        "model": "long-llama",
        "prompt": "x",
        "max_tokens": 12_000,
        "stream": True,
        "ignore_eos": True,
    }
    headers = {"Authorization": "Bearer kvk_alice_secret"}
    with HTTP.stream("POST", f"{shared_node.url}/v1/completions", json=body, headers=headers):
        eventually(lambda: usage_of(shared_node, "alice").running == 1, "alice runs")
        refused = ask(shared_node, "alice")
        assert (refused.status_code, error_of(refused)["code"]) == (429, "tenant_limit")
        assert ask(shared_node, "carol").status_code == 200
        assert ask(shared_node, "bob").status_code == 200
    eventually_idle(shared_node)
    eventually(lambda: ask(shared_node, "alice").status_code == 200, "alice has her place again")


def test_what_a_quota_can_never_hold_is_refused(shared_node: RunningNode) -> None:
    """4 blocks of 16 tokens."""
    prompt = [5] * 40
    fits = ask(shared_node, "bob", prompt=prompt, max_tokens=24)
    assert fits.json()["usage"]["completion_tokens"] == 24
    over = ask(shared_node, "bob", prompt=prompt, max_tokens=25)
    assert (over.status_code, error_of(over)["code"]) == (429, "kv_quota")
    assert "65 tokens" in error_of(over)["message"]
    assert ask(shared_node, "alice", prompt=prompt, max_tokens=25).status_code == 200
    cut = ask(shared_node, "bob", prompt=prompt, max_tokens=30, over_length="truncate_head")
    assert (cut.status_code, cut.headers["x-kvops-truncated"]) == (200, "6")
    model = ask(shared_node, "bob", prompt=[5] * 20_000, max_tokens=1)
    assert (model.status_code, error_of(model)["code"]) == (400, "context_length_exceeded")


def test_many_of_one_tenant_share_its_quota(shared_node: RunningNode) -> None:
    answer = ask(shared_node, "bob", prompt=[[n] * 20 for n in range(12)], max_tokens=20)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 240
    eventually_idle(shared_node)
    progress = shared_node.snapshot().progress
    assert isinstance(progress, Known)
    assert progress.value.invariant_violations == 0


def test_quotas_are_shown(shared_node: RunningNode) -> None:
    assert usage_of(shared_node, "bob").kv_quota_blocks == 4
    assert usage_of(shared_node, "alice").kv_quota_blocks is None
    text = HTTP.get(f"{shared_node.url}/metrics").text
    assert 'kvops_tenant_kv_quota_blocks{tenant="bob"} 4.0' in text
    assert 'kvops_tenant_kv_quota_blocks{tenant="alice"}' not in text
