"""A small OpenAI-like server on real sockets whose answers, timings and token counts a test writes down exactly."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MODEL = "scripted"
LIMIT = 4096


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


Respond = Callable[[Request, "Reply"], None]


@dataclass
class Reply:
    """Writes one answer. `sent` holds when each event was handed to the socket (perf_counter)."""

    sock: socket.socket
    sent: list[float] = field(default_factory=list)

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def json(self, status: int, value: Any, *headers: str) -> None:
        body = json.dumps(value).encode()
        self.head(
            status, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers
        )
        self.raw(body)

    def head(self, status: int, *headers: str) -> None:
        self.raw(
            "\r\n".join([f"HTTP/1.1 {status} X", *headers, "Connection: close", "", ""]).encode()
        )

    def stream(self, *headers: str) -> None:
        self.head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked", *headers)

    def chunk(self, data: bytes) -> None:
        self.sent.append(time.perf_counter())
        self.raw(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, value: Any) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def role(self) -> None:
        self.event(
            {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        )

    def content(self, text: str, finish: str | None = None) -> None:
        self.event({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})

    def usage(self, prompt: int, completion: int, **more: Any) -> None:
        self.event(
            {
                "choices": [],
                "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more},
            }
        )

    def done(self) -> None:
        self.chunk(b"data: [DONE]\n\n")
        self.raw(b"0\r\n\r\n")


@dataclass
class Server:
    url: str
    respond: Respond
    listener: socket.socket
    requests: list[Request] = field(default_factory=list)

    def stop_listening(self) -> None:
        """From now on the port refuses; what is under way goes on."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()


@contextmanager
def serving(respond: Respond) -> Iterator[Server]:
    """One thread a connection, one request a connection. All connections are closed at the end."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", respond, listener)
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(sock)
            threading.Thread(target=handle, args=(sock,), daemon=True).start()

    def handle(sock: socket.socket) -> None:
        try:
            request = _read(sock)
            server.requests.append(request)
            server.respond(request, Reply(sock))
        except OSError:
            pass  # the client went away, which some tests are about
        finally:
            sock.close()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop_listening()
        for sock in open_sockets:
            sock.close()
        thread.join(5)


def _read(sock: socket.socket) -> Request:
    file = sock.makefile("rb")
    method, path, _ = file.readline().decode().split()
    headers: dict[str, str] = {}
    while line := file.readline().strip().decode():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Request(method, path, headers, file.read(int(headers.get("content-length", 0))))


def words(text: str) -> int:
    """The scripted tokenizer: a token a word, and four for the chat template."""
    return len(text.split()) + 4


def node(request: Request, reply: Reply) -> None:
    """A whole small node: model list, tokenizer, health, and a model that finds every needle."""
    if request.path == "/v1/models":
        reply.json(200, {"data": [{"id": MODEL, "max_model_len": LIMIT}]})
    elif request.path == "/livez":
        reply.json(200, {"status": "alive"})
    elif request.path == "/v1/tokenize":
        reply.json(200, {"count": words(request.json()["messages"][0]["content"])})
    elif request.path == "/v1/chat/completions":
        answer(reply, request.json()["messages"][0]["content"])
    else:
        reply.json(404, {"error": {"code": "not_found", "message": request.path}})


def answer(reply: Reply, prompt: str) -> None:
    digits = [word.rstrip(".") for word in prompt.split() if word.rstrip(".").isdigit()]
    pieces = ["It ", "is ", digits[0] if digits else "nowhere"]
    reply.stream()
    reply.role()
    for piece in pieces:
        reply.content(piece)
    reply.usage(words(prompt), len(pieces))
    reply.done()
