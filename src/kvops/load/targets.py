"""Which nodes a load run may be pointed at: a load can bring a node down."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from kvops.errors import UsageError
from kvops.telemetry.fleet import Fleet, is_loopback
from kvops.telemetry.fleet import resolve as resolve


def check_target(url: str, allowed_remote: Collection[str], fleet: Fleet | None = None) -> None:
    """Raises UsageError for a host that is neither this machine nor named by `allowed_remote`, and for a node

    whose fleet entry does not allow load, whatever else is allowed.
    """
    entry = None if fleet is None else fleet.at(url)
    if fleet is not None and entry is not None and not entry.may_be_loaded:
        unset = " (it is not set, and the node is on another machine)"
        raise UsageError(
            f"{entry.name} is not to be loaded: allow_load is false in {fleet.path}"
            + (unset if entry.allow_load is None else ""),
            hint="if those who use the node agree, set allow_load: true there",
        )
    host = urlsplit(url).hostname or ""
    if host not in allowed_remote and not is_loopback(host):
        raise UsageError(
            f"{host} is not this machine, and a load run can bring a node down",
            hint=f"if you mean it: --allow-remote {host}",
        )
