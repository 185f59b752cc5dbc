"""TLS of the data plane: the certificate, read again when its files change, and the handshake, bounded like all else.

A connection counts and is checked from its first byte, not from the end of its handshake as asyncio's servers do it;
and each handshake takes the certificate that is in force then, which a server with one context could not change whole.
"""

from __future__ import annotations

import asyncio
import ssl
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from kvops.errors import ConfigError, RequestError
from kvops.node.protocol import SEND_SECONDS, SPARED_SECONDS, BoundedProtocol
from kvops.paths import open_regular

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HANDSHAKE_SECONDS = 10.0


class Certificate:
    """A chain and its key. Raises ConfigError for files that are missing, open to all, or no pair."""

    def __init__(self, cert: Path, key: Path) -> None:
        self.files = (cert, key)
        self.context = _context(cert, key)

    def reload(self) -> None:
        """For new connections. Raises ConfigError and keeps the old pair."""
        self.context = _context(*self.files)


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    _check_file(cert, "server.tls.cert")
    if _check_file(key, "server.tls.key") & 0o007:
        raise ConfigError(f"{key} is readable by everyone", hint=f"chmod 600 {key}")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password at hand OpenSSL would ask the terminal for one.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{cert} and {key} are no certificate with its key: {reason}",
            hint="give PEM files: the chain, its own certificate first, and the key without a password",
        ) from None
    return context


def _check_file(file: Path, setting: str) -> int:
    """Its mode. Raises ConfigError."""
    try:
        with open_regular(file):
            return stat.S_IMODE(file.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"cannot read {setting} = {str(file)!r}: {error.strerror}") from None


class TlsDoor(asyncio.Protocol):
    """Holds a connection until its handshake is done, then hands it to `inner`."""

    def __init__(self, inner: BoundedProtocol, certificate: Certificate) -> None:
        self._inner = inner
        self._certificate = certificate
        self._raw: asyncio.Transport | None = None
        self._early = b""
        """What came with the last bytes of the handshake."""
        self._eof = False
        self.address = ""
        self._made_at = inner.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = self._inner.below_tls = transport
        held = self._inner.connections
        held.add(self)  # type: ignore[arg-type]
        try:
            self._inner.check_peer(transport, len(held))
            self.address = self._inner.address
        except RequestError:
            self._leave()
            transport.abort()  # there is nobody yet who could read why
            return
        transport.pause_reading()  # the first bytes are those of the handshake
        tasks = self._inner.tasks
        opening = self._inner.loop.create_task(self._open(transport))
        tasks.add(opening)
        opening.add_done_callback(tasks.discard)

    def data_received(self, data: bytes) -> None:
        self._early += data

    def eof_received(self) -> None:
        self._eof = True

    def spare_for(self) -> float | None:
        """A handshake has a moment, and no more when others want to come in."""
        waited = self._inner.loop.time() - self._made_at - SPARED_SECONDS
        return waited if waited >= 0 else None

    def give_way(self) -> None:
        self._leave()
        self.shutdown()

    def shutdown(self) -> None:
        """The server is closing; a handshake is not worth waiting for."""
        if self._raw is not None:
            self._raw.abort()

    async def _open(self, transport: asyncio.Transport) -> None:
        try:
            secured = await self._inner.loop.start_tls(
                transport,
                self,
                self._certificate.context,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SEND_SECONDS,
            )
        except (OSError, EOFError):  # no TLS, another's TLS, too slow, or gone
            transport.abort()
            return
        finally:
            self._leave()
        if secured is not None and not transport.is_closing():
            self._hand_over(transport, secured)

    def _hand_over(self, transport: asyncio.Transport, secured: asyncio.Transport) -> None:
        talk = transport.get_protocol()
        assert isinstance(talk, asyncio.BufferedProtocol)
        transport.set_protocol(_Relay(talk, self._inner))
        secured.set_protocol(self._inner)
        self._inner.connection_made(secured)
        if self._early:
            self._inner.data_received(self._early)
        if self._eof and not self._inner.eof_received():
            secured.close()

    def _leave(self) -> None:
        self._inner.connections.discard(self)


class _Relay(asyncio.BufferedProtocol):
    """Between socket and TLS: HTTP too learns when the socket does not take all, which TLS keeps to itself."""

    def __init__(self, talk: asyncio.BufferedProtocol, inner: BoundedProtocol) -> None:
        self._talk = talk
        self._inner = inner

    def get_buffer(self, sizehint: int) -> ReadableBuffer:
        return self._talk.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._talk.buffer_updated(nbytes)

    def eof_received(self) -> bool | None:
        return self._talk.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._talk.connection_lost(exc)

    def pause_writing(self) -> None:
        self._talk.pause_writing()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
        self._talk.resume_writing()  # writes what it held back, which may pause again
