"""Chat templates that take their time: off the event loop, one at a time, bounded, and nobody else's trouble."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kvops.errors import QueueFull, TemplateTimeout
from kvops.node.api.schemas import Message
from kvops.node.prompts import PromptReader
from kvops.node.rendering import Renderer


async def test_a_hung_template_fails_alone_and_keeps_its_turn() -> None:
    renderer = Renderer(render_seconds=0.05, turn_seconds=0.05)
    release = threading.Event()
    with pytest.raises(TemplateTimeout) as caught:
        await renderer.run(lambda: release.wait(30))
    assert (caught.value.http_status, caught.value.code) == (500, "template_timeout")
    with pytest.raises(QueueFull):
        await renderer.run(lambda: 1)
    release.set()
    async with asyncio.timeout(10):
        while True:
            try:
                assert await renderer.run(lambda: 2) == 2
                return
            except QueueFull:
                continue


async def test_one_at_a_time_and_in_order() -> None:
    renderer = Renderer()
    at_work: list[int] = []
    most: list[int] = []

    def work(number: int) -> int:
        at_work.append(number)
        most.append(len(at_work))
        at_work.remove(number)
        return number

    results = await asyncio.gather(*(renderer.run(lambda n=n: work(n)) for n in range(50)))
    assert results == list(range(50))
    assert max(most) == 1


async def test_an_error_of_the_work_arrives() -> None:
    with pytest.raises(ZeroDivisionError):
        await Renderer().run(lambda: 1 // 0)


async def test_a_caller_that_gives_up_frees_its_turn() -> None:
    renderer = Renderer()
    release = threading.Event()
    first = asyncio.create_task(renderer.run(lambda: release.wait(30)))
    second = asyncio.create_task(renderer.run(lambda: "second"))
    third = asyncio.create_task(renderer.run(lambda: "third"))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    release.set()
    assert await asyncio.wait_for(third, 10) == "third"


async def test_no_message_is_so_short_that_it_is_rendered_on_the_loop(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = PromptReader.load(tiny_model)
    threads = []
    encode = reader._template.encode

    def spy(*args: Any, **kwargs: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode(*args, **kwargs)

    monkeypatch.setattr(reader._template, "encode", spy)
    assert await reader.chat([Message(role="user", content="x")])
    assert threads
    assert threading.main_thread() not in threads
