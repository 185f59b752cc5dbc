"""The process of a node without a model: the real daemon, over a scripted engine, with faults before its two planes.

Runs in a process of its own (fork server), so what is replaced here is replaced for it alone.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from kvops import paths, registry
from kvops.config.load import LoadedConfig, load_document
from kvops.models.store import StoredModel
from kvops.node import daemon as node_daemon
from kvops.node import supervisor as node_supervisor
from kvops.node.api.app import control_plane, data_plane
from kvops.node.audit import audited
from kvops.node.daemon import Daemon
from kvops.node.logs import logged
from kvops.node.meter import Meter
from kvops.node.services import Services
from kvops.testing import wiring
from kvops.testing.between import INFERENCE, Between, Fault
from kvops.testing.child import ScriptedChild
from kvops.testing.words import MODEL, REVISION, write_model

NAME = "faulty"
CRASH_PATIENCE = 5.0
FAST_TTFT = 0.02
"""Of the real one: what a node tells that counts a role as a token."""


@dataclass(frozen=True)
class Order:
    """What to start. `settings` by dotted key, on top of those of `sound_settings`."""

    home: Path
    defects: frozenset[str]
    token: str
    alerts_to: Path
    """File with the URL of who is told of alerts."""
    keys_file: Path | None = None
    key: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def sound_settings() -> dict[str, Any]:
    """A small node that says no soon, so that a gate sees all of it in seconds."""
    return {
        "name": NAME,
        "model.name": MODEL,
        "server.port": 0,
        "server.control_port": 0,
        "kv_cache.blocks": 2048,
        "runtime.device": "cpu",
        "runtime.max_batch_size": 8,
        "runtime.max_queue": 16,
        "runtime.queue_timeout": 4.0,
        "runtime.request_timeout": 60.0,
        "runtime.drain_timeout": 1.0,
        "restart.budget": 1000,
        "restart.backoff": 0.05,
        "restart.backoff_max": 0.05,
        "alerts.interval": 0.5,
    }


def run(order: Order, asked: Any, ready: Any) -> None:
    """Serve until killed. `asked`: a shared counter of requests for inference; `ready`: an event."""
    threading.Thread(target=_outlive_nobody, daemon=True).start()
    for name in [name for name in os.environ if name.startswith("KVOPS_")]:
        del os.environ[name]  # the caller's, who may have a node of his own
    os.environ["KVOPS_HOME"] = str(order.home)
    os.umask(0o077)
    loaded = _loaded(order)
    folder = paths.make_private(registry.node_dir(NAME))
    paths.write_atomic(registry.token_file(NAME), order.token.encode())
    model = StoredModel(
        name=MODEL, path=write_model(order.home / MODEL), revision=REVISION, source="scripted"
    )
    with logged(loaded.config), audited(loaded) as audit:
        node = _assembled(order, loaded, asked)
        asyncio.run(node(loaded, model, folder, audit, _tells(ready)).run())


def _tells(ready: Any) -> node_daemon.Report:
    """Of the steps of a start only the last: what the planes say of it may be a defect."""

    def report(step: str, detail: str) -> None:
        if step == "ready":
            ready.set()

    return report


def _outlive_nobody() -> None:
    """Who started the node may be killed without a word."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _loaded(order: Order) -> LoadedConfig:
    """The settings that hold: a defect's, over those asked for, over the sound ones."""
    values = sound_settings() | dict(order.settings)
    values["alerts.channels"] = {"on-call": {"url_file": str(order.alerts_to)}}
    if order.keys_file is not None:
        values["server.api_keys_file"] = str(order.keys_file)
    for name in order.defects:
        values |= wiring.SETTINGS.get(name, {})
    if "ignores_quota" in order.defects:
        values = {key: value for key, value in values.items() if not key.startswith("tenant")}
    return load_document(_nested(values), "the test")


def _claimed(order: Order) -> dict[str, dict[str, Any]]:
    """What the node says of settings that a defect has changed."""
    said = sound_settings() | dict(order.settings)
    changed = {key for name in order.defects for key in wiring.SETTINGS.get(name, {})}
    if "ignores_quota" in order.defects:
        changed |= {key for key in said if key.startswith("tenant")}
    return _nested({key: said[key] for key in changed})


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return document


def _assembled(order: Order, loaded: LoadedConfig, asked: Any) -> type[Daemon]:
    """The daemon, with an engine of ours and the faults in front. Only names of this process are replaced."""
    engines: list[ScriptedChild] = []

    def child(log: Path) -> ScriptedChild:
        engines.append(ScriptedChild(log, order.defects))
        return engines[-1]

    def data(services: Services) -> ASGIApp:
        inside = _inside(order, services, engines)
        app = _before(data_plane(services), wiring.data_faults(order.defects, inside))
        return Counting(app, asked)

    def control(services: Services, *rest: Any) -> ASGIApp:
        inside = _inside(order, services, engines)
        faults = wiring.control_faults(order.defects, inside, _claimed(order))
        return _before(control_plane(services, *rest), faults)

    setattr(node_supervisor, "EngineChild", child)  # noqa: B010
    setattr(node_daemon, "data_plane", data)  # noqa: B010
    setattr(node_daemon, "control_plane", control)  # noqa: B010
    if "role_first_token" in order.defects:
        _count_roles()
    if "loses_counts" in order.defects:
        _lose_counts()
    return Daemon


def _before(app: ASGIApp, faults: list[Fault]) -> ASGIApp:
    return Between(app, faults) if faults else app


def _inside(order: Order, services: Services, engines: list[ScriptedChild]) -> wiring.Inside:
    log = structlog.get_logger("kvops.engine")

    async def crash() -> None:
        engines[-1].crash()
        async with asyncio.timeout(CRASH_PATIENCE):
            await _until(lambda: services.supervisor.state != "ready")
            await _until(lambda: services.supervisor.state == "ready")

    def tell(level: str, event: str, **facts: Any) -> None:
        getattr(log, level)(event, **facts)

    return wiring.Inside(order.key, order.token, crash, tell)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def _count_roles() -> None:
    honest = Meter.first_token

    def first_token(meter: Meter, seconds: float, prompt_tokens: int) -> None:
        honest(meter, seconds * FAST_TTFT, prompt_tokens)

    setattr(Meter, "first_token", first_token)  # noqa: B010


def _lose_counts() -> None:
    honest = Meter.prompt_read
    numbers = itertools.count(1)

    def prompt_read(meter: Meter, tokens: int) -> None:
        if next(numbers) % 10:
            honest(meter, tokens)

    setattr(Meter, "prompt_read", prompt_read)  # noqa: B010


class Counting:
    """Counts requests for inference as they come in."""

    def __init__(self, app: ASGIApp, asked: Any) -> None:
        self._app, self._asked = app, asked

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and scope["method"] == "POST"
        if asks and scope["path"] in INFERENCE:
            self._asked.value += 1
        await self._app(scope, receive, send)
