"""A load generator of more than one process: on this machine, or on several with a master among them."""

from __future__ import annotations

import re
import socket

import msgspec

from kvops.errors import UsageError

DEFAULT_BIND = "127.0.0.1:5557"
_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[\w.-]+)):(?P<port>\d{1,5})")


class Address(msgspec.Struct, frozen=True):
    host: str
    port: int

    @staticmethod
    def parse(text: str, flag: str) -> Address:
        """`HOST:PORT`. Raises UsageError."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 1 <= int(found["port"]) <= 65535:
            raise UsageError(
                f"{flag} {text} is no HOST:PORT", hint=f"for example {flag} {DEFAULT_BIND}"
            )
        return Address(found["v6"] or found["host"], int(found["port"]))


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    processes: int = 1
    """On this machine; or else `workers`."""
    workers: int = 0
    """Processes of other commands, `kvops load worker`, that take part; 0: none."""
    bind: Address = Address("127.0.0.1", 5557)
    """Where the master listens for workers."""

    @property
    def senders(self) -> int:
        return self.workers or self.processes

    def arguments(self) -> list[str]:
        """Of locust. Its master is told where to listen, for by default it listens everywhere."""
        if self.workers:
            return ["--master", "--expect-workers", str(self.workers), *_listens(self.bind)]
        if self.processes > 1:
            own = Address("127.0.0.1", _free_port())
            return ["--processes", str(self.processes), *_listens(own), *joins(own)]
        return []


def _listens(at: Address) -> list[str]:
    return ["--master-bind-host", at.host, "--master-bind-port", str(at.port)]


def joins(master: Address) -> list[str]:
    return ["--master-host", master.host, "--master-port", str(master.port)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
