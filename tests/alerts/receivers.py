"""A real receiver of webhooks on the loopback address, which does with a message what a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "tok-5f0c9e-canary"
"""In the path of every URL, as chats have it; nobody but the receiver may ever show it."""


@dataclass
class Receiver:
    port: int = 0
    status: int = 200
    hang: bool = False
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """What it took."""
    tries: int = 0
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{SECRET}"

    def alerts(self, name: str) -> list[tuple[str, str]]:
        """(status, startsAt) of each message of the rule that it took."""
        found = [body["alerts"][0] for body in self.bodies if "alerts" in body]
        return [(a["status"], a["startsAt"]) for a in found if a["labels"]["alertname"] == name]


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    box = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            box.tries += 1
            if box.hang:
                box.released.wait(60)
            if box.status == 200 and self.path.split("?")[0].rstrip("/") == f"/{SECRET}":
                box.bodies.append(json.loads(body))
            self.send_response(box.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        box.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield box
        finally:
            box.released.set()
            server.shutdown()
            thread.join()
