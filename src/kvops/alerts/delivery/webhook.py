"""What Alertmanager posts to its webhooks (version 4), so that whatever takes those takes these."""

from __future__ import annotations

import asyncio
import hashlib
import os
from datetime import UTC, datetime
from typing import Any

from kvops.alerts.book import Message
from kvops.alerts.delivery.channels import Channel, DeliveryFailed

_NEVER = "0001-01-01T00:00:00Z"


def payload(receiver: str, message: Message) -> dict[str, Any]:
    """Alertmanager's webhook body, one alert a message (https://prometheus.io/docs/alerting/latest/configuration)."""
    group = {name: message.labels[name] for name in ("alertname", "node")}
    pairs = ", ".join(f'{name}="{value}"' for name, value in group.items())
    return {
        "version": "4",
        "groupKey": f"{{}}:{{{pairs}}}",
        "truncatedAlerts": 0,
        "status": message.status,
        "receiver": receiver,
        "groupLabels": group,
        "commonLabels": message.labels,
        "commonAnnotations": message.annotations,
        "externalURL": "",
        "alerts": [
            {
                "status": message.status,
                "labels": message.labels,
                "annotations": message.annotations,
                "startsAt": _stamp(message.started_at),
                "endsAt": _NEVER if message.ended_at is None else _stamp(message.ended_at),
                "generatorURL": "",
                "fingerprint": fingerprint(message.labels),
            }
        ],
    }


def fingerprint(labels: dict[str, str]) -> str:
    """16 hex digits; the same for the same labels."""
    pairs = "\xff".join(f"{name}\xff{value}" for name, value in sorted(labels.items()))
    return hashlib.sha256(pairs.encode()).hexdigest()[:16]


async def post(channel: Channel, message: Message) -> None:
    """One attempt, bounded by the channel's timeout as a whole. Raises DeliveryFailed."""
    import httpx

    try:
        async with (
            asyncio.timeout(channel.timeout),
            # No proxy from the environment and no redirect: the token in the URL goes there and nowhere else.
            httpx.AsyncClient(trust_env=False, timeout=channel.timeout) as client,
            client.stream("POST", channel.url, json=payload(channel.name, message)) as reply,
        ):
            status = reply.status_code
    except (TimeoutError, httpx.TimeoutException):
        raise DeliveryFailed(f"no answer within {channel.timeout:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise DeliveryFailed(_cause(error)) from None
    if not 200 <= status < 300:
        raise DeliveryFailed(f"the receiver answered {status}")


def _cause(error: BaseException) -> str:
    """The system's word for it. What the library says may hold the URL."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
