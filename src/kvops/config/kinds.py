"""Texts and paths, not empty and without a NUL: the system calls would refuse that in their own words."""

from __future__ import annotations

import contextlib
import socket
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_NO_NUL = r"^[^\x00]+$"
_PATH = "a path, not empty and without a NUL"


def _check_path(value: Any) -> Any:
    if isinstance(value, str | Path) and (not str(value) or "\0" in str(value)):
        raise ValueError(f"expected {_PATH}")
    return value


_NAMED = "the address or name of one interface, such as 127.0.0.1; not 0.0.0.0 or ::"


def every_address(host: str) -> bool:
    """Whether `host` stands for each address of the machine, however it is written."""
    with contextlib.suppress(ValueError):
        address = ip_address(host)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_unspecified
    with contextlib.suppress(OSError):
        return not any(socket.inet_aton(host))
    return False


def _check_one(value: Any) -> Any:
    if isinstance(value, str) and every_address(value):
        raise ValueError(f"expected {_NAMED}")
    return value


Text = Annotated[str, Field(pattern=_NO_NUL, description="text, not empty and without a NUL")]
OneHost = Annotated[
    Text,
    BeforeValidator(_check_one),
    Field(description=_NAMED, json_schema_extra={"pattern": _NO_NUL}),
]
"""An address that a client can name: none that stands for all."""
FilePath = Annotated[
    Path,
    BeforeValidator(_check_path),
    Field(description=_PATH, json_schema_extra={"pattern": _NO_NUL}),
]
