"""The checks of a node's claims against a real node that has all there is to claim: tenants, deadlines, a channel."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kvops.alerts.sink import Sink, open_sink
from tests.harness import RunningNode, start_node

KEYS = {"acme": "key-of-acme", "beta": "key-of-beta"}
CLAIMS = (
    "reach.gateway", "health.truth", "resp.usage", "resp.malformed", "auth.routes", "auth.control",
    "claims.queue_bound", "claims.tenant_quota", "claims.prefix_isolation", "alerts.drill",
    "claims.retry_after", "logs.no_prompts", "logs.clean",
)  # fmt: skip


def keys_file(home: Path) -> Path:
    rows = [
        {"id": tenant, "tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        for tenant, key in KEYS.items()
    ]
    file = home / "keys.yaml"
    file.write_text(yaml.safe_dump(rows))
    file.chmod(0o600)
    return file


def url_file(home: Path, url: str) -> Path:
    file = home / "oncall.url"
    file.write_text(url)
    file.chmod(0o600)
    return file


@pytest.fixture(scope="module")
def oncall() -> Iterator[Sink]:
    with open_sink() as sink:
        yield sink


@pytest.fixture(scope="module")
def node(
    tiny_model: Path, oncall: Sink, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    home = tmp_path_factory.mktemp("claims")
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 256},
        "runtime": {
            "threads": 1, "max_batch_size": 4, "max_queue": 4,
        },
        "server": {"api_keys_file": str(keys_file(home))},
        "tenants": {"acme": {"max_running": 2, "max_waiting": 1, "kv_quota": {"blocks": 24}}},
        "alerts": {
            "interval": "0.5s",
            "channels": {"oncall": {"kind": "webhook", "url_file": str(url_file(home, oncall.url))}},
        },
    }  # fmt: skip
    running = start_node(home, settings)
    yield running
    running.stop()


def test_a_node_that_keeps_its_claims_passes_each(
    node: RunningNode, oncall: Sink, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(KEYS["beta"])
    (tmp_path / "tenants").write_text("\n".join(KEYS.values()))
    node.env |= {
        "KVOPS_GATEWAY_URL": node.url,
        "KVOPS_TENANT_KEYS_FILE": str(tmp_path / "tenants"),
    }
    out = tmp_path / "verify.json"
    only = [part for check in CLAIMS for part in ("--only", check)]
    done = node.kvops(
        "verify", "--node", node.name, "--profile", "golive", "--api-key-file", str(tmp_path / "key"),
        "--json", str(out), *only, timeout=170,
    )  # fmt: skip
    checks = {check["id"]: check for check in json.loads(out.read_text())["checks"]}
    assert {
        i: (c["verdict"], c["observed"]) for i, c in checks.items() if c["verdict"] != "pass"
    } == {}, done.stderr
    assert set(checks) == set(CLAIMS)
    assert done.returncode == 0
    assert checks["alerts.drill"]["evidence"]["nonce"] in oncall.seen
    assert checks["claims.tenant_quota"]["evidence"]["seen"]["over kv_quota"] == "429 kv_quota"
    hits = checks["claims.prefix_isolation"]["evidence"]["cached_tokens"]
    assert set(hits["other_tenant"]) == {0}
    assert min(hits["same_tenant"]) > 0
