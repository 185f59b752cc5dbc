"""What the HTTP applications work with. Built by the daemon, once; the routes hold nothing of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvops.config.load import LoadedConfig
from kvops.config.settings import Settings
from kvops.errors import InvalidRequest, ModelUnknown
from kvops.node.admission import Admission
from kvops.node.alerting import Alerting
from kvops.node.audit import AuditLog
from kvops.node.auth import Identifies, TenantSalts
from kvops.node.meter import Meter
from kvops.node.prompts import PromptReader
from kvops.node.reload import Reload
from kvops.node.state import NodeView
from kvops.node.supervisor import Supervisor
from kvops.node.wire import RANK, EngineInfo, Prefix, PriorityClass


@dataclass
class Services:
    settings: Settings
    view: NodeView
    alerting: Alerting
    admission: Admission
    supervisor: Supervisor
    meter: Meter
    keys: Identifies
    salts: TenantSalts
    audit: AuditLog
    model_name: str
    shut_down: Callable[[], None]
    reload: Reload
    started_at: float
    """Unix seconds."""
    reader: PromptReader | None = None
    """None while the tokenizer is being read."""
    prefixes: tuple[Prefix, ...] = ()
    """What the operator listed to be hot."""
    closing: bool = False
    """Set when the listeners close: endless answers end."""

    @property
    def loaded(self) -> LoadedConfig:
        return self.settings.loaded

    def serving(self) -> tuple[EngineInfo, PromptReader]:
        """Raises NotReady, Draining, EngineRestarted, AuditUnavailable while the node takes no requests."""
        self.admission.check_open()
        self.audit.check()
        if self.supervisor.info is None or self.reader is None:
            raise self.supervisor.why_not_ready()
        return self.supervisor.info, self.reader

    def check_model(self, name: str) -> None:
        if name != self.model_name:
            raise ModelUnknown(
                f"this node does not serve the model {name[:80]!r}.",
                param="model",
                hint=f"It serves {self.model_name!r}.",
            )

    def priority_of(self, tenant: str, asked: PriorityClass | None) -> PriorityClass:
        """The class of a request. Raises InvalidRequest for one above the tenant's own."""
        own = self.loaded.config.tenant(tenant).priority
        if own is None:
            return asked or "normal"
        if asked is not None and RANK[asked] < RANK[own]:
            raise InvalidRequest(
                f"{asked} is above the class of this key's tenant, {own}.", param="priority"
            )
        return asked or own
