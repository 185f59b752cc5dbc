"""Every route of both planes, by every method and in every spelling, without a key: only the public set answers.

The routes come from the applications themselves, so that one which is new cannot be forgotten.
"""

from __future__ import annotations

import http.client
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI

from kvops.node.api.app import create_control_app, create_data_app
from kvops.node.api.gate import PUBLIC
from kvops.node.services import Services
from tests.harness import RunningNode
from tests.node.conftest import KEYS

METHODS = (
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get", "FOO",
)  # fmt: skip
CLOSED = {401, 403, 404, 405}
NOWHERE = {
    "/", "*", "/v1", "/control", "/docs", "/redoc", "/openapi.json", "/favicon.ico", "/static/x", "/invocations",
    "/.well-known/x", "/debug", "/v1/embeddings", "/admin", "/metrics/x", "/livez/../v1/models", "/livez//v1/models",
}  # fmt: skip
_STAND_IN = cast(Services, SimpleNamespace(settings=None))
"""To list routes: none of them is called."""

Route = tuple[str, frozenset[str]]


def routes_of(app: FastAPI) -> list[Route]:
    found = list(_walk(app.routes))
    assert set(app.openapi()["paths"]) <= {path for path, _ in found}, "the walk misses routes"
    return found


def _walk(routes: Any) -> Iterator[Route]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _walk(inner.routes)
        else:
            # A mount or a web socket would have no methods: it would need a walk of its own.
            yield route.path, frozenset(route.methods)


DATA = routes_of(create_data_app(_STAND_IN))
CONTROL = routes_of(create_control_app(_STAND_IN))


def spellings(path: str, url: str) -> list[str]:
    """Request targets that a proxy, or a careless check, might take for `path`."""
    inner = path[1:]
    return [
        path + "/", "/" + path, "//" + path, "/." + path, "/x/.." + path, path + "/.", path + "/..", path + "//",
        path.upper(), path.title(), "/" + inner.replace("/", "%2f"), "%2F" + inner, path + "%2f", "/%2e" + path,
        "/" + f"%{ord(inner[0]):02x}" + inner[1:], path + "%00", path + "%20", path + ";x=1", path + ";/livez",
        path + "/livez", "/livez/.." + path, "/livez%2f.." + path, "\\" + inner, path + "%3fx", path + ".json",
        url + path, "http://evil.example" + path, inner,
    ]  # fmt: skip


class Line:
    """A connection that stays; a target goes out exactly as it is written."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            str(parts.hostname), parts.port or 80, timeout=60
        )
        self._host = parts.netloc

    def status(self, method: str, target: str, **headers: str) -> int:
        sent = {"Host": self._host} | {name.replace("_", "-"): v for name, v in headers.items()}
        self._connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


def targets(routes: list[Route], url: str) -> list[str]:
    exact = {path for path, _ in routes}
    spelt = {each for path in exact for each in spellings(path, url)}
    return sorted(exact | spelt | {path + "?x=1" for path in exact} | NOWHERE)


@pytest.mark.parametrize("key", [None, "wrong"])
def test_the_data_plane_without_a_key(keyed_node: RunningNode, key: str | None) -> None:
    line = Line(keyed_node.url)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    answered = set()
    for method, target in itertools.product(METHODS, targets(DATA, keyed_node.url)):
        status = line.status(method, target, **headers)
        if status not in CLOSED:
            answered.add((method, target, status))
    public = {
        (method, path + query, 200)
        for method, path, query in itertools.product(("GET", "HEAD"), PUBLIC, ("", "?x=1"))
    }
    assert answered == public


def test_a_key_opens_the_routes_and_no_other_spelling_of_them(keyed_node: RunningNode) -> None:
    line = Line(keyed_node.url)
    key = f"Bearer {KEYS['alice']}"
    methods = {path: {m for p, ms in DATA for m in ms if p == path} for path, _ in DATA}
    for method, target in itertools.product(METHODS, targets(DATA, keyed_node.url)):
        status = line.status(method, target, Authorization=key)
        path = target.removesuffix("?x=1")
        if path not in methods:
            assert status == 404, (method, target)
        elif method not in methods[path]:
            assert status == 405, (method, target)
        else:
            assert status in (200, 400), (method, target)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {KEYS['alice']}"},
        {"Authorization": "TOKEN", "Host": "evil.example"},
        {"Authorization": "TOKEN", "Host": "127.0.0.1"},
        {"Authorization": "TOKEN", "Host": "127.0.0.1.evil.example:PORT"},
        {"Authorization": "TOKEN", "Host": ""},
        {"Authorization": "TOKEN", "Origin": "null"},
        {"Authorization": "TOKEN", "Origin": "http://127.0.0.1:PORT"},
        {"Authorization": "TOKEN", "Sec_Fetch_Site": "cross-site"},
    ],
)
def test_the_control_plane_answers_its_operator_only(
    keyed_node: RunningNode, headers: dict[str, str]
) -> None:
    """Without the token, with a key of the data plane, under another name, or from a web page: nothing at all."""
    line = Line(keyed_node.control_url)
    port = keyed_node.control_url.rpartition(":")[2]
    sent = {
        name: value.replace("TOKEN", f"Bearer {keyed_node.token}").replace("PORT", port)
        for name, value in headers.items()
    }
    stranger = "Host" in headers or "Origin" in headers or "Sec_Fetch_Site" in headers
    known = [path for path, _ in CONTROL]
    all_of_them = known if headers else targets(CONTROL, keyed_node.control_url)
    for method, target in itertools.product(METHODS, all_of_them):
        expected = 403 if stranger else 401
        assert line.status(method, target, **sent) == expected, (method, target)
    assert (
        line.status("GET", "/control/snapshot", Authorization=f"Bearer {keyed_node.token}") == 200
    )


def test_the_planes_share_no_route(keyed_node: RunningNode) -> None:
    data, control = {path for path, _ in DATA}, {path for path, _ in CONTROL}
    assert not data & control
    assert all(path.startswith("/control/") for path in control)
    assert data - {path for path in data if path.startswith("/v1/")} == PUBLIC
    token, key = f"Bearer {keyed_node.token}", f"Bearer {KEYS['alice']}"
    for path in control:
        assert Line(keyed_node.url).status("GET", path, Authorization=key) == 404
        assert Line(keyed_node.url).status("GET", path, Authorization=token) == 401
    for path in data:
        assert Line(keyed_node.control_url).status("GET", path, Authorization=token) == 404


def test_a_control_route_answers_its_methods_only(keyed_node: RunningNode) -> None:
    line = Line(keyed_node.control_url)
    token = f"Bearer {keyed_node.token}"
    for path in sorted({path for path, _ in CONTROL}):
        own = {method for each, methods in CONTROL for method in methods if each == path}
        for method in set(METHODS) - own - {"CONNECT"}:
            assert line.status(method, path, Authorization=token) == 405, (method, path)
        for spelling in spellings(path, keyed_node.control_url):
            assert line.status("GET", spelling, Authorization=token) == 404, spelling
