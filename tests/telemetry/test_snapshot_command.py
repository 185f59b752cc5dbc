"""`kvops snapshot` against a real node, and what it says when there is none."""

from __future__ import annotations

from pathlib import Path

from kvops.telemetry.snapshot import Known, decode_snapshot
from tests.harness import RunningNode, run_kvops


def test_text_and_json_of_the_only_node(tiny_node: RunningNode) -> None:
    text = tiny_node.kvops("snapshot")
    assert text.returncode == 0, text.stderr
    for word in (
        "tiny",
        "ready",
        "weights",
        "KV pool",
        "of 128 blocks",
        "running",
        "Latency",
        "Traffic",
    ):
        assert word in text.stdout
    raw = tiny_node.kvops("snapshot", "--node", "tiny", "--json")
    snapshot = decode_snapshot(raw.stdout.encode())
    assert snapshot.node == "tiny"
    assert isinstance(snapshot.kv, Known)
    assert snapshot.kv.value.total_blocks == 128


def test_a_url_needs_its_control_plane_and_token(tiny_node: RunningNode, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(tiny_node.token + "\n")
    asked = ("snapshot", "--node", tiny_node.url)
    env = {"KVOPS_HOME": str(tmp_path)}
    unknown = run_kvops(*asked, env=env)
    assert unknown.returncode == 2
    assert "--control-url" in unknown.stderr
    assert "127.0.0.1:8001" not in unknown.stderr
    refused = run_kvops(*asked, "--control-url", tiny_node.control_url, env=env)
    assert refused.returncode == 2
    assert "--token-file" in refused.stderr
    known = run_kvops(
        *asked, "--control-url", tiny_node.control_url, "--token-file", str(token), env=env
    )
    assert known.returncode == 0, known.stderr
    assert tiny_node.token not in known.stdout


def test_exit_codes_without_a_node(tmp_path: Path) -> None:
    env = {"KVOPS_HOME": str(tmp_path)}
    for args in (
        (),
        ("--node", "nobody"),
        ("--node", "http://127.0.0.1:1", "--control-url", "http://127.0.0.1:1"),
    ):
        result = run_kvops("snapshot", *args, env=env)
        assert result.returncode == 4, result.stderr
        assert result.stdout == ""
        assert "next:" in result.stderr
    assert run_kvops("snapshot", "--node", "../x", env=env).returncode == 2


def test_a_local_node_by_its_url(tiny_node: RunningNode) -> None:
    result = tiny_node.kvops("snapshot", "--node", tiny_node.url)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("tiny  ready")
    bare = tiny_node.kvops("snapshot", "--node", tiny_node.url.removeprefix("http://"))
    assert bare.returncode == 2
    assert f"add http://, as in {tiny_node.url}" in bare.stderr


def test_a_pipe_cuts_nothing(tiny_node: RunningNode) -> None:
    narrow = run_kvops("snapshot", env={"KVOPS_HOME": str(tiny_node.home), "COLUMNS": "40"})
    assert narrow.returncode == 0, narrow.stderr
    assert "of 128 blocks" in narrow.stdout
    assert "…" not in narrow.stdout
    assert "TENANT" not in narrow.stdout or "anonymous" in narrow.stdout
