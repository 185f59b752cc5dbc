"""A node without a model on free loopback ports, sound or broken in named ways, for as long as a block lasts."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kvops.registry import NodeRecord
from kvops.telemetry.targets import Target
from kvops.testing.defects import BY_NAME, check_names
from kvops.testing.process import NAME, Order, run
from kvops.testing.receiver import receiver

TOKEN = "admin-token-of-the-node-that-is-broken-on-purpose"
KEY = "client-key-of-tenant-alpha"
OTHER_KEY = "client-key-of-tenant-beta"
TENANTS = {"alpha": KEY, "beta": OTHER_KEY}
"""Key by tenant, on a node with keys."""
BETA = {"max_running": 2, "max_waiting": 2, "kv_quota": {"blocks": 160}}
"""What tenant beta may have; alpha has no bound of its own."""
REMARKS = ("no_limit", "no_reuse")
"""Defects that the gate only remarks on."""
_READY_SECONDS = 30.0
_LOOK_SECONDS = 0.5
"""Between looks at whether the process still lives."""

_servers = multiprocessing.get_context("forkserver")
_servers.set_forkserver_preload(["kvops.testing.preload"])


@dataclass
class FaultyNode:
    defects: frozenset[str]
    keys: bool
    home: Path
    """Its KVOPS_HOME."""
    url: str = ""
    control_url: str = ""
    pid: int = 0
    told: list[dict[str, Any]] = field(default_factory=list)
    """Alerts that its webhook was sent."""
    _asked: Any = field(default=None, repr=False)

    @property
    def token(self) -> str:
        return TOKEN

    @property
    def log_file(self) -> Path:
        return self.home / "state" / "nodes" / NAME / "node.log"

    @property
    def tenant_keys_file(self) -> Path:
        """The keys of both tenants, a line each (KVOPS_TENANT_KEYS_FILE); only on a node with keys."""
        return self.home / "tenant-keys"

    @property
    def asked(self) -> int:
        """Requests for inference that came in."""
        return int(self._asked.value)

    def target(self, *, control: bool = True, key: bool = True) -> Target:
        """As `kvops verify` and `kvops load` take it."""
        return Target(
            name=NAME,
            url=self.url,
            control_url=self.control_url if control else None,
            token=TOKEN if control else None,
            api_key=KEY if self.keys and key else None,
        )


@contextmanager
def serve(
    *defects: str, keys: bool = False, settings: Mapping[str, Any] | None = None
) -> Iterator[FaultyNode]:
    """A node in a process of its own until the block is left. `settings`: of the node, by dotted key.

    With `keys` it asks for KEY or OTHER_KEY, of two tenants. Raises UsageError for a name that is no defect.
    """
    names = check_names(defects, (*BY_NAME, *REMARKS))
    home = Path(tempfile.mkdtemp(prefix="kvops-faulty-"))
    node = FaultyNode(names, keys, home, _asked=_servers.Value("l", 0))
    try:
        with receiver(node.told) as url:
            _private(home / "alert-url", url)
            with _running(_order(node, settings or {}), node):
                yield node
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _running(order: Order, node: FaultyNode) -> Iterator[None]:
    ready = _servers.Event()
    process = _servers.Process(target=run, args=(order, node._asked, ready), daemon=True)
    process.start()
    try:
        record = _wait_ready(node.home, process, ready)
        node.url, node.control_url, node.pid = record.url, record.control_url, record.pid
        yield
    finally:
        process.kill()
        process.join()


def _order(node: FaultyNode, settings: Mapping[str, Any]) -> Order:
    home, alerts_to = node.home, node.home / "alert-url"
    if not node.keys:
        return Order(home, node.defects, TOKEN, alerts_to, settings=settings)
    rows = [
        {"id": tenant, "tenant": tenant, "sha256": hashlib.sha256(key.encode()).hexdigest()}
        for tenant, key in TENANTS.items()
    ]
    _private(node.tenant_keys_file, "".join(f"{key}\n" for key in TENANTS.values()))
    file = _private(home / "keys.yaml", yaml.safe_dump(rows))
    given = {"tenants": {"beta": BETA}} | dict(settings)
    return Order(home, node.defects, TOKEN, alerts_to, file, KEY, given)


def _private(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def _wait_ready(home: Path, process: Any, ready: Any) -> NodeRecord:
    """Raises RuntimeError with the node's log where it does not come up."""
    file = home / "state" / "nodes" / NAME / "node.json"
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until and process.is_alive():
        if ready.wait(_LOOK_SECONDS):
            return msgspec.json.decode(file.read_bytes(), type=NodeRecord)
    log = file.with_name("node.log")
    said = log.read_text() if log.exists() else "no log"
    raise RuntimeError(f"the node did not come up: {said}")
