"""From the code to the table of bounds: each constant and each field that bounds a request is in a row of it."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import kvops.node.api
from kvops.errors import QueueFull
from kvops.node import admission, listener, protocol, rendering, tls
from kvops.node.api import alerts, schemas, settings
from kvops.node.api.fields import Body
from kvops.node.keys import file as keys_file
from kvops.node.keys.file import MAX_FILE_BYTES, read_keys
from tests.node.test_bounds import rows_of_the_table

API = [
    importlib.import_module(f"kvops.node.api.{each.name}")
    for each in pkgutil.iter_modules(kvops.node.api.__path__)
]
MODULES = [*API, admission, keys_file, listener, protocol, rendering, tls]
BOUND = re.compile(r"MAX_[A-Z_]+|[A-Z_]+_(SECONDS|CONNECTIONS|BYTES)")
CONSTANTS = {
    "MAX_HEADER_BYTES": "headers",
    "MAX_HEADERS": "headers",
    "MAX_TOKENS": "`max_tokens`, `min_tokens`",
    "MAX_PARTS": "text parts in a message",
    "MAX_PROMPTS": "prompts in one request; prompts × n",
    "MAX_CHOICES": "prompts in one request; prompts × n",
    "MAX_PROMPT_TOKENS": "a prompt as token ids",
    "MAX_STOP_CHARS": "stop strings",
    "MAX_LOGIT_BIAS": "`logit_bias`",
    "MAX_KEYS": "API keys",
    "MAX_FILE_BYTES": "API keys",
    "HEADER_SECONDS": "time to send the head",
    "SEND_SECONDS": "a client that takes no byte of its answer",
    "LINGER_SECONDS": "a body still sent after its answer",
    "IDLE_SECONDS": "an idle connection",
    "DATA_CONNECTIONS": "connections",
    "CONTROL_CONNECTIONS": "connections",
    "HANDSHAKE_SECONDS": "TLS handshake",
    "RENDER_SECONDS": "time for a chat template",
    "TURN_SECONDS": "chats that wait for their template",
    "MAX_WAITING": "chats that wait for their template",
    "MAX_AUTHOR": "control plane: `author`, `note`, `rule`, `by`, `reason`, `sink`",
    "MAX_NOTE": "control plane: `author`, `note`, `rule`, `by`, `reason`, `sink`",
    "MAX_SILENCE_SECONDS": "control plane: `seconds` of a silence, `timeout` of a drill",
    "MAX_DRILL_SECONDS": "control plane: `seconds` of a silence, `timeout` of a drill",
}
"""Constant → row."""
OURS = {
    "LAST_WORD_SECONDS": "how long an answer that is cut waits for its last word",
    "LEAVE_SECONDS": "how long a connection that was told to end may take",
    "SPARED_SECONDS": "how long a connection that just came is not closed for another",
    "MAX_LEAVING": "connections that are being closed",
    "_OFF_LOOP_BYTES": "from which size on a body is read in a thread",
    "_SYNTAX_BYTES": "what the parser of a head has beside the bound of it",
}
"""What bounds the node's own doing, and refuses no request by itself."""
FIELDS = {
    "messages": "messages in a chat",
    "stop": "stop strings",
    "stop_token_ids": "stop token ids",
    "max_completion_tokens": "`max_tokens`, `min_tokens`",
    "prompt": "prompts in one request; prompts × n",
    "content": "text parts in a message",
}
"""Fields that the table has in other words."""
UNBOUNDED_IN_THE_TABLE = {"version": "the number of a version of settings: only from below"}


def constants() -> Iterator[str]:
    for module in MODULES:
        yield from (name for name in vars(module) if BOUND.fullmatch(name))


def test_each_constant_is_in_a_row_or_is_no_bound_of_a_request() -> None:
    found = set(constants())
    assert found >= CONSTANTS.keys(), "a constant of the list is gone"
    assert found - CONSTANTS.keys() - OURS.keys() == set(), "a bound without a row in the table"
    assert set(CONSTANTS.values()) <= rows_of_the_table().keys()


def bounded(schema: Any) -> bool:
    """Whether a JSON schema bounds what it describes from above."""
    if isinstance(schema, dict):
        bounds = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}
        return bool(bounds & schema.keys()) or any(
            bounded(one) for key, one in schema.items() if key != "$ref"
        )
    return isinstance(schema, list) and any(bounded(one) for one in schema)


def models() -> set[type[Body]]:
    found: set[type[Body]] = set()
    left = [Body]
    while left:
        found.add(model := left.pop())
        left += model.__subclasses__()
    return {model for model in found if model.__module__.startswith("kvops.node.api")} - {Body}


def test_each_field_with_a_bound_is_in_a_row() -> None:
    told = " ".join(" ".join((what, *cells)) for what, cells in rows_of_the_table().items())
    checked = 0
    for model in models():
        for name, schema in model.model_json_schema()["properties"].items():
            if not bounded(schema) or name in UNBOUNDED_IN_THE_TABLE:
                continue
            checked += 1
            assert FIELDS.get(name, f"`{name}`") in told, f"{model.__name__}.{name}"
    assert checked > 30


BASES: dict[type[Body], dict[str, Any]] = {
    settings.ReloadRequest: {"document": {}, "author": "a"},
    settings.RollbackRequest: {"author": "a"},
    alerts.SilenceRequest: {"rule": "r", "seconds": 1, "reason": "w", "by": "b"},
    alerts.AckRequest: {"rule": "r", "by": "b"},
    alerts.DrillRequest: {},
}


@pytest.mark.parametrize(
    ("model", "field", "edge", "past"),
    [
        *(
            (model, field, "x" * most, "x" * (most + 1))
            for model, field, most in (
                (settings.ReloadRequest, "author", 64),
                (settings.ReloadRequest, "note", 200),
                (settings.RollbackRequest, "author", 64),
                (settings.RollbackRequest, "note", 200),
                (alerts.SilenceRequest, "rule", 64),
                (alerts.SilenceRequest, "by", 200),
                (alerts.SilenceRequest, "reason", 200),
                (alerts.AckRequest, "rule", 64),
                (alerts.AckRequest, "by", 200),
                (alerts.DrillRequest, "sink", 512),
            )
        ),
        (alerts.SilenceRequest, "seconds", 30 * 86400, 30 * 86400 + 1),
        (alerts.SilenceRequest, "seconds", 0, -1),
        (alerts.DrillRequest, "timeout", 120, 121),
        (alerts.DrillRequest, "timeout", 1, 0.9),
    ],
)
def test_the_words_and_times_of_the_control_plane(
    model: type[Body], field: str, edge: object, past: object
) -> None:
    assert getattr(model.model_validate(BASES[model] | {field: edge}), field) == edge
    with pytest.raises(ValidationError):
        model.model_validate(BASES[model] | {field: past})


async def test_chats_that_wait_for_their_template() -> None:
    assert (rendering.MAX_WAITING, rendering.TURN_SECONDS) == (256, 10)
    renderer, release = rendering.Renderer(), threading.Event()
    first = asyncio.create_task(renderer.run(lambda: release.wait(30)))
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(renderer.run(lambda: True)) for _ in range(256)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="256 chats wait to be rendered"):
        await renderer.run(lambda: True)
    release.set()
    assert all(await asyncio.gather(first, *waiting))


def test_the_size_of_a_keys_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    row = b'- {id: k, tenant: t, sha256: "' + b"1" * 64 + b'"}\n'
    file.write_bytes(row.ljust(MAX_FILE_BYTES, b"\n"))
    file.chmod(0o600)
    assert MAX_FILE_BYTES == 8 * 2**20
    assert [key.id for key in read_keys(file)] == ["k"]
    with file.open("ab") as more:
        more.write(b"\n")
    with pytest.raises(Exception, match="over the bound of 8388608 bytes"):
        read_keys(file)


def test_the_largest_number_of_tokens_is_the_one_told() -> None:
    assert (schemas.MAX_TOKENS, admission.MAX_CHOICES) == (10_000_000, 128)
