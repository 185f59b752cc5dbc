"""What can change while a node runs, and what two settings differ in. What is not listed here needs a restart.

Who is listed reads its setting at use (`Settings`), or is told of it by a reload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvops.config.faults import bad_value, error_of
from kvops.config.keys import leaf_keys, nested, values_of
from kvops.config.load import LoadedConfig
from kvops.config.schema import NodeConfig

LIVE = (
    "runtime.result_store",
    "runtime.max_concurrent_requests",
    "runtime.max_queue",
    "runtime.queue_timeout",
    "runtime.request_timeout",
    "runtime.over_length",
    "runtime.drain_timeout",
    "runtime.stall_after",
    "runtime.load_stall_after",
    "tenants",
    "tenant_defaults",
    "restart",
    "quarantine",
    "limits.body_bytes",
    "limits.body_timeout",
    "limits.json_depth",
    "limits.messages",
    "limits.stop_strings",
    "limits.n",
    "limits.logprobs",
    "logging.level",
    "alerts",
    "server.allow_networks",
)
"""Settings, and sections with all that is in them."""


@dataclass(frozen=True)
class Change:
    key: str
    """Dotted; goes into tables, as in `tenants.acme.max_running`."""
    before: Any
    """As JSON; None where there was none, and `after` where there is none any more."""
    after: Any

    @property
    def live(self) -> bool:
        return can_change_live(self.key)


def can_change_live(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in LIVE)


def changes(before: NodeConfig, after: NodeConfig) -> list[Change]:
    """In the order of the schema."""
    old, new = plain(before), plain(after)
    keys = [*new, *(key for key in old if key not in new)]
    places = {key: at for at, key in enumerate(leaf_keys())}
    found = [
        Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)
    ]
    return sorted(found, key=lambda change: (_place(change.key, places), change.key))


def applied(before: LoadedConfig, wanted: LoadedConfig) -> LoadedConfig:
    """`wanted` as far as it can change live, and `before` for the rest. Raises ConfigError if these do not agree."""
    old, new = values_of(before.config), values_of(wanted.config)
    values = {key: new[key] if can_change_live(key) else old[key] for key in leaf_keys()}
    origins = {
        key: (wanted if can_change_live(key) else before).origins[key] for key in leaf_keys()
    }
    try:
        config = NodeConfig.model_validate(nested(values))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise error_of([bad_value(dict(each), origins) for each in found]) from None
    return LoadedConfig(config, origins, wanted.document, wanted.overrides, before.file)


def plain(config: NodeConfig) -> dict[str, Any]:
    """Dotted key → value as JSON, tables taken apart."""
    document = config.model_dump(mode="json", by_alias=True)
    return _flat(document, "")


def _flat(document: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        elif value != {}:
            flat[prefix + key] = value
    return flat


def _place(key: str, places: Mapping[str, int]) -> int:
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key, len(places))
