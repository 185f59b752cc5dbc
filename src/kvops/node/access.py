"""Who gets to the data plane: its keys, networks and certificate, and the watch over the files that they come from."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from kvops.config.schema import NodeConfig, Server
from kvops.node.audit import AuditLog
from kvops.node.auth import Identifies, KeyRing, keys_file, load_keys
from kvops.node.keys.differences import differences
from kvops.node.keys.file import read_keys
from kvops.node.listener import Listener
from kvops.node.peers import Peers
from kvops.node.tls import Certificate
from kvops.node.watched import Facts, WatchedFiles


class Access:
    """Raises ConfigError for keys or a certificate that cannot be used."""

    def __init__(self, server: Server) -> None:
        self.watched: list[WatchedFiles] = []
        self.networks = server.allow_networks
        self._peers: Peers | None = None
        self.certificate = self._load_certificate(server)
        file = keys_file(server.api_keys_file)
        self.keys_file = None if file is None else str(file.absolute())
        self.keys = self._load_keys(file)

    def listener(self, app: ASGIApp, sock: socket.socket) -> Listener:
        """Of the data plane."""
        made = Listener(app, sock, networks=self.networks, certificate=self.certificate)
        self._peers = made.peers
        return made

    # New settings while the node runs (kvops.node.reload.Part).

    def check(self, config: NodeConfig) -> None:
        pass

    def take(self, config: NodeConfig) -> None:
        """Networks hold for who connects from now on."""
        self.networks = config.server.allow_networks
        if self._peers is not None:
            self._peers.networks = self.networks

    async def watch(self, audit: AuditLog) -> None:
        """Until cancelled: what changes on disk is in force within a second."""
        if self._peers is not None:
            self._peers.on_refused = lambda code, address: audit.refused_stranger(
                code, client=address
            )
        for files in self.watched:
            files.on_change = lambda change: audit.action(
                f"reload {change.what}",
                change.who,
                before=change.before,
                after=change.after,
                **change.facts,
            )
        await asyncio.gather(*(files.run() for files in self.watched))

    def measure(self, registry: CollectorRegistry, listeners: Mapping[str, Listener]) -> None:
        """Show it all on `/metrics`; `listeners` by the name of their plane."""
        registry.register(_AccessCollector(self, listeners))

    def _load_certificate(self, server: Server) -> Certificate | None:
        cert, key = server.tls.cert, server.tls.key
        if cert is None or key is None:
            return None
        certificate = Certificate(cert, key)
        self.watched.append(WatchedFiles("certificate", certificate.files, certificate.reload))
        return certificate

    @property
    def scheme(self) -> str:
        return "http" if self.certificate is None else "https"

    def _load_keys(self, file: Path | None) -> Identifies:
        if file is None:
            return load_keys(None)
        ring = KeyRing([])

        def reload() -> Facts:
            before, after = ring.keys, read_keys(file)
            ring.replace(after)
            return differences(before, after)

        self.watched.append(WatchedFiles("api_keys", (file,), reload))
        reload()  # after the watch began, so that no change falls in between
        return ring


class _AccessCollector(Collector):
    def __init__(self, access: Access, listeners: Mapping[str, Listener]) -> None:
        self._access = access
        self._listeners = listeners

    def collect(self) -> Iterator[Metric]:
        yield from self._connections()
        yield from self._files()
        if isinstance(self._access.keys, KeyRing):
            yield self._keys(self._access.keys)

    def _keys(self, ring: KeyRing) -> Metric:
        now = time.time()
        expired = sum(key.expired(now) for key in ring.keys)
        family = GaugeMetricFamily("kvops_api_keys", "API keys in force.", labels=["state"])
        family.add_metric(["active"], len(ring.keys) - expired)
        family.add_metric(["expired"], expired)
        return family

    def _files(self) -> Iterator[Metric]:
        stale = GaugeMetricFamily(
            "kvops_file_stale",
            "1 while what a watched file says now could not be put in force.",
            labels=["file"],
        )
        reloads = CounterMetricFamily(
            "kvops_file_reloads", "Watched files read again.", labels=["file", "outcome"]
        )
        for watched in self._access.watched:
            stale.add_metric([watched.what], float(watched.fault is not None))
            reloads.add_metric([watched.what, "done"], watched.reloads)
            reloads.add_metric([watched.what, "failed"], watched.failures)
        yield stale
        yield reloads

    def _connections(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("kvops_connections", "Connections held.", labels=["plane"])
        refused = CounterMetricFamily(
            "kvops_connections_refused", "Connections refused.", labels=["plane", "reason"]
        )
        for plane, listener in self._listeners.items():
            held.add_metric([plane], len(listener.server_state.connections))
            for reason, count in listener.peers.refused.items():
                refused.add_metric([plane, reason], count)
        yield held
        yield refused
