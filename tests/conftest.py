"""Shared fixtures: a home of one's own, a tiny model, the default model pulled once, and running nodes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import RunningNode, run_kvops, start_node
from tests.tiny import make_tiny_model

REPO = Path(__file__).parent.parent
MODEL_HOME = REPO / ".cache" / "home"

# Two cores: one thread a process keeps tests that start several engines from fighting.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Kernels are compiled once for all tests, although each has a home of its own.
os.environ.setdefault("NUMBA_CACHE_DIR", str(REPO / ".cache" / "numba"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the variants that take minutes")


LONGEST = (
    "tests/test_readme.py",  # compiles what nodes use while the next compiles the rest
    "tests/engine/test_kernels.py",
    "tests/cli/test_demo.py",
    "tests/engine/test_default_model.py",
    "tests/verify/test_node.py",
    "tests/load/test_launcher.py",
    "tests/load/test_node.py",
    "tests/node/test_failpoints.py",
    "tests/cli/test_model_eval.py",
    "tests/node/test_lifecycle.py",
    "tests/node/test_shutdown.py",
    "tests/engine/test_memory.py",
    "tests/engine/test_evaluation.py",
    "tests/node/test_overlength.py",
)
"""Begun first, so that no worker is left with one of them when the other has nothing more to do."""

LONG_SECONDS = 3600
"""For one test of those that run with --long; the bound of the others is in pyproject.toml."""


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    return LONGEST.index(file) if file in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    mark = (
        pytest.mark.timeout(LONG_SECONDS)
        if config.getoption("--long")
        else pytest.mark.skip(reason="takes minutes: run with --long")
    )
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(mark)


@pytest.fixture(autouse=True)
def kvops_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a KVOPS_HOME of its own and no KVOPS_ variable of the caller's."""
    for name in [name for name in os.environ if name.startswith("KVOPS_")]:
        monkeypatch.delenv(name)
    home = tmp_path / "kvops"
    monkeypatch.setenv("KVOPS_HOME", str(home))
    return home


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def default_model_home() -> Path:
    """A KVOPS_HOME in which smollm2-135m is pulled; kept between runs, one for all that run side by side."""
    MODEL_HOME.mkdir(parents=True, exist_ok=True)
    this_run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    with (MODEL_HOME / "lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if this_run is None or lock.read() != this_run:
            result = run_kvops(
                "model", "pull", "smollm2-135m", env={"KVOPS_HOME": str(MODEL_HOME)}, timeout=600
            )
            assert result.returncode == 0, result.stderr
            lock.truncate(0)
            lock.write(this_run or "")
    return MODEL_HOME


@pytest.fixture(scope="session")
def tiny_node(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that serves the tiny random model: fast, for everything but meaning."""
    settings = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
    }
    node = start_node(tmp_path_factory.mktemp("tiny-node"), settings, name="tiny")
    yield node
    node.stop()


@pytest.fixture(scope="session")
def smol_node(
    default_model_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    """A node that serves the default model."""
    home = tmp_path_factory.mktemp("smol-node")
    (home / "data").symlink_to(default_model_home / "data")
    node = start_node(home, {"model": {"name": "smollm2-135m"}}, name="smol")
    yield node
    node.stop()
