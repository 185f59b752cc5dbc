"""The one error tree of kvops. Every error that a user may meet has a code, a hint and an exit code.

KvopsError
├── UsageError              a command was called wrongly                     exit 2
├── ConfigError             a setting is missing, unknown or out of bounds   exit 2
├── ModelError              a model cannot be found, read or trusted         exit 1
│   ├── ModelNotFound
│   ├── ModelCorrupt
│   ├── ModelUnsupported
│   └── ModelSourceError    a download failed
├── NodeError               a node cannot be started or spoken to            exit 1
│   ├── NodeNotFound                                                         exit 4
│   ├── NodeUnreachable                                                      exit 4
│   ├── NodeUnauthorized                                                     exit 2
│   ├── NodeProtocolError
│   ├── NodeStartError
│   └── EngineDied
├── AuditBroken             an audit is not as it was written                exit 1
├── AlertNotDelivered       a drill of alert delivery failed                 exit 1
├── LoadRunError            a load run could not be made                     exit 3
│   └── RunUnreadable     what is kept of it cannot be read                  exit 2
└── RequestError            an HTTP request is answered with an error object (design §6)
    ├── InvalidRequest            400 invalid_request
    ├── BadFraming                400 invalid_request, and the connection is closed
    ├── ContextLengthExceeded     400 context_length_exceeded
    ├── InvalidApiKey             401 invalid_api_key
    ├── Forbidden                 403 forbidden
    ├── ModelUnknown              404 model_not_found
    ├── RouteUnknown              404 not_found
    ├── ShapeUnknown              404 shape_not_found
    ├── MethodNotAllowed          405 method_not_allowed
    ├── RequestCancelled          409 cancelled
    ├── DrillRefused              409 drill_refused
    ├── BodyTimeout               408 body_timeout
    ├── TooLarge                  413 / 431 / 400 too_large
    ├── Quarantined               422 quarantined
    ├── QueueFull                 429 queue_full
    ├── TenantLimit               429 tenant_limit
    ├── KvQuotaExceeded           429 kv_quota
    ├── QueueTimeout              503 queue_timeout
    ├── NotReady                  503 not_ready
    ├── Draining                  503 draining
    ├── EngineRestarted           503 engine_restarted
    ├── AuditUnavailable          503 audit_unavailable
    ├── RequestTimeout            504 request_timeout
    ├── TemplateTimeout           500 template_timeout
    ├── NotStored                 507 not_stored
    └── InternalError             500 internal_error
"""

from __future__ import annotations

from typing import Any, ClassVar


class KvopsError(Exception):
    """Base of all errors shown to users.

    `message` says what is wrong, with the field, the value and its bound; `hint` says the next step.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    default_hint: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.default_hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class UsageError(KvopsError):
    code = "usage"
    exit_code = 2


class ConfigError(KvopsError):
    code = "config"
    exit_code = 2


class ModelError(KvopsError):
    code = "model"


class ModelNotFound(ModelError):
    code = "model_not_found"


class ModelCorrupt(ModelError):
    code = "model_corrupt"
    default_hint = "it is damaged or cut short: get it again from where it came from"


class ModelUnsupported(ModelError):
    code = "model_unsupported"
    default_hint = (
        "use a llama, qwen2 or qwen3 model as safetensors or GGUF, or a mistral one as safetensors"
    )


class ModelSourceError(ModelError):
    code = "model_source"
    default_hint = (
        "check that the source and the disk can be reached and have room, then pull again"
    )


class NodeError(KvopsError):
    code = "node"


class NodeNotFound(NodeError):
    code = "node_not_found"
    exit_code = 4


class NodeUnreachable(NodeError):
    code = "node_unreachable"
    exit_code = 4


class NodeUnauthorized(NodeError):
    code = "node_unauthorized"
    exit_code = 2


class NodeProtocolError(NodeError):
    code = "node_protocol"


class NodeStartError(NodeError):
    code = "node_start"


class EngineDied(NodeError):
    code = "engine_died"


class AuditBroken(KvopsError):
    code = "audit_broken"
    default_hint = "keep the files as they are: somebody changed them, or the disk did"


class AlertNotDelivered(KvopsError):
    code = "alert_not_delivered"
    default_hint = "kvops alerts list shows each channel's last error"


class LoadRunError(KvopsError):
    code = "load_run"
    exit_code = 3


class RunUnreadable(LoadRunError):
    code = "run_unreadable"
    exit_code = 2


class RequestError(KvopsError):
    """An error that a client of the data or control plane receives as an OpenAI-shaped object."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    retry_after: ClassVar[int | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str = "",
        status: int | None = None,
        retry_after: int | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.http_status = self.status if status is None else status
        self.retry_after_seconds = self.retry_after if retry_after is None else retry_after
        self.extra = extra or {}

    def body(self) -> dict[str, Any]:
        """The OpenAI-shaped error object: `{"error": {message, type, param, code, …}}`."""
        message = f"{self.message} {self.hint}".strip()
        fields = {"message": message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": fields | self.extra}

    def headers(self) -> dict[str, str]:
        if self.retry_after_seconds is None:
            return {}
        return {"Retry-After": str(self.retry_after_seconds)}


class InvalidRequest(RequestError):
    code = "invalid_request"
    status = 400
    type = "invalid_request_error"


class BadFraming(InvalidRequest):
    """The length of the body is in doubt, so nothing that follows on its connection can be read."""


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class InvalidApiKey(RequestError):
    code = "invalid_api_key"
    status = 401
    type = "authentication_error"


class Forbidden(RequestError):
    code = "forbidden"
    status = 403
    type = "permission_error"


class ModelUnknown(InvalidRequest):
    code = "model_not_found"
    status = 404


class RouteUnknown(InvalidRequest):
    code = "not_found"
    status = 404


class ShapeUnknown(InvalidRequest):
    """No requests like it are in quarantine, or suspected."""

    code = "shape_not_found"
    status = 404


class MethodNotAllowed(InvalidRequest):
    code = "method_not_allowed"
    status = 405


class RequestCancelled(RequestError):
    """An operator ended the request."""

    code = "cancelled"
    status = 409


class DrillRefused(RequestError):
    """A drill of alert delivery that could prove nothing."""

    code = "drill_refused"
    status = 409
    type = "invalid_request_error"


class BodyTimeout(InvalidRequest):
    code = "body_timeout"
    status = 408


class TooLarge(InvalidRequest):
    code = "too_large"
    status = 413


class Quarantined(InvalidRequest):
    """Requests like it were in flight when engines died."""

    code = "quarantined"
    status = 422


class QueueFull(RequestError):
    code = "queue_full"
    status = 429
    type = "rate_limit_error"
    retry_after = 2


class TenantLimit(RequestError):
    code = "tenant_limit"
    status = 429
    type = "rate_limit_error"
    retry_after = 2


class KvQuotaExceeded(RequestError):
    code = "kv_quota"
    status = 429
    type = "rate_limit_error"
    retry_after = 5


class QueueTimeout(RequestError):
    code = "queue_timeout"
    status = 503
    retry_after = 5


class NotReady(RequestError):
    code = "not_ready"
    status = 503
    retry_after = 5


class Draining(RequestError):
    code = "draining"
    status = 503
    retry_after = 30


class EngineRestarted(RequestError):
    code = "engine_restarted"
    status = 503
    retry_after = 10


class AuditUnavailable(RequestError):
    """The audit cannot be written, and the node is told not to serve without it."""

    code = "audit_unavailable"
    status = 503
    retry_after = 5


class RequestTimeout(RequestError):
    code = "request_timeout"
    status = 504


class TemplateTimeout(RequestError):
    """The model's own chat template, not the request, took too long."""

    code = "template_timeout"
    status = 500


class NotStored(RequestError):
    """What must be on disk before it counts cannot be put there."""

    code = "not_stored"
    status = 507


class InternalError(RequestError):
    code = "internal_error"


def refusal(error: Any) -> RequestError | None:
    """The inverse of `body`, of what is in its `error`; None for what is no such object, or has no code of the tree."""
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return None
    hint, kinds = str(error.get("hint") or ""), [RequestError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    found = next((kind for kind in kinds if kind.code == error.get("code")), None)
    message = error["message"].removesuffix(hint).rstrip()
    return None if found is None or found is RequestError else found(message, hint=hint)


def from_code(code: str, message: str, hint: str) -> KvopsError | None:
    """The error that another process of kvops named by its code; None for one that is not in the tree."""
    kinds: list[type[KvopsError]] = [KvopsError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds:
        if kind.code == code and not issubclass(kind, RequestError):
            return kind(message, hint=hint)
    return None
