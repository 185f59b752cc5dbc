"""Where the control plane listens: at one address that clients name, and said so where others can hear the token."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.datastructures import Headers

from kvops.config.load import check_document, load_document
from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError, Forbidden
from kvops.node.api.gate import by_admin_token
from kvops.node.auth import AdminToken
from kvops.node.check import run_checks
from tests.harness import start_node

TOKEN = cast(AdminToken, SimpleNamespace(accepts=lambda header: True))


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "0", "0x0", "0.0", "::ffff:0.0.0.0", "0:0:0:0:0:0:0:0"]
)
def test_every_address_is_none(host: str) -> None:
    document = {"server": {"control_host": host}}
    for check in (load_document, check_document):
        with pytest.raises(ConfigError, match=r"server\.control_host = .*not 0\.0\.0\.0 or ::"):
            check(document, "file node.yaml")


@pytest.mark.parametrize(
    ("host", "named", "known"),
    [
        ("127.0.0.1", "localhost:9", True),
        ("127.0.0.1", "[::1]:9", True),
        ("127.0.0.2", "127.0.0.2:9", True),
        ("LocalHost", "localhost:9", True),
        ("localhost", "127.0.0.1:9", True),
        ("Node.Invalid", "node.invalid:9", True),
        ("192.0.2.1", "192.0.2.1:9", True),
        ("fd00:0::1", "[fd00::1]:9", True),
        ("192.0.2.1", "localhost:9", False),
        ("127.0.0.1", "attacker.example:9", False),
        ("127.0.0.1", "127.0.0.1:8", False),
        ("127.0.0.1", "127.0.0.1", False),
    ],
)
def test_what_it_may_be_called(host: str, named: str, known: bool) -> None:
    admit = by_admin_token(TOKEN, host, 9)
    scope: dict[str, Any] = {"state": {}}
    if known:
        admit(scope, Headers({"host": named}))
    else:
        with pytest.raises(Forbidden):
            admit(scope, Headers({"host": named}))
    assert scope["state"] == ({"operator": True} if known else {})


@pytest.mark.parametrize(("host", "status"), [("127.0.0.2", "pass"), ("192.0.2.1", "warn")])
def test_off_loopback_is_a_warning(host: str, status: str, kvops_home: Path) -> None:
    config = NodeConfig.model_validate({"server": {"control_host": host, "control_port": 0}})
    (found,) = [one for one in run_checks(config) if one.check == "control plane"]
    assert found.status == status
    assert ("clear text" in found.detail) is (status == "warn")


def test_the_command_line_finds_a_node_at_another_loopback_address(
    tiny_model: Path, tmp_path: Path
) -> None:
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 64},
        "runtime": {"threads": 1},
        "server": {"control_host": "127.0.0.2"},
    }
    node = start_node(tmp_path, settings, name="two")
    try:
        assert node.control_url.startswith("http://127.0.0.2:")
        status = node.kvops("node", "status")
        assert "ready" in status.stdout, status.stdout + status.stderr
    finally:
        assert node.stop() == 0
