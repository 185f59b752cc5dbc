"""Prompt lengths without room for what a prompt must hold: told before a request is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvops.errors import NodeProtocolError, UsageError
from kvops.load import fits, scenarios
from kvops.load.endpoint import discover
from tests.load import commands
from tests.load.scripted import Reply, Request, node, serving


def counting(count: Callable[[str], int]) -> Callable[[Request, Reply], None]:
    def respond(request: Request, reply: Reply) -> None:
        if request.path == "/v1/tokenize":
            return reply.json(200, {"count": count(request.json()["messages"][0]["content"])})
        return node(request, reply)

    return respond


def four_a_word(text: str) -> int:
    return 4 * len(text.split()) + 10


def check(
    name: str, lengths: str, respond: Callable[[Request, Reply], None], seed: int = 1
) -> None:
    chosen = scenarios.find(name)
    with serving(respond) as server:
        fits.check(chosen, chosen.parse(["--lengths", lengths]), seed, discover(server.url, None))


@pytest.mark.parametrize(("name", "short"), [("needle_recall", 128), ("long_document", 32)])
def test_a_length_is_refused_with_one_that_has_room(name: str, short: int) -> None:
    count = four_a_word if name == "needle_recall" else lambda text: 20 * len(text.split())
    with pytest.raises(
        UsageError, match=rf"--lengths {short} is too short: .* tokens by the node's"
    ) as raised:
        check(name, f"512,{short}", counting(count))
    enough = raised.value.hint.split()[1]
    for seed in range(20):
        check(name, f"512,{enough}", counting(count), seed)


def test_the_longest_of_the_runs_needles_counts() -> None:
    """One of them takes more tokens than the others."""

    def of_keys(text: str) -> int:
        return 150 + 9 * ("glacier" in text)

    told = set()
    for seed in range(12):
        try:
            check("needle_recall", "155", counting(of_keys), seed)
            told.add("has room")
        except UsageError as error:
            told.add(error.message.partition(" take ")[2][:10])
    assert told == {"has room", "159 tokens"}


def test_without_a_tokenizer_route_it_is_an_estimate() -> None:
    def without(request: Request, reply: Reply) -> None:
        if "tokenize" in request.path:
            return reply.json(404, {})
        return node(request, reply)

    check("needle_recall", "256", without)
    with pytest.raises(UsageError, match="by an estimate, for the node has no tokenizer route"):
        check("long_document", "32", without)


def test_a_tokenizer_that_fails_is_no_usage_error() -> None:
    seen: list[int] = []

    def failing(request: Request, reply: Reply) -> None:
        if request.path != "/v1/tokenize":
            return node(request, reply)
        seen.append(1)
        return reply.json(200 if len(seen) == 1 else 500, {"count": 3})

    with pytest.raises(NodeProtocolError, match="stopped counting tokens"):
        check("needle_recall", "256", failing)


def test_the_command_says_so_before_it_sends_anything() -> None:
    with serving(counting(four_a_word)) as server:
        said = commands.load("run", "needle_recall", "--node", server.url, "--lengths", "128")
        sent = [request.path for request in server.requests if "chat" in request.path]
    assert (said.returncode, sent) == (2, [])
    assert "--lengths 128 is too short" in said.stderr
