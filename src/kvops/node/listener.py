"""Sockets and HTTP servers of the daemon: bound before anything is loaded, and bounded in how many they hold."""

from __future__ import annotations

import contextlib
import errno
import functools
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from kvops import registry
from kvops.errors import NodeError, NodeStartError
from kvops.node.api.gate import MAX_HEADER_BYTES
from kvops.node.peers import Network, Peers
from kvops.node.protocol import BoundedProtocol
from kvops.node.tls import Certificate, TlsDoor

IDLE_SECONDS = 75
DATA_CONNECTIONS = 1024
CONTROL_CONNECTIONS = 64
BACKLOG = 128
"""Also how many connections are accepted before one of them is looked at."""
_SYNTAX_BYTES = 1024
"""Of a head besides what is counted: line ends, colons, method and version."""
_SPARE_DESCRIPTORS = 256
"""For files, the engine, and what is accepted to be refused."""


def bind(host: str, port: int, field: str) -> socket.socket:
    """A socket that listens, so that nothing else can have the port. Raises NodeStartError that names it."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the protocol is named; else each answer waits 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(host, port, field) from None
        raise NodeStartError(
            f"cannot bind {host}:{port}: {error.strerror}", hint=f"check {field}"
        ) from None
    return sock


def _in_use(host: str, port: int, field: str) -> NodeStartError:
    """Names the node that holds the port, where it is one of this machine."""
    beside = "start this one beside it: kvops node start --port 0 --control-port 0 picks free ones"
    owner = next(
        (
            record.name
            for record in registry.running()
            if port in (urlsplit(record.url).port, urlsplit(record.control_url).port)
        ),
        None,
    )
    if owner is None:
        return NodeStartError(
            f"port {port} on {host} is in use, asked for as {field}",
            hint=f"stop what listens there, or {beside}",
        )
    return NodeStartError(
        f"port {port} on {host}, asked for as {field}, is that of the kvops node {owner!r}",
        hint=f"kvops node stop --node {owner}, or {beside}",
    )


def connection_bound(wanted: int) -> int:
    """At most so many connections of one listener, by what the system lets the process open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        wanted if soft == resource.RLIM_INFINITY else min(wanted, max(8, soft - _SPARE_DESCRIPTORS))
    )


def url_of(sock: socket.socket, scheme: str = "http") -> str:
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Listener(uvicorn.Server):
    """A server whose signals are the daemon's and whose socket was bound before."""

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        *,
        connections: int = DATA_CONNECTIONS,
        networks: Sequence[Network] = (),
        certificate: Certificate | None = None,
        grace: int = 2,
    ) -> None:
        self.peers = Peers(connection_bound(connections), networks)
        protocol = functools.partial(BoundedProtocol, peers=self.peers)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol if certificate is None else _secured(protocol, certificate),  # type: ignore[arg-type]
                backlog=BACKLOG,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=grace,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES + _SYNTAX_BYTES,
            )
        )
        self._sock = sock

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until_stopped(self) -> None:
        """Raises NodeError when it cannot go on: a node without one of its planes is none."""
        try:
            await self.serve(sockets=[self._sock])
        except OSError as error:
            raise NodeError(f"a listener of the node failed: {error.strerror or error}") from None


def _secured(
    protocol: Callable[..., BoundedProtocol], certificate: Certificate
) -> Callable[..., TlsDoor]:
    return lambda **kwargs: TlsDoor(protocol(**kwargs), certificate)
