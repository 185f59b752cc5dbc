"""Locust's master listens no more after one packet that is none of its messages: here it leaves such a packet out.

Its socket may be open to other machines, and whoever reaches it could else end a run without a word.
"""

from __future__ import annotations

import logging
from typing import Any

from locust.exception import RPCError, RPCReceiveError
from locust.rpc.zmqrpc import BaseSocket
from locust.runners import MasterRunner

_INTRODUCTIONS = frozenset({"client_ready", "locustfile", "spawning", "spawning_complete"})
"""Messages of workers that the master does not know, or no more. Any other would give their sender a worker's number,
and that worker's share of the requests would be missing."""

_receive, _handle = BaseSocket.recv_from_client, MasterRunner.handle_message


def _receive_messages(self: Any) -> tuple[str, Any]:
    """Raises RPCReceiveError, which the listener survives, for what is no message of the one that it came from."""
    try:
        sender, message = _receive(self)
    except RPCError:
        raise
    except Exception as error:
        raise RPCReceiveError(f"no message: {type(error).__name__}") from error
    if message.node_id != sender or not isinstance(message.type, str):
        raise RPCReceiveError("no message of its sender")
    return sender, message


def _handle_each(self: Any, client_id: str, msg: Any) -> None:
    if client_id not in self.clients and msg.type not in _INTRODUCTIONS:
        return logging.error("a message of %r is left out: it is no worker", client_id)
    try:
        _handle(self, client_id, msg)
    except Exception as error:
        logging.error("a message of %r is left out: %s", client_id, type(error).__name__)


def endure_strangers() -> None:
    """For all masters of this process. Before the first: its listener starts with it."""
    BaseSocket.recv_from_client = _receive_messages
    MasterRunner.handle_message = _handle_each
