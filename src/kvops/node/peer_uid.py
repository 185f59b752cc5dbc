"""Which user of this machine holds the other end of a connection, as the kernel knows it (Linux, /proc/net/tcp)."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path

Address = tuple[str, int | None] | None
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns (Linux, Documentation/networking/proc_net_tcp.rst)."""


def uid_behind(client: Address, server: Address) -> int | None:
    """None for a client of another machine, and where the kernel does not say."""
    if client is None or server is None or client[1] is None or server[1] is None:
        return None
    family = "tcp6" if ":" in client[0] else "tcp"
    try:
        wanted = [_written(client[0], client[1]), _written(server[0], server[1])]
        rows = Path("/proc/net", family).read_text().splitlines()[1:]
    except (OSError, ValueError):
        return None
    for row in map(str.split, rows):
        if row[_LOCAL : _REMOTE + 1] == wanted:
            return int(row[_UID])
    return None


def _written(host: str, port: int) -> str:
    """`127.0.0.1`, 8001 → `0100007F:1F41`: words of 32 bits in the order of the machine. Raises OSError."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    words = struct.unpack(f">{len(packed) // 4}I", packed)
    order = "<" if sys.byteorder == "little" else ">"
    return struct.pack(f"{order}{len(words)}I", *words).hex().upper() + f":{port:04X}"
