"""A node with keys: what answers without one, what tenants see of each other, and that text is nowhere."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from kvops.node.api.gate import PUBLIC
from tests.harness import RunningNode
from tests.node.conftest import HTTP, KEYS, eventually_idle, model_of


def ask(
    node: RunningNode, key: str | None, path: str = "/v1/completions", **fields: Any
) -> httpx.Response:
    body = {
        "model": model_of(node, KEYS["alice"]),
        "prompt": "hello",
        "temperature": 0,
        "ignore_eos": True,
    }
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return HTTP.post(node.url + path, json=body | fields, headers=headers)


def test_keys_open_the_routes(keyed_node: RunningNode) -> None:
    for key in KEYS.values():
        assert ask(keyed_node, key).status_code == 200
    assert ask(keyed_node, None).status_code == 401
    assert ask(keyed_node, KEYS["alice"] + "x").status_code == 401
    assert ask(keyed_node, KEYS["alice"].upper()).status_code == 401


def test_a_bad_key_is_refused_before_the_body_is_read(keyed_node: RunningNode) -> None:
    answer = HTTP.post(f"{keyed_node.url}/v1/completions", content=b"{nonsense")
    assert answer.status_code == 401


def test_no_tenant_profits_from_anothers_prompt(keyed_node: RunningNode) -> None:
    def cached(key: str) -> int:
        usage = ask(keyed_node, key, prompt="a secret of some length " * 5, max_tokens=1).json()[
            "usage"
        ]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached(KEYS["alice"]) == 0
    assert cached(KEYS["bob"]) == 0, "the other tenant's prefix must not be found"
    assert cached(KEYS["alice"]) > 0, "caching works, so the check above means something"


def test_the_control_plane_does_not_take_api_keys(keyed_node: RunningNode) -> None:
    headers = {"Authorization": f"Bearer {KEYS['alice']}"}
    assert (
        HTTP.get(f"{keyed_node.control_url}/control/snapshot", headers=headers).status_code == 401
    )


@pytest.mark.parametrize("fails", [False, True])
def test_prompts_and_keys_are_nowhere_to_be_read(keyed_node: RunningNode, fails: bool) -> None:
    canary = "zyxcanary93127"
    fields: dict[str, Any] = {"temperature": 9} if fails else {"max_tokens": 4}
    for key, path, extra in (
        (KEYS["alice"], "/v1/completions", {"prompt": canary}),
        (KEYS["alice"], "/v1/tokenize", {"prompt": canary}),
        (KEYS["alice"], f"/v1/{canary}", {}),
        (canary, "/v1/completions", {"prompt": canary}),
        (KEYS["alice"], "/v1/completions", {canary: 1}),
        (KEYS["alice"], "/v1/completions", {"model": canary}),
    ):
        ask(keyed_node, key, path, **fields, **extra)
    eventually_idle(keyed_node)
    routes = ("snapshot", "requests", "kv/map?cells=64", "config")
    texts = [keyed_node.control("GET", f"/control/{route}").text for route in routes]
    texts += [HTTP.get(keyed_node.url + path).text for path in sorted(PUBLIC)]
    texts += [
        file.read_text(errors="replace") for file in keyed_node.home.rglob("*") if file.is_file()
    ]
    secrets = (canary, *KEYS.values())
    found = [secret for secret, text in itertools.product(secrets, texts) if secret in text]
    assert found == []
