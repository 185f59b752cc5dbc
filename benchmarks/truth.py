"""A scripted server in a process of its own that notes when it really received and sent: `python -m benchmarks.truth`.

Streams as a node does, one event a token, 50 a second. `GET /truth`: by number of the request, when it came and when
the first content left, seconds of the monotonic clock, which is one for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import ClassVar

import uvloop

TOKENS = 64
GAP = 0.02
"""Seconds from one token to the next."""
FIRST = 0.05
"""Seconds from a request to its first token."""
STREAM_SECONDS = FIRST + TOKENS * GAP
_EVENT = (
    'data: {{"id":"chatcmpl-7f3a9c1e5b2d4f60","object":"chat.completion.chunk","created":1767225600,"model":"truth",'
    '"choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
)
_USAGE = (
    'data: {"id":"chatcmpl-7f3a9c1e5b2d4f60","object":"chat.completion.chunk","created":1767225600,"model":"truth",'
    f'"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":{TOKENS},"total_tokens":{TOKENS + 9}}}}}\n\n'
)
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"


def _chunk(text: str) -> bytes:
    data = text.encode()
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


PIECES = [_chunk(_EVENT.format(text=f" word{number}")) for number in range(TOKENS)]
ROLE = _chunk(_EVENT.format(text="").replace('"content":""', '"role":"assistant","content":""'))
END = _chunk(_USAGE) + _chunk("data: [DONE]\n\n") + b"0\r\n\r\n"


class Truth(asyncio.Protocol):
    told: ClassVar[dict[str, tuple[float, float]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.got = transport, b""  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        came = time.perf_counter()
        self.got += data
        head, found, body = self.got.partition(b"\r\n\r\n")
        length = next(
            (
                int(line[15:])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            ),
            0,
        )
        if found and len(body) >= length:
            self.answer(head.split(b" ")[1].decode(), body, came)

    def answer(self, path: str, body: bytes, came: float) -> None:
        if path == "/v1/models":
            self.plain({"data": [{"id": "truth", "max_model_len": 8192}]})
        elif path == "/truth":
            self.plain(self.told)
        elif path == "/v1/chat/completions":
            number = json.loads(body)["messages"][0]["content"]
            self.transport.write(_HEAD + ROLE)
            asyncio.get_running_loop().call_at(
                asyncio.get_running_loop().time() + FIRST, self.piece, number, came, 0
            )
        else:
            self.transport.write(
                b"HTTP/1.1 404 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )
            self.transport.close()

    def piece(self, number: str, came: float, at: int) -> None:
        if at == TOKENS:
            self.transport.write(END)
            return self.transport.close()
        if at == 0:
            self.told[number] = (came, time.perf_counter())
        self.transport.write(PIECES[at])
        asyncio.get_running_loop().call_at(
            asyncio.get_running_loop().time() + GAP, self.piece, number, came, at + 1
        )
        return None

    def plain(self, value: object) -> None:
        data = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\nconnection: close"
        self.transport.write(head.encode() + b"\r\n\r\n" + data)
        self.transport.close()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Truth, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
