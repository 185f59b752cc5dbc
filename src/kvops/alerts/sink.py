"""A receiver of alert messages on this machine, for a drill: it says which nonces it saw, and when."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_MAX_BODY = 256 * 1024


@dataclass
class Sink:
    url: str
    seen: dict[str, float] = field(default_factory=dict)
    """Nonce → `time.monotonic()` of its first message."""


@contextmanager
def open_sink() -> Iterator[Sink]:
    """Listens on a free port of the loopback address; its path is a secret, so that nobody else can feed it."""
    sink = Sink("")
    path = f"/{secrets.token_urlsafe(16)}"

    class Receiver(BaseHTTPRequestHandler):
        timeout = 5

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            fits = self.path == path and length.isdigit() and int(length) <= _MAX_BODY
            taken = fits and _take(sink, self.rfile.read(int(length)))
            self.send_response(200 if taken else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        server.daemon_threads = True
        sink.url = f"http://127.0.0.1:{server.server_port}{path}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()


def _take(sink: Sink, body: bytes) -> bool:
    try:
        nonce = json.loads(body)["alerts"][0]["labels"]["nonce"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    sink.seen.setdefault(str(nonce), time.monotonic())
    return True
