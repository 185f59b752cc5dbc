"""Which nodes a load run may be pointed at: a load can bring a node down."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from kvops.errors import UsageError


def check_target(url: str, allowed_remote: Collection[str]) -> None:
    """Raises UsageError for a host that is neither this machine nor named by `allowed_remote`."""
    host = urlsplit(url).hostname or ""
    if host not in allowed_remote and not is_loopback(host):
        raise UsageError(
            f"{host} is not this machine, and a load run can bring a node down",
            hint=f"if you mean it: --allow-remote {host}",
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
