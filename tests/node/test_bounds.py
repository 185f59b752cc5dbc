"""Every bound of a request, at its edge and one past it. One list, and each row of the table of bounds is in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvops.config.schema import NodeConfig
from kvops.node import listener, protocol, tls
from kvops.node.api import fields, gate
from kvops.node.keys.file import MAX_KEYS, read_keys
from kvops.units import format_bytes, format_duration
from tests.harness import RunningNode, start_node
from tests.node.bounds import BOUNDS, ELSEWHERE, LIMITS, OK, Bound, completion
from tests.node.conftest import HTTP, eventually, eventually_idle

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bounded_node(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 512},
        "runtime": {"threads": 1, "max_queue": 500},
        "limits": LIMITS,
    }
    node = start_node(tmp_path_factory.mktemp("bounded"), settings, name="bounded")
    yield node
    assert node.stop() == 0


@pytest.mark.parametrize("bound", BOUNDS, ids=[f"{at} {b.row}" for at, b in enumerate(BOUNDS)])
def test_at_the_edge_and_one_past_it(bounded_node: RunningNode, bound: Bound) -> None:
    assert bound.edge(bounded_node) == bound.passes
    assert bound.past(bounded_node) == bound.refusal


def test_what_was_refused_cost_nothing(bounded_node: RunningNode) -> None:
    """After all of the above: no step is run for what is refused, and the node goes on."""

    def steps() -> Any:
        return bounded_node.control("GET", "/control/snapshot").json()["progress"]["value"]["steps"]

    def cost() -> int:
        before = steps()
        for bound in BOUNDS:
            if bound.refusal != (408, "body_timeout"):
                bound.past(bounded_node)
        return int(steps() - before)

    eventually(lambda: HTTP.get(f"{bounded_node.url}/readyz").status_code == 200, "ready", 60)
    eventually_idle(bounded_node)
    # The engine's last report of the tests above may come in meanwhile.
    eventually(lambda: cost() == 0, "what is refused runs no step", 60)
    assert completion()(bounded_node) == OK


def test_the_bound_of_a_keys_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    rows = [f'- {{id: k{at}, tenant: t, sha256: "{at:064x}"}}\n' for at in range(MAX_KEYS + 1)]
    file.write_text("".join(rows[:-1]))
    file.chmod(0o600)
    assert len(read_keys(file)) == MAX_KEYS
    file.write_text("".join(rows))
    with pytest.raises(Exception, match=f"at most {MAX_KEYS}"):
        read_keys(file)


def test_a_prompt_of_token_ids_has_a_bound_before_any_other() -> None:
    ids = [1] * fields.MAX_PROMPT_TOKENS
    assert fields.parse_prompts(ids) == [ids]
    with pytest.raises(Exception, match="at most 2000000 token ids"):
        fields.parse_prompts([*ids, 1])


def rows_of_the_table() -> dict[str, tuple[str, str]]:
    """What → setting and default, of the table under `### Bounds`."""
    text = (REPO / "docs" / "operations.md").read_text().partition("### Bounds")[2]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in _table(text)]
    return {what: (setting, default) for what, setting, default in cells[2:]}


def _table(text: str) -> list[str]:
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("|"))
    end = next(at for at, line in enumerate(lines) if at > start and not line.startswith("|"))
    return lines[start:end]


def test_every_row_of_the_table_has_its_test() -> None:
    held = {bound.row for bound in BOUNDS} | set(ELSEWHERE)
    rows = rows_of_the_table()
    assert len(rows) > 10
    assert set(rows) == held


@pytest.mark.parametrize(("row", "where"), sorted(ELSEWHERE.items()))
def test_the_tests_of_the_other_rows_are_there(row: str, where: str) -> None:
    file, _, name = where.partition("::")
    tree = ast.parse((Path(__file__).parent / file).read_text())
    functions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in functions, row


def test_the_defaults_in_the_table_are_those_of_the_settings() -> None:
    settings, checked = NodeConfig().model_dump(), 0
    for what, (setting, default) in rows_of_the_table().items():
        section, _, key = setting.strip("`").partition(".")
        if section not in ("limits", "runtime") or not default[0].isdigit():
            continue
        value = settings[section][key]
        shown = f"{value:,}"
        if key.endswith("bytes"):
            shown = format_bytes(value)
        elif "time" in key:
            shown = format_duration(value)
        spellings = {shown, shown.replace(".0 ", " "), f"{value:g} s", f"{value / 60:g} min"}
        assert any(default.startswith(each) for each in spellings), (what, default, shown)
        checked += 1
    assert checked >= 8


def test_the_fixed_bounds_are_as_they_are_told() -> None:
    assert (gate.MAX_HEADER_BYTES, gate.MAX_HEADERS) == (32 * 1024, 128)
    assert (protocol.HEADER_SECONDS, protocol.SEND_SECONDS, protocol.LINGER_SECONDS) == (15, 30, 10)
    assert (listener.IDLE_SECONDS, tls.HANDSHAKE_SECONDS) == (75, 10)
    assert (listener.DATA_CONNECTIONS, listener.CONTROL_CONNECTIONS) == (1024, 64)
    assert (fields.MAX_PROMPTS, fields.MAX_STOP_CHARS, fields.MAX_LOGIT_BIAS) == (64, 256, 300)
