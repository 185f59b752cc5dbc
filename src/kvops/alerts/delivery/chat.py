"""Channels that apprise knows: chats, mail, pagers. It is imported with the first message, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from kvops.alerts.book import Message
from kvops.alerts.delivery.channels import Channel, DeliveryFailed
from kvops.threads import in_thread

_KINDS = {"critical": "failure", "warning": "warning", "info": "info"}


class Chat:
    """One thread at a time for all messages: a service that hangs holds up chats, and nothing else of the node, nor its
    end."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[str] | None = None
        """May go on after its message was given up."""

    async def send(self, channel: Channel, message: Message) -> None:
        """Raises DeliveryFailed."""
        try:
            async with asyncio.timeout(channel.timeout), self._turn:
                if self._running is not None:
                    await asyncio.wait({self._running})
                self._running = in_thread(lambda: _notify(channel, message), "kvops-alerts")
                await asyncio.wait({self._running})
                reason = self._running.result()
        except TimeoutError:
            raise DeliveryFailed(f"not done within {channel.timeout:g} s") from None
        if reason:
            raise DeliveryFailed(reason)


def _notify(channel: Channel, message: Message) -> str:
    """Why it was not taken; empty where it was."""
    # These libraries log addresses, and the tokens in them.
    for chatty in ("apprise", "urllib3", "requests"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL + 1)
    try:
        import apprise
    except ImportError:
        return "apprise is not installed"
    try:
        service = apprise.Apprise.instantiate(channel.url, suppress_exceptions=True)
        if service is None:
            return "apprise knows no such URL"
        kind = "success" if message.status == "resolved" else _KINDS[message.labels["severity"]]
        taken = service.notify(
            title=title(message), body=body(message), notify_type=apprise.NotifyType(kind)
        )
    except Exception as error:  # its plugins are many, and may fail in any way
        return f"apprise failed: {type(error).__name__}"
    return "" if taken else "the service did not take it"


def title(message: Message) -> str:
    """`[FIRING] KvUsageHigh (warning) on node-1`"""
    labels = message.labels
    return f"[{message.status.upper()}] {message.rule} ({labels['severity']}) on {labels['node']}"


def body(message: Message) -> str:
    began = datetime.fromtimestamp(message.started_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [
        message.annotations["summary"],
        f"Value: {message.annotations['value']}",
        f"Since: {began}",
    ]
    lines += [f"Next: {message.annotations['remedy']}"] if message.status == "firing" else []
    lines += [f"Nonce: {message.labels['nonce']}"] if "nonce" in message.labels else []
    return "\n".join(lines)  # fmt: skip
