"""API keys of several tenants, which the operator gives so that one can be held against the other."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from kvops.verify.api import Api
from kvops.verify.check import skip
from kvops.verify.context import Context

VARIABLE = "KVOPS_TENANT_KEYS_FILE"


def tenant_keys(context: Context, file: str | None) -> list[str]:
    """One key a line, each of another tenant; `#` begins a comment. The gate's own key comes first.

    From the profile's file, else the one that KVOPS_TENANT_KEYS_FILE names. Skips the check when it cannot be read.
    """
    named = file or os.environ.get(VARIABLE)
    own = [context.target.api_key] if context.target.api_key else []
    if not named:
        return own
    try:
        lines = Path(named).expanduser().read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "not text"
        skip(f"the file of tenant keys cannot be read: {what}", remedy=f"mend {VARIABLE}")
    found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return list(dict.fromkeys(own + found))


@asynccontextmanager
async def as_tenant(context: Context, key: str) -> AsyncIterator[Api]:
    """The data plane as the holder of `key` has it."""
    api = Api(msgspec.structs.replace(context.target, api_key=key))
    try:
        yield api
    finally:
        context.api.refusals.extend(api.refusals)
        await api.aclose()
