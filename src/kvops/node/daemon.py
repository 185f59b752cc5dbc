"""The node daemon: builds everything once, serves until told to stop, and leaves nothing behind.

Order of an end: not ready, no new requests, wait for those in flight, a terminal error for the rest, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import structlog

from kvops import __version__, failpoints, paths, registry
from kvops.config.load import LoadedConfig
from kvops.config.settings import Settings
from kvops.models.manifest import Manifest
from kvops.models.store import StoredModel, check_unchanged
from kvops.node import ending
from kvops.node.access import Access
from kvops.node.admission import Admission
from kvops.node.alerting import alerting_of
from kvops.node.api.app import control_plane, data_plane
from kvops.node.audit import AuditLog, audited
from kvops.node.auth import AdminToken, TenantSalts
from kvops.node.check import check_start
from kvops.node.listener import CONTROL_CONNECTIONS, Listener, bind, url_of
from kvops.node.logs import logged, on_loop_failure
from kvops.node.meter import Meter
from kvops.node.notify import Notifier
from kvops.node.orders import start_message
from kvops.node.preflight import runs_already
from kvops.node.prompts import PromptReader
from kvops.node.quality import quality_line
from kvops.node.quarantine import Quarantine
from kvops.node.reload_parts import reload_of
from kvops.node.results import ResultStore
from kvops.node.secrecy import forbid_core_files
from kvops.node.services import Services
from kvops.node.state import NodeView
from kvops.node.supervisor import Supervisor
from kvops.node.upkeep import upkeep
from kvops.node.warmup import read_prefix_files, tokenize
from kvops.node.wire import EngineInfo
from kvops.units import format_bytes

Report = Callable[[str, str], None]
"""Called with a step of the start-up and its detail."""

_LAST_WORDS_SECONDS = 2.0
_CLOSE_SECONDS = 10.0
"""For listeners, watchers and alert delivery to end."""

log = structlog.get_logger("kvops.daemon")


def run_node(loaded: LoadedConfig, report: Report) -> None:
    """Serve until SIGTERM, SIGINT or `/control/shutdown`. Raises NodeError, ConfigError, ModelError."""
    os.umask(0o077)
    forbid_core_files()
    folder = paths.make_private(registry.node_dir(loaded.config.name))
    with _lock(folder, loaded.config.name), logged(loaded.config):
        if points := ", ".join(failpoints.armed()):
            log.warning("failpoints_on", points=points)
            report("FAILPOINTS ON", f"{points}: faults on purpose")
        model = check_start(loaded.config, report)
        with audited(loaded) as audit:
            ending.run(Daemon(loaded, model, folder, audit, report).run())


class Daemon:
    def __init__(
        self,
        loaded: LoadedConfig,
        model: StoredModel,
        folder: Path,
        audit: AuditLog,
        report: Report,
    ) -> None:
        self._notifier = Notifier.of_process()
        report = self._notifier.following(report, loaded.config.runtime.drain_timeout)
        settings = Settings(loaded)
        self._config = config = loaded.config
        self._model = model
        self._report = report
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        meter = Meter()
        self._access = Access(config.server)
        self._prefix_files = read_prefix_files(config)
        self._supervisor = Supervisor(
            start_message(loaded.config, model),
            folder,
            settings,
            on_step=meter.step_done,
            on_phase=report,
            on_lost=lambda reason: self._services.admission.engine_lost(reason),
        )
        admission = Admission(
            settings,
            self._supervisor,
            meter,
            ResultStore(settings, model.revision),
            Quarantine(folder / "quarantine.json", settings),
        )
        view = NodeView(settings, self._supervisor, admission, meter, model.name, model.revision)
        view.upkeep = lambda: upkeep(self._access.watched, audit)
        alerting = alerting_of(view, folder)
        self._services = Services(
            settings=settings,
            view=view,
            alerting=alerting,
            admission=admission,
            supervisor=self._supervisor,
            meter=meter,
            keys=self._access.keys,
            salts=TenantSalts(folder / "tenant.secret"),
            audit=audit,
            model_name=model.name,
            shut_down=self._asked_to_stop,
            reload=reload_of(
                settings, self._supervisor, admission.results, report, alerting, self._access
            ),
            started_at=time.time(),
        )
        self._token = AdminToken(registry.token_file(config.name))

    async def run(self) -> None:
        """Raises NodeStartError, ModelError, EngineDied."""
        self._handle_signals()
        listeners = self._listen()
        serving = [asyncio.create_task(listener.run_until_stopped()) for listener in listeners]
        watch = asyncio.gather(
            self._access.watch(self._services.audit), self._services.alerting.run()
        )
        reader = asyncio.create_task(asyncio.to_thread(PromptReader.load, self._model.path))
        engine = asyncio.create_task(self._run_engine(reader))
        try:
            registry.write(self._record())
            await self._serve(engine, reader, serving)
        finally:
            self._services.closing = True
            watch.cancel()
            for listener in listeners:
                listener.should_exit = True
            await _ended(asyncio.gather(*serving, watch, return_exceptions=True))
            await self._end_engine(engine)
            registry.remove(self._config.name)
            log.info("stopped")

    def _listen(self) -> list[Listener]:
        server = self._config.server
        data = bind(server.host, server.port, "server.port (--port)")
        control = bind(
            server.control_host, server.control_port, "server.control_port (--control-port)"
        )
        self._services.view.url = url_of(data, self._access.scheme)
        self._control_url = url_of(control)
        port = control.getsockname()[1]
        self._report("data plane", self._services.view.url)
        self._report("control plane", self._control_url)
        control_app = control_plane(self._services, self._token, server.control_host, port)
        listeners = {
            "data": self._access.listener(data_plane(self._services), data),
            "control": Listener(control_app, control, connections=CONTROL_CONNECTIONS),
        }
        self._access.measure(self._services.meter.registry, listeners)
        return list(listeners.values())

    async def _run_engine(self, reader: asyncio.Task[PromptReader]) -> None:
        """Listed prefixes are part of what an engine starts with, so that each restart has them too."""
        if self._prefix_files:
            services = self._services
            services.prefixes = tokenize(self._prefix_files, await reader, services.salts)
            self._supervisor.start_with(services.prefixes)
        await self._supervisor.run()

    async def _serve(
        self,
        engine: asyncio.Task[None],
        reader: asyncio.Task[PromptReader],
        serving: list[asyncio.Task[None]],
    ) -> None:
        """Load, say ready, wait for the end, drain."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            self._services.reader = await reader
            self._services.view.tokenizer_loaded = True
            ready = asyncio.create_task(self._announce())
            life = asyncio.gather(engine, self._check_files(), *serving)
            ends: set[asyncio.Future[Any]] = {stop, life}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            if life.done():
                await self._say_last_words()
                await life
            await self._drain()
        finally:
            stop.cancel()

    async def _check_files(self) -> None:
        """Hash a pulled model while the engine loads it; it is not ready before. Raises ModelCorrupt."""
        manifest = self._model.manifest
        if manifest is None:
            self._report("model not verified", "read in place: there is no manifest to hold it to")
        elif await asyncio.to_thread(self._hash_files, manifest):
            self._report("model verified", f"SHA-256 as pulled, {format_bytes(manifest.size)}")
        self._supervisor.release()

    def _hash_files(self, manifest: Manifest) -> bool:
        """False when the node was told to stop on the way."""

        def advance(_: int) -> None:
            if self._stop.is_set():
                raise _Stopped

        try:
            check_unchanged(manifest, advance)
        except _Stopped:
            return False
        return True

    async def _announce(self) -> None:
        await self._supervisor.ready.wait()
        await self._services.reload.confirm()
        log.info("ready", model=self._model.name, url=self._services.view.url)
        info = self._supervisor.info
        if info is not None:
            self._report("quality", quality_line(info, self._model))
            self._report("context length", _context(info, self._config.model.max_context_length))
        self._report("ready", f"kvops node stop --node {self._config.name} ends it")
        self._beat = asyncio.create_task(self._notifier.watch(self._services.view.progresses))

    async def _drain(self) -> None:
        admission, timeout = self._services.admission, self._drain_timeout
        log.info("stopping", in_flight=admission.in_flight)
        waits = {asyncio.create_task(event.wait()) for event in (admission.idle, self._hurry)}
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await self._say_last_words()

    @property
    def _drain_timeout(self) -> float:
        return self._services.settings.config.runtime.drain_timeout

    async def _say_last_words(self) -> None:
        """Whoever still waits gets an error, and a moment to receive it."""
        admission = self._services.admission
        admission.door = "stopping"
        admission.fail_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await admission.idle.wait()

    async def _end_engine(self, engine: asyncio.Task[None]) -> None:
        await self._supervisor.stop()
        engine.cancel()
        await asyncio.gather(engine, return_exceptions=True)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_failure)
        # SIGHUP too: whoever closes the terminal of a node ends it, and its streams, in order.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._asked_to_stop)

    def _asked_to_stop(self) -> None:
        """The first time drains, the second ends at once."""
        admission, timeout = self._services.admission, self._drain_timeout
        if self._stop.is_set():
            self._report("stopping", "now, without waiting")
            self._hurry.set()
        elif admission.in_flight:
            waiting = f"{admission.in_flight} requests in flight, at most {timeout:g} s"
            self._report("stopping", f"{waiting}; once more ends them now")
        else:
            self._report("stopping", "…")
        admission.door = "stopping"
        self._stop.set()

    def _record(self) -> registry.NodeRecord:
        return registry.NodeRecord(
            name=self._config.name,
            pid=os.getpid(),
            pid_created=psutil.Process().create_time(),
            url=self._services.view.url,
            control_url=self._control_url,
            model=self._model.name,
            started_at=self._services.started_at,
            version=__version__,
            api_keys_file=self._access.keys_file,
        )


async def _ended(tasks: asyncio.Future[Any]) -> None:
    """Wait for what was told to end. A node that is to stop stops, whatever a defect keeps."""
    _, late = await asyncio.wait({tasks}, timeout=_CLOSE_SECONDS)
    if late:
        log.error("not_ended_in_time", seconds=_CLOSE_SECONDS)


class _Stopped(Exception):
    """There is no node to hash files for any more."""


def _context(info: EngineInfo, asked: int | None) -> str:
    """What a request may hold, and what set that bound."""
    wanted = info.spec.max_context_length if asked is None else asked
    if info.max_model_len < wanted:
        origin = "the model's" if asked is None else "model.max_context_length"
        return f"{info.max_model_len} tokens: the pool holds no more ({origin}: {wanted})"
    return f"{info.max_model_len} tokens, {'as the model' if asked is None else 'as set'}"


@contextlib.contextmanager
def _lock(folder: Path, name: str) -> Iterator[None]:
    """One process a node. Raises NodeStartError."""
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise runs_already(name) from None
        yield
