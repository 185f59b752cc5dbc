"""What of a node has to be told of new settings, since it cannot read them at use."""

from __future__ import annotations

from collections.abc import Callable

from kvops.config.history import History
from kvops.config.schema import NodeConfig
from kvops.config.settings import Settings
from kvops.errors import ConfigError
from kvops.node.logs import set_level
from kvops.node.orders import set_tenants
from kvops.node.quotas import with_quotas
from kvops.node.reload import Part, Reload, begin
from kvops.node.results import ResultStore
from kvops.node.supervisor import Supervisor


def reload_of(
    settings: Settings,
    supervisor: Supervisor,
    results: ResultStore,
    report: Callable[[str, str], None],
    *others: Part,
) -> Reload:
    """With what the node starts with as the version in force. Raises ConfigError, OSError."""
    history = History.of(settings.config.name)
    return Reload(
        settings,
        history,
        begin(history, settings.loaded, report),
        (
            TenantBounds(supervisor, settings),
            KeptResults(results, settings.config),
            LogLevel(),
            *others,
        ),
        lambda: supervisor.state == "ready",
    )


class TenantBounds:
    """The engine's, and those of engines to come."""

    def __init__(self, supervisor: Supervisor, settings: Settings) -> None:
        self._supervisor = supervisor
        self._settings = settings

    def check(self, config: NodeConfig) -> None:
        told = set_tenants(config)
        if self._supervisor.info is not None:
            with_quotas(self._supervisor.info, told.tenants, told.default_tenant)
        elif told != set_tenants(self._settings.config):
            raise ConfigError(
                "tenants: quotas cannot be held to a pool that the first engine is still to make",
                hint="apply it again when the node is ready, or stop the node and apply it then",
            )

    def take(self, config: NodeConfig) -> None:
        self._supervisor.set_tenants(set_tenants(config))


class KeptResults:
    """Those that were kept under other bounds are forgotten."""

    def __init__(self, results: ResultStore, config: NodeConfig) -> None:
        self._results = results
        self._bounds = config.runtime.result_store

    def check(self, config: NodeConfig) -> None:
        pass

    def take(self, config: NodeConfig) -> None:
        if config.runtime.result_store != self._bounds:
            self._results.flush()
        self._bounds = config.runtime.result_store


class LogLevel:
    def check(self, config: NodeConfig) -> None:
        pass

    def take(self, config: NodeConfig) -> None:
        set_level(config.logging.level)
