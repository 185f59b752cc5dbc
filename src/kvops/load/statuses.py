"""Which class of failure an HTTP status is, with the code of its error object."""

from __future__ import annotations

from kvops.load.records import ErrorClass

_STATUS_CLASSES = {
    401: ErrorClass.HTTP_401_403,
    403: ErrorClass.HTTP_401_403,
    404: ErrorClass.HTTP_404_OTHER,
    400: ErrorClass.HTTP_400_OTHER,
    408: ErrorClass.HTTP_408,
    413: ErrorClass.HTTP_413,
    429: ErrorClass.HTTP_429,
    503: ErrorClass.HTTP_503,
    504: ErrorClass.HTTP_504,
}
_CODE_CLASSES = {
    (400, "context_length_exceeded"): ErrorClass.HTTP_400_CONTEXT_LENGTH,
    (404, "model_not_found"): ErrorClass.HTTP_404_MODEL,
    (429, "queue_full"): ErrorClass.HTTP_429_QUEUE_FULL,
    (429, "tenant_limit"): ErrorClass.HTTP_429_TENANT_LIMIT,
    (429, "kv_quota"): ErrorClass.HTTP_429_KV_QUOTA,
    (503, "queue_timeout"): ErrorClass.HTTP_503_QUEUE_TIMEOUT,
    (503, "not_ready"): ErrorClass.HTTP_503_NOT_READY,
    (503, "draining"): ErrorClass.HTTP_503_DRAINING,
    (503, "engine_restarted"): ErrorClass.HTTP_503_ENGINE_RESTARTED,
}


def status_class(status: int, code: str = "") -> ErrorClass:
    """Of any status but 200."""
    if status < 400:
        return ErrorClass.BAD_ANSWER
    fallback = ErrorClass.HTTP_5XX_OTHER if status >= 500 else ErrorClass.HTTP_4XX_OTHER
    return _CODE_CLASSES.get((status, code)) or _STATUS_CLASSES.get(status, fallback)
