"""A stand-in for the hub's HTTP API on loopback: what `model_info` and `hf_hub_download` ask for, and a log of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "a" * 40
REPOSITORY = "acme/Tiny-Llama"


class Hub:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[str] = []
        self.url = ""
        self.lie_about: str | None = None
        """The listing has a wrong hash for this file."""

    def listing(self) -> dict[str, object]:
        return {
            "id": REPOSITORY,
            "sha": COMMIT,
            "siblings": [self._entry(p) for p in self._files()],
        }

    def fetched(self) -> set[str]:
        files = [line for line in self.requests if line.startswith("GET") and "/resolve/" in line]
        return {line.split(f"/{COMMIT}/")[1] for line in files}

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())

    def _entry(self, path: Path) -> dict[str, object]:
        content = path.read_bytes()
        entry: dict[str, object] = {
            "rfilename": str(path.relative_to(self.folder)),
            "size": len(content),
            "blobId": hashlib.sha1(content).hexdigest(),
        }
        if path.suffix == ".safetensors":
            wrong = path.name == self.lie_about
            sha256 = hashlib.sha256(content + (b"x" if wrong else b"")).hexdigest()
            entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
        return entry


@contextmanager
def serve_hub(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def log_message(self, *args: object) -> None:
            hub.requests.append(f"{self.command} {self.path}")

        def _answer(self, *, body: bool) -> None:
            status, content, headers = self._find(self.path.split("?")[0])
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def _find(self, path: str) -> tuple[int, bytes, dict[str, str]]:
            infos = (
                f"/api/models/{REPOSITORY}",
                *(f"/api/models/{REPOSITORY}/revision/{r}" for r in ("main", "v1")),
            )
            if path in infos:
                return 200, json.dumps(hub.listing()).encode(), {"Content-Type": "application/json"}
            file = hub.folder / path.removeprefix(f"/{REPOSITORY}/resolve/{COMMIT}/")
            if path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/") and file.is_file():
                content = file.read_bytes()
                etag = hashlib.sha256(content).hexdigest()
                return 200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}
            return (
                404,
                b"",
                {"X-Error-Code": "RepoNotFound" if path.startswith("/api") else "EntryNotFound"},
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
