"""Text that has far too many tokens, however they are counted: refused before it is tokenised, and said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from kvops.errors import ContextLengthExceeded
from kvops.node.api.schemas import Message
from kvops.node.length import refuse_longer
from kvops.node.prompts import PromptReader
from tests.harness import RunningNode
from tests.node.conftest import HTTP, chat, complete, error_of
from tests.node.test_overlength import LIMIT

TEXT = "the lazy dog jumps over the quick brown fox " * 2000


def unread(self: object, *args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError("the text was tokenised")


def test_the_error_says_that_nobody_counted_to_the_end() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        refuse_longer(1000, 16, 512)
    body = caught.value.body()["error"]
    assert "has at least 1000 prompt tokens and 16 output tokens" in body["message"]
    assert (body["prompt_tokens"], body["at_least"], body["limit"]) == (1000, True, 512)
    refuse_longer(496, 16, 512)
    refuse_longer(511, None, 512)


async def test_it_is_not_tokenised(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PromptReader.load(tiny_model)

    def refuse(least: int) -> None:
        refuse_longer(least, None, LIMIT)

    counted = len(await reader.completion(TEXT, 10**6, at_least=lambda least: None))
    monkeypatch.setattr(type(reader.tokenizer), "encode", unread)
    for asked in (
        reader.completion(TEXT, 10**6, at_least=refuse),
        reader.chat([Message(role="user", content=TEXT)], refuse),
    ):
        with pytest.raises(ContextLengthExceeded) as caught:
            await asked
        assert LIMIT < caught.value.extra["prompt_tokens"] <= counted + 100


def test_a_node_refuses_it_and_cuts_it_where_it_may(tiny_node: RunningNode) -> None:
    for asked in (complete, chat):
        refused = error_of(asked(tiny_node, TEXT))
        assert (refused["code"], refused["at_least"]) == ("context_length_exceeded", True)
        assert refused["prompt_tokens"] > refused["limit"]
        cut = asked(tiny_node, TEXT, max_tokens=4, over_length="truncate_middle")
        assert (cut.status_code, cut.json()["usage"]["prompt_tokens"]) == (200, LIMIT - 4)


def test_one_a_little_too_long_is_counted(tiny_node: RunningNode) -> None:
    prompt = "the lazy dog " * 200
    count = HTTP.post(f"{tiny_node.url}/v1/tokenize", json={"prompt": prompt}).json()["count"]
    refused = error_of(complete(tiny_node, prompt))
    assert refused["prompt_tokens"] == count > LIMIT
    assert "at_least" not in refused
