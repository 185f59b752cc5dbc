"""Prefixes that the operator listed: read and checked before a node starts, hot before it is ready, warmed anew on
demand. A shared one is common property of all tenants, so it comes from the operator's files only.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kvops.config.schema import NodeConfig
from kvops.errors import ConfigError, InternalError, InvalidRequest, RequestError
from kvops.node.api.schemas import Message, Messages
from kvops.node.auth import TenantSalts
from kvops.node.prompts import PromptReader
from kvops.node.supervisor import Supervisor
from kvops.node.wire import Prefix, TokenDelta
from kvops.paths import open_regular

MAX_FILE_BYTES = 4 * 2**20
_CHAT: TypeAdapter[list[Message]] = TypeAdapter(Messages)


@dataclass(frozen=True)
class PrefixFile:
    path: Path
    content: str | list[Message]
    tenant: str
    """Empty for a shared one."""


def read_prefix_files(config: NodeConfig) -> list[PrefixFile]:
    """Raises ConfigError that names the setting and the file."""
    shared = [
        _read(path, "", "kv_cache.shared_prefixes") for path in config.kv_cache.shared_prefixes
    ]
    own = [
        _read(path, tenant, f"warmup.prefixes.{tenant}")
        for tenant, paths in config.warmup.prefixes.items()
        for path in paths
    ]
    return shared + own


def _read(path: Path, tenant: str, setting: str) -> PrefixFile:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{setting}: {path} is over the bound of {MAX_FILE_BYTES} bytes")
        with open_regular(path) as opened:
            text = opened.read().decode()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{setting}: {path} is not UTF-8") from None
    if path.suffix != ".json":
        return PrefixFile(path, text, tenant)
    try:
        return PrefixFile(path, _CHAT.validate_json(text), tenant)
    except ValidationError:
        raise ConfigError(
            f"{setting}: {path} is no list of chat messages",
            hint='for example [{"role": "system", "content": "You are …"}]',
        ) from None


def tokenize(
    files: Iterable[PrefixFile], reader: PromptReader, salts: TenantSalts
) -> tuple[Prefix, ...]:
    """Raises ConfigError for a file that makes no prompt."""
    return tuple(_prefix(file, reader, salts) for file in files)


def _prefix(file: PrefixFile, reader: PromptReader, salts: TenantSalts) -> Prefix:
    try:
        tokens = reader.beginning(file.content)
    except InvalidRequest as error:
        raise ConfigError(f"{file.path}: {error.message}", hint=error.hint) from None
    if not tokens:
        raise ConfigError(f"{file.path} is empty")
    return Prefix(
        name=str(file.path),
        token_ids=tuple(tokens),
        tenant=file.tenant,
        salt=salts.of(file.tenant) if file.tenant else b"",
        shared=not file.tenant,
    )


async def warm_up(prefixes: Iterable[Prefix], supervisor: Supervisor) -> dict[str, Any]:
    """Compute what is no longer hot. Raises RequestError when the engine cannot."""
    counts = {"prefixes": 0, "tokens": 0, "cached_tokens": 0}
    for prefix in prefixes:
        warming = _Warming()
        supervisor.submit(prefix.submit(f"warm-{secrets.token_hex(8)}"), warming)
        counts["prefixes"] += 1
        counts["tokens"] += len(prefix.token_ids)
        counts["cached_tokens"] += await warming.cached_tokens
    return counts


class _Warming:
    """Where the news of a warm-up request go."""

    def __init__(self) -> None:
        self.cached_tokens: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def started(self) -> None:
        pass

    def delta(self, delta: TokenDelta) -> None:
        if delta.finish == "error":
            self.lost(InternalError(delta.error))
        elif not self.cached_tokens.done():
            self.cached_tokens.set_result(delta.cached_tokens)

    def lost(self, error: RequestError) -> None:
        if not self.cached_tokens.done():
            self.cached_tokens.set_exception(error)
