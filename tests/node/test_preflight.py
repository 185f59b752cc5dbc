"""What is refused before a port is bound, from files and settings alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError, NodeStartError
from kvops.machine import Memory
from kvops.node import preflight
from kvops.node.preflight import check_memory

MIB = 2**20


def config(**sections: Any) -> NodeConfig:
    return NodeConfig.model_validate({"runtime": {"device": "cpu"}} | sections)


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB are left in it, whatever the machine has."""
    monkeypatch.setattr(preflight, "host_memory", lambda: Memory(128 * MIB, 64 * MIB))


@pytest.mark.usefixtures("container")
def test_the_limits_of_the_container_count(tiny_model: Path) -> None:
    check_memory(config(kv_cache={"bytes": "16MiB"}), tiny_model)
    with pytest.raises(NodeStartError, match=r"KV pool 1\.0 GiB .* exceed the 64\.0 MiB") as caught:
        check_memory(config(), tiny_model)
    assert "lower kv_cache.bytes to at most 63MiB" in caught.value.hint


@pytest.mark.usefixtures("container")
def test_activations_count(tiny_model: Path) -> None:
    runtime = {"device": "cpu", "max_batched_tokens": 65536}
    with pytest.raises(NodeStartError, match=r"activations 5\d\.\d MiB"):
        check_memory(config(kv_cache={"bytes": "16MiB"}, runtime=runtime), tiny_model)


@pytest.mark.usefixtures("container")
def test_only_what_cannot_start_is_refused(tiny_model: Path) -> None:
    """`auto` may come to a byte a number: the engine knows, and counts again."""
    fits = {"kv_cache": {"blocks": 17_000, "dtype": "float32"}}
    with pytest.raises(NodeStartError):
        check_memory(config(**fits), tiny_model)
    check_memory(config(kv_cache={"blocks": 17_000}), tiny_model)


@pytest.mark.parametrize(
    ("cache", "words"),
    [
        ({"bytes": 1000}, "kv_cache.bytes = 1000 B: the pool holds 0 blocks, the least is 2"),
        ({"bytes": 3000, "block_size": 32}, "the least is 2"),
    ],
)
def test_a_pool_that_serves_nobody_is_refused(
    cache: dict[str, Any], words: str, tiny_model: Path
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_memory(config(kv_cache=cache), tiny_model)
    assert "raise kv_cache.bytes to at least" in caught.value.hint


def test_looking_needs_no_torch(tiny_model: Path) -> None:
    code = """
import sys
from pathlib import Path
from kvops.config.schema import NodeConfig
from kvops.node.preflight import check_memory, check_model
check_model(NodeConfig(), Path(sys.argv[1]))
check_memory(NodeConfig(), Path(sys.argv[1]))
print("torch" in sys.modules, "numba" in sys.modules)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == ["False", "False"]
