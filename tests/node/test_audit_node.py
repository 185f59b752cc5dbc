"""What a running node audits, and what it does while it cannot."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from kvops.node.audit_verify import verify
from kvops.node.peer_uid import uid_behind
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, complete, eventually, model_of
from tests.node.test_audit import records


def test_the_kernel_names_the_user_behind_a_connection(tiny_node: RunningNode) -> None:
    port = urlsplit(tiny_node.url).port
    with socket.create_connection(("127.0.0.1", port)) as connected:
        assert uid_behind(connected.getsockname(), connected.getpeername()) == os.getuid()
    assert uid_behind(("192.0.2.1", 1), ("127.0.0.1", port)) is None


@pytest.fixture(scope="module")
def strict_node(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    """Takes no request that it cannot audit."""
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
        "audit": {"on_full": "fail_closed"},
    }
    node = start_node(tmp_path_factory.mktemp("strict"), settings, name="strict")
    yield node
    assert node.stop() == 0
    assert verify(folder_of(node)).whole
    assert records(folder_of(node))[-1]["what"] == "stopped"


def folder_of(node: RunningNode) -> Path:
    return node.home / "state" / "audit" / node.name


def told(node: RunningNode, request_id: str) -> list[dict[str, Any]]:
    return [row for row in records(folder_of(node)) if row.get("request_id") == request_id]


def test_a_request_is_told_when_it_is_taken_and_when_it_ended(strict_node: RunningNode) -> None:
    answer = complete(strict_node, max_tokens=3)
    request_id = answer.headers["x-request-id"]
    eventually(lambda: len(told(strict_node, request_id)) == 2, "both lines", 60)
    taken, ended = told(strict_node, request_id)
    usage = answer.json()["usage"]
    assert (taken["event"], taken["route"]) == ("accepted", "/v1/completions")
    assert (taken["tenant"], taken["client"]) == ("default", "127.0.0.1")
    assert (taken["prompt_tokens"], taken["max_tokens"]) == (usage["prompt_tokens"], 3)
    assert (ended["event"], ended["outcome"]) == ("finished", "length")
    assert ended["output_tokens"] == 3


def test_a_refusal_is_told_with_its_code_and_never_with_a_path(strict_node: RunningNode) -> None:
    refused = complete(strict_node, max_tokens=0)
    lost = HTTP.get(f"{strict_node.url}/secret-place")
    ids = [answer.headers["x-request-id"] for answer in (refused, lost)]
    eventually(lambda: all(told(strict_node, at) for at in ids), "both refusals", 60)
    (first,), (second,) = (told(strict_node, at) for at in ids)
    assert (first["event"], first["code"]) == ("refused", "invalid_request")
    assert (second["code"], second["status"]) == ("not_found", 404)
    assert "route" not in second


def test_what_is_no_http_is_told_too(strict_node: RunningNode) -> None:
    parts = urlsplit(strict_node.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 400")

    def refusals() -> list[dict[str, Any]]:
        found = records(folder_of(strict_node))
        return [row for row in found if row["event"] == "refused" and "request_id" not in row]

    eventually(refusals, "it is told", 60)
    assert [(row["code"], row["client"]) for row in refusals()] == [
        ("invalid_request", "127.0.0.1")
    ]


def test_an_act_is_told_with_who_and_what(strict_node: RunningNode) -> None:
    assert strict_node.control("POST", "/control/flush").status_code == 200
    snapshots = strict_node.control("GET", "/control/snapshot")
    assert snapshots.status_code == 200

    def acts() -> list[dict[str, Any]]:
        return [row for row in records(folder_of(strict_node)) if row.get("what") == "flush"]

    eventually(acts, "the act is told", 60)
    (act,) = acts()
    assert act["who"] == f"control token, uid {os.getuid()}"
    assert act["before"] == act["after"]
    assert records(folder_of(strict_node))[0]["what"] == "start"


def test_an_act_is_told_with_what_it_was_on(strict_node: RunningNode) -> None:
    """What the node knows by name, never the words of whoever asked."""
    rule = {"rule": "QueueLong", "seconds": 60, "reason": "a reason", "by": "somebody"}
    assert strict_node.control("POST", "/control/alerts/silence", json=rule).status_code == 200
    rule |= {"rule": "invented"}
    assert strict_node.control("POST", "/control/alerts/silence", json=rule).status_code == 400
    unknown = {"request_id": "made-up"}
    assert strict_node.control("POST", "/control/cancel", json=unknown).status_code == 200
    shape = {"id": "0" * 12}
    assert strict_node.control("POST", "/control/quarantine/clear", json=shape).status_code == 404
    file = {
        "document": {"limits": {"n": 3}, "model": {"name": str(strict_node.home)}},
        "author": "me",
    }
    applied = strict_node.control("POST", "/control/reload", json=file).json()

    def acts(what: str) -> list[dict[str, Any]]:
        return [row for row in records(folder_of(strict_node)) if row.get("what") == what]

    eventually(lambda: acts("reload"), "the last of them is told", 60)
    done, refused = acts("alerts/silence")
    assert (done["rule"], done["seconds"], done["status"]) == ("QueueLong", 60, 200)
    assert (refused.get("rule"), refused["status"]) == (None, 400)
    (cancel,), (clear,) = acts("cancel"), acts("quarantine/clear")
    assert (cancel["cancelled"], "request_id" in cancel) == (False, False)
    assert (clear["shape"], clear["status"]) == ("0" * 12, 404)
    assert clear["code"] == "shape_not_found"
    (reload,) = acts("reload")
    assert reload["version"] == applied["version"] == 2
    text = str(records(folder_of(strict_node)))
    assert not any(words in text for words in ("a reason", "somebody", "invented", "made-up"))


def test_a_full_disk_closes_a_strict_node_until_it_has_room(strict_node: RunningNode) -> None:
    """A bound on the files' size stands for the disk."""
    pid, model = strict_node.process.pid, model_of(strict_node)
    unbounded = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, unbounded[1]))
    body = {"model": model, "prompt": "hello", "max_tokens": 1}

    def status() -> int:
        return HTTP.post(f"{strict_node.url}/v1/completions", json=body).status_code

    try:
        eventually(lambda: status() == 503, "requests are refused", 60)
        answer = HTTP.post(f"{strict_node.url}/v1/completions", json=body)
        assert answer.json()["error"]["code"] == "audit_unavailable"
        assert answer.headers["retry-after"]
        assert HTTP.get(f"{strict_node.url}/livez").status_code == 200
        upkeep = strict_node.snapshot().upkeep
        assert isinstance(upkeep, Known)
        assert upkeep.value.audit_failing
        assert "kvops_audit_failing 1.0" in HTTP.get(f"{strict_node.url}/metrics").text
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unbounded)
    eventually(lambda: status() == 200, "requests are taken again", 60)
    assert "kvops_audit_dropped_total 0.0" in HTTP.get(f"{strict_node.url}/metrics").text
    shown = strict_node.kvops("audit", "verify", "--node", strict_node.name)
    assert shown.returncode == 0, shown.stderr
