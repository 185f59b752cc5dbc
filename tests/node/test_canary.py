"""A string that a client sends is nowhere but in its own answer: in no log, page, record, file or title of the node,
also after its engine was killed, after a defect that quotes what it was given, and at the most talkative log level.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from kvops.node.audit_verify import verify
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, eventually, in_flight, keys_file, model_of

CANARY = "kanarienvogel"
KEYS = {"alice": "kvk_alice_secret_of_43_characters_or_more_0001", "bob": "kvk_bob"}
DEFECT_IN_ENGINE, DEFECT_IN_API = 666_001, 666_002

DEFECTS = f"""
import sys
from importlib.machinery import PathFinder

def engine(module):
    add = module.Engine.add
    def broken(self, message):
        if message.params.seed == {DEFECT_IN_ENGINE}:
            raise ValueError("cannot add {CANARY}")
        add(self, message)
    module.Engine.add = broken

def api(module):
    prepare = module.prepare_completion
    async def broken(body, *others):
        if body.seed == {DEFECT_IN_API}:
            raise ValueError(f"cannot prepare {{body!r}}")
        return await prepare(body, *others)
    module.prepare_completion = broken

PATCHES = {{"kvops.node.engine.engine": engine, "kvops.node.api.openai": api}}

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in PATCHES:
            return None
        spec = PathFinder.find_spec(name, path)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            PATCHES[name](module)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""
"""A `sitecustomize` with two defects whose exceptions quote a request."""


@pytest.fixture(scope="module")
def defective_node(
    long_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    home, beside = tmp_path_factory.mktemp("canary"), tmp_path_factory.mktemp("beside")
    (beside / "sitecustomize.py").write_text(DEFECTS)
    keys = keys_file(beside, KEYS)
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {"threads": 1, "result_store": {"entries": 8}},
        "server": {"api_keys_file": str(keys)},
        "limits": {"body_bytes": "64KiB"},
        "logging": {"level": "debug"},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(beside))
        node = start_node(home, settings, name="canary")
    yield node
    node.stop()


def completion(node: RunningNode, **fields: object) -> httpx.Response:
    body = {"model": model_of(node, KEYS["alice"]), "prompt": "hello", "max_tokens": 4} | fields
    return post(node, "/v1/completions", json=body)


def post(
    node: RunningNode, path: str, key: str = KEYS["alice"], **request: object
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}", **request.pop("headers", {})}  # type: ignore[dict-item]
    return HTTP.post(node.url + path, headers=headers, **request)  # type: ignore[arg-type]


def raw(url: str, data: bytes) -> bytes:
    """What a server answers to bytes that no client library would send."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1 << 16)


def chat(node: RunningNode, content: str) -> httpx.Response:
    body = {
        "model": model_of(node, KEYS["alice"]),
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
    }
    return post(node, "/v1/chat/completions", json=body)


SENDERS: dict[str, Callable[[RunningNode], object]] = {
    "prompt": lambda n: completion(n, prompt=CANARY).raise_for_status(),
    "prompt, streamed": lambda n: completion(n, prompt=CANARY, stream=True).raise_for_status(),
    "prompt, kept": lambda n: completion(n, prompt=CANARY, temperature=0).raise_for_status(),
    "chat message": lambda n: chat(n, CANARY).raise_for_status(),
    "tokenize": lambda n: post(n, "/v1/tokenize", json={"prompt": CANARY}).raise_for_status(),
    "stop string": lambda n: completion(n, stop=[CANARY]).raise_for_status(),
    "too many stop strings": lambda n: completion(n, stop=[CANARY] * 9),
    "user": lambda n: completion(n, user=CANARY),
    "unknown field": lambda n: completion(n, **{CANARY: 1}),
    "wrong type": lambda n: completion(n, max_tokens=CANARY),
    "wrong enum": lambda n: completion(n, priority=CANARY),
    "token bias": lambda n: completion(n, logit_bias={CANARY: 1}),
    "model": lambda n: completion(n, model=CANARY),
    "long model": lambda n: completion(n, model=CANARY * 1000),
    "api key": lambda n: post(n, "/v1/completions", key=CANARY * 4, json={}),
    "header value": lambda n: post(n, "/v1/completions", headers={"X-Request-Id": CANARY}, json={}),
    "header name": lambda n: post(n, "/v1/completions", headers={f"X-{CANARY}": "1"}, json={}),
    "media type": lambda n: post(n, "/v1/completions", headers={"Content-Type": CANARY}),
    "encoding": lambda n: post(n, "/v1/completions", headers={"Content-Encoding": CANARY}, json={}),
    "long header": lambda n: post(n, "/v1/completions", headers={"X-A": CANARY * 4000}, json={}),
    "path": lambda n: post(n, f"/v1/{CANARY}", json={}),
    "escaped path": lambda n: post(n, f"/v1/%2e/{CANARY}", json={}),
    "query": lambda n: post(n, f"/v1/completions?key={CANARY}", json={}),
    "health query": lambda n: HTTP.get(f"{n.url}/metrics?{CANARY}={CANARY}"),
    "malformed JSON": lambda n: post(n, "/v1/completions", content=f'{{"{CANARY}": {CANARY}'.encode(),
                                     headers={"Content-Type": "application/json"}),
    "key twice": lambda n: post(n, "/v1/completions", content=f'{{"{CANARY}": 1, "{CANARY}": 2}}'.encode(),
                                headers={"Content-Type": "application/json"}),
    "over-long body": lambda n: completion(n, prompt=CANARY * 10_000),
    "method": lambda n: HTTP.request(CANARY.upper(), f"{n.url}/v1/completions"),
    "no HTTP": lambda n: raw(n.url, f"{CANARY}\r\n\r\n".encode()),
    "bad header": lambda n: raw(n.url, f"GET / HTTP/1.1\r\n{CANARY}: \x00{CANARY}\r\n\r\n".encode()),
    "bad version": lambda n: raw(n.url, f"GET /{CANARY} {CANARY}/9\r\n\r\n".encode()),
    "body that ends early": lambda n: raw(n.url, (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEYS['alice']}\r\n"
        f"Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{CANARY}").encode()),
    "control token": lambda n: httpx.post(f"{n.control_url}/control/drain",
                                          headers={"Authorization": f"Bearer {CANARY}"}),
    "control host": lambda n: httpx.post(f"{n.control_url}/control/drain", headers={"Host": CANARY}),
    "control origin": lambda n: httpx.post(f"{n.control_url}/control/drain",
                                           headers={"Origin": f"http://{CANARY}"}),
    "control path": lambda n: n.control("POST", f"/control/{CANARY}"),
    "control query": lambda n: n.control("GET", f"/control/kv/map?cells={CANARY}"),
    "control cancel": lambda n: n.control("POST", "/control/cancel", json={"request_id": CANARY}),
}  # fmt: skip


@pytest.mark.parametrize("place", SENDERS)
def test_what_is_sent_stays_between_client_and_node(
    place: str, defective_node: RunningNode
) -> None:
    answer = SENDERS[place](defective_node)
    if isinstance(answer, httpx.Response):
        assert answer.text.lower().count(CANARY) <= 20, "an echo is bounded"
        assert not any(CANARY in value.lower() for value in answer.headers.values())


def test_a_running_request_shows_nothing_and_neither_does_the_engine_it_takes_along(
    defective_node: RunningNode,
) -> None:
    node, seen = defective_node, []

    def long_one() -> None:
        with contextlib.suppress(httpx.HTTPError):
            seen.append(completion(node, prompt=CANARY, max_tokens=16_000, ignore_eos=True).text)

    client = threading.Thread(target=long_one)
    client.start()
    eventually(lambda: in_flight(node.snapshot()), "it is in flight", 60)
    assert found_in(node) == []
    node.engine().kill()
    client.join(60)
    assert "engine_restarted" in seen[0]
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 200, "ready again", 90)
    assert found_in(node) == []


def test_a_defect_that_quotes_a_request_is_told_without_its_words(
    defective_node: RunningNode,
) -> None:
    node = defective_node
    answer = completion(node, prompt=CANARY, seed=DEFECT_IN_API)
    assert answer.status_code == 500
    assert CANARY not in answer.text
    assert completion(node, seed=DEFECT_IN_ENGINE).json()["error"]["code"] == "engine_restarted"
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 200, "ready again", 90)
    assert found_in(node) == []
    log = (state_of(node) / "node.log").read_text()
    assert '"error": "ValueError"' in log
    assert "ValueError at sitecustomize.py" in (state_of(node) / "engine.log").read_text()


def test_a_crash_leaves_no_memory_behind(defective_node: RunningNode) -> None:
    for process in (psutil.Process(defective_node.process.pid), defective_node.engine()):
        assert resource.prlimit(process.pid, resource.RLIMIT_CORE)[0] <= 1


def test_nothing_of_it_is_left_and_the_search_would_see_it(defective_node: RunningNode) -> None:
    assert found_in(defective_node) == []
    assert verify(defective_node.home / "state" / "audit" / "canary").whole
    planted = state_of(defective_node) / "planted.log"
    planted.write_text(f"a line with {CANARY}")
    assert found_in(defective_node) == [str(planted)]
    planted.unlink()


def state_of(node: RunningNode) -> Path:
    return node.home / "state" / "nodes" / node.name


def found_in(node: RunningNode) -> list[str]:
    """Every place of the node, what it shows to others, its files and its processes, that holds the canary."""
    # Both write behind: what a later request led to is written after all that came before.
    assert node.control("POST", "/control/flush").status_code == 200
    audit, log = node.home / "state" / "audit" / node.name, state_of(node) / "node.log"
    flushes = (bytes_of(log).count(b'"flushed"'), records_of(audit).count(b'"what":"flush"'))
    assert node.control("POST", "/control/flush").status_code == 200
    eventually(lambda: bytes_of(log).count(b'"flushed"') > flushes[0], "the log is written", 60)
    eventually(
        lambda: records_of(audit).count(b'"what":"flush"') > flushes[1], "the audit is written", 60
    )
    places = {**pages_of(node), **files_of(node), **titles_of(node)}
    assert len(places) > 15
    return [name for name, content in places.items() if CANARY.encode() in content.lower()]


def bytes_of(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def records_of(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(folder.glob("*.jsonl")))


def pages_of(node: RunningNode) -> dict[str, bytes]:
    bob = {"Authorization": f"Bearer {KEYS['bob']}"}
    public = ("/livez", "/readyz", "/health", "/metrics")
    pages = {path: HTTP.get(node.url + path).content for path in public}
    pages["/v1/models"] = HTTP.get(f"{node.url}/v1/models", headers=bob).content
    body = {"model": CANARY.upper()[:3], "prompt": "hello"}
    pages["another's error"] = post(node, "/v1/completions", KEYS["bob"], json=body).content
    looks = ("snapshot", "requests", "config", "kv/map?cells=100", "alerts", "quarantine")
    return pages | {f"/control/{at}": node.control("GET", f"/control/{at}").content for at in looks}


def files_of(node: RunningNode) -> dict[str, bytes]:
    """All under the node's home, what it printed, and what a crash may leave where it runs."""
    files = [file for file in node.home.rglob("*") if file.is_file()]
    files += [file for file in Path(os.getcwd()).glob("core*") if file.is_file()]
    return {str(file): file.read_bytes() for file in files}


def titles_of(node: RunningNode) -> dict[str, bytes]:
    titles = {}
    for process in (psutil.Process(node.process.pid), node.engine()):
        folder = Path("/proc", str(process.pid))
        for name in ("cmdline", "comm", "environ", *map(str, folder.glob("task/*/comm"))):
            titles[f"{process.pid} {name}"] = (folder / name).read_bytes()
    return titles
