"""Run folders as a run leaves them, for tests of what reads them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kvops.load import runs, scenarios
from kvops.load.records import (
    CLIENT_FILE,
    REQUESTS_FILE,
    SERVER_FILE,
    ClientSample,
    ErrorClass,
    NeedleScore,
    RequestRecord,
    ServerSample,
)
from tests.load.made import answer, lost

START = 1_790_000_000.0


def keep(
    folder: Path,
    records: Iterable[RequestRecord],
    *,
    scenario: str = "ramp",
    report: str = "plain",
    client: Iterable[ClientSample] = (),
    server: Iterable[ServerSample] = (),
    **changes: Any,
) -> Path:
    """The folder of a finished run under `folder`. The records become its own, numbered in their order."""
    info = runs.RunInfo(
        **{
            "run": f"{scenario}-{len(list(folder.glob('*')))}", "scenario": scenario, "report": report,
            "options": scenarios.find(scenario).defaults(), "users": 2, "seed": 1,
            "target": "http://127.0.0.1:8000", "model": "tiny", "max_model_len": 512, "started_at": START,
            "finished_at": START + 60, "status": "finished",
        }
        | changes
    )  # fmt: skip
    made = runs.create(info, folder)
    own = [
        msgspec.structs.replace(record, run=info.run, scenario=info.scenario, seq=number)
        for number, record in enumerate(records)
    ]
    for name, lines in ((REQUESTS_FILE, own), (CLIENT_FILE, client), (SERVER_FILE, server)):
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        (made.folder / name).write_bytes(text)
    return made.folder


def chat(count: int, *, scale: float = 1.0, failed: int = 0, seed: int = 1) -> list[RequestRecord]:
    """Answers to prompts of several lengths, a second apart, and `failed` refusals among them."""
    source, records = random.Random(seed), []
    for number in range(count):
        length = source.choice([100, 200, 400])
        ttft = scale * source.lognormvariate(-2.5, 0.2) * length / 200
        records.append(
            answer("chat", START + number, ttft=ttft, itl=0.02 * scale, prompt_tokens=length)
        )
    return records + [lost("chat", START + n, ErrorClass.HTTP_429) for n in range(failed)]


def recall() -> list[RequestRecord]:
    """A needle in each of two lengths and depths, one not found, and a prompt without one."""
    places = [(100, 0.0), (100, 50.0), (200, 0.0), (200, 50.0), (200, None)]
    return [
        answer(
            f"needle {length}", START + number, expected=number != 3,
            error_class=ErrorClass.WRONG_ANSWER if number == 3 else None,
            needle=NeedleScore(found=number < 3, length=length, depth=depth, counted_tokens=length, exact=True),
        )
        for number, (length, depth) in enumerate(places)
    ]  # fmt: skip


def samples(seconds: int) -> tuple[list[ClientSample], list[ServerSample]]:
    """What client and node were like, once a second."""
    client = [ClientSample(START + at, 2, 2, 0.1, 0.003) for at in range(seconds)]
    server = [
        ServerSample(
            at=START + at, running=2, waiting=at % 3, kv_total=100, kv_used=40, kv_cached=20
        )
        for at in range(seconds)
    ]
    return client, server
