"""Where the lines of a locust process go."""

from __future__ import annotations

from pathlib import Path

from kvops.load.records import (
    CLIENT_FILE,
    REQUESTS_FILE,
    SERVER_FILE,
    ClientSample,
    JsonLines,
    RequestRecord,
    ServerSample,
)


class FileSink:
    """The files of the run folder. Several processes may append to the same ones."""

    def __init__(self, folder: Path) -> None:
        self._requests = JsonLines(folder / REQUESTS_FILE)
        self._client = JsonLines(folder / CLIENT_FILE)
        self._server: JsonLines | None = None
        self._server_file = folder / SERVER_FILE

    def record(self, record: RequestRecord) -> None:
        self._requests.append(record)

    def sample(self, sample: ClientSample) -> None:
        self._client.append(sample)

    def server(self, sample: ServerSample) -> None:
        """The file is made with the first: a node that tells nothing has none."""
        if self._server is None:
            self._server = JsonLines(self._server_file)
        self._server.append(sample)

    def append(self, requests: bytes, client: bytes) -> None:
        """Whole lines of another process. Raises OSError."""
        self._requests.append_lines(requests)
        self._client.append_lines(client)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._requests.close()
        self._client.close()
        if self._server is not None:
            self._server.close()
