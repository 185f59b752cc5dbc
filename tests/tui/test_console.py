"""The console against a real node: what is seen, what keys do, and what a lost node does not do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from kvops import paths
from kvops.errors import NodeUnreachable
from kvops.telemetry.targets import Target, resolve
from kvops.tui.app import Console
from kvops.tui.glyphs import UNICODE
from kvops.tui.screens.confirm import ConfirmScreen
from kvops.tui.screens.fleet import FleetScreen
from kvops.tui.screens.node import NodeScreen
from kvops.tui.session import RATES, Session
from kvops.tui.store import Store, Watch
from tests.harness import RunningNode, start_node
from tests.telemetry.samples import make_snapshot
from tests.tui.screen import Switch, console, shown, target_of, until

NOWHERE = Target(name="tiny", url="http://127.0.0.1:1", control_url="http://127.0.0.1:1")


@pytest.fixture(scope="module")
def tiny_node(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node of their own: what tests of other files have done to a shared one is on this console's screen."""
    settings: dict[str, object] = {
        "model": {"name": str(tiny_model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
    }
    node = start_node(tmp_path_factory.mktemp("console"), settings, name="tiny")
    yield node
    node.stop()


def watching(node: RunningNode, **options: bool) -> Console:
    return console(Watch(node.name, lambda: target_of(node)), **options)


async def test_the_fleet_then_the_node(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(120, 35)) as pilot:
        text = await until(pilot, app, "tiny", "● OK", "READ-ONLY", "live", "seen: kvops")
        assert "1 Fleet" in text
        await pilot.press("enter")
        text = await until(
            pilot, app, "RAM", "weights", "free", "Queue", "TTFT", "no request in flight"
        )
        assert isinstance(app.screen, NodeScreen)
        await until(pilot, app, "KV blocks 128", "used", absent="not fetched yet")
        await pilot.press("escape")
        assert isinstance(app.screen, FleetScreen)
        await pilot.press("2", "q")
    assert app.return_code == 0


async def test_requests_in_flight_are_shown_without_their_text(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    secret = "zebra quagga"
    body = {
        "model": tiny_node.snapshot().model.value.name,
        "prompt": secret,
        "max_tokens": 400,
        "ignore_eos": True,
    }  # type: ignore[union-attr]
    async with app.run_test(size=(120, 35)) as pilot, httpx.AsyncClient(timeout=60) as http:
        await pilot.press("2")
        await until(pilot, app, "● OK", "no request in flight")
        for _ in range(20):
            async with http.stream(
                "POST", tiny_node.url + "/v1/completions", json=body | {"stream": True}
            ) as reply:
                assert reply.status_code == 200
                await pilot.pause(0.7)
                text = shown(app)
            if "/ 400" in text:
                break
        assert "/ 400" in text
        assert "decode" in text or "prefill" in text
        assert secret not in text


async def test_freezing_keeps_the_picture_and_goes_on_collecting(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "● OK")
        await pilot.press("space")
        frozen = app.session.view()
        polls = app.session.store.view().nodes[0].poll.polls
        await until(pilot, app, "FROZEN", "(-1 s)", absent="· live")
        while app.session.store.view().nodes[0].poll.polls < polls + 2:
            await pilot.pause(0.1)
        assert app.session.view().nodes[0].poll is frozen.nodes[0].poll
        await until(pilot, app, "FROZEN", absent="  0 s")
        await pilot.press("space")
        await until(pilot, app, "live", absent="FROZEN")
        assert app.session.view().nodes[0].poll.polls >= polls + 2


async def test_read_only_offers_no_drain_and_says_what_it_lacks(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "● OK")
        offered = {b.binding.action for b in app.screen.active_bindings.values()}
        assert not {"act('drain')", "act('resume')"} & offered
        for key in ("D", "U"):
            await pilot.press(key)
            await pilot.pause(0.1)
        assert ["kvops tui --write" in words for words in notices(app)] == [True, True]
        app.action_act("drain")
        await pilot.pause()
        assert isinstance(app.screen, FleetScreen)
    assert tiny_node.snapshot().state == "ready"


async def test_drain_asks_first_with_cancel_focused_and_resume_undoes_it(
    tiny_node: RunningNode,
) -> None:
    app = watching(tiny_node, write=True)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "● OK", "WRITE")
        await pilot.press("D")
        await until(pilot, app, "Drain tiny", "Cancel")
        assert app.focused is not None
        assert app.focused.id == "cancel"
        await pilot.press("enter")
        await pilot.pause()
        assert tiny_node.snapshot().state == "ready"
        await pilot.press("D")
        await until(pilot, app, "Drain tiny")
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen)
        try:
            await pilot.press("D")
            await until(pilot, app, "Drain tiny")
            await pilot.press("right", "enter")
            await until(pilot, app, "‖ DRAIN", "drain asked for here")
            assert tiny_node.snapshot().state == "draining"
        finally:
            tiny_node.control("POST", "/control/resume")
        await until(pilot, app, "● OK", "state draining to ready")


async def test_a_lost_node_keeps_its_values_dimmed_and_comes_back_by_itself(
    tiny_node: RunningNode,
) -> None:
    switch = Switch(target_of(tiny_node))
    app = console(Watch("tiny", switch))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("2")
        await until(pilot, app, "● OK", "128")
        screen, focus = app.screen, app.focused
        switch.target = NOWHERE
        await until(pilot, app, "? STALE", "age")
        text = await until(pilot, app, "✕ DOWN", "Connection refused")
        assert "weights" in text
        assert (app.screen, app.focused) == (screen, focus)
        await pilot.press("1")
        await until(pilot, app, "lost: cannot reach", "next try in")
        switch.target = target_of(tiny_node)
        await pilot.press("r")
        await until(pilot, app, "● OK", "back after", absent="✕")


async def test_a_refused_token_is_its_own_state(tiny_node: RunningNode) -> None:
    wrong = msgspec.structs.replace(target_of(tiny_node), token="wrong")
    app = console(Watch("tiny", lambda: wrong))
    async with app.run_test(size=(120, 35)) as pilot:
        text = await until(pilot, app, "⊘ DENIED", "--token-file")
        assert "wrong" not in text


def notices(app: Console) -> list[str]:
    return [notice.message for notice in app._notifications]


SIZES = [(120, 35), (80, 24), (60, 20), (200, 60), (40, 10), (20, 5)]


@pytest.mark.parametrize(
    ("size", "ascii_only"),
    [*((size, False) for size in SIZES), ((120, 35), True), ((60, 20), True)],
)
async def test_every_size_draws_both_screens(
    tiny_node: RunningNode, size: tuple[int, int], ascii_only: bool
) -> None:
    app = watching(tiny_node, ascii_only=ascii_only)
    async with app.run_test(size=size) as pilot:
        while app.session.store.view().nodes[0].poll.polls < 2:
            await pilot.pause(0.1)
        for key in ("2", "question_mark", "escape", "1"):
            await pilot.press(key)
            await pilot.pause()
            lines = shown(app).splitlines()
            assert len(lines) == size[1]
            assert {len(line) for line in lines} == {size[0]}
            if ascii_only:
                assert shown(app).isascii()


async def test_resizing_while_open(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("2")
        await until(pilot, app, "weights", "KV blocks 128")
        for size in ((80, 24), (60, 20), (120, 35)):
            await pilot.resize_terminal(*size)
            text = await until(pilot, app, "weights", "KV used", "TTFT", "OK")
            assert {len(line) for line in text.splitlines()} == {size[0]}


async def test_hostile_names_are_shown_as_they_are() -> None:
    name = "[red]x[/nope] [@click=app.quit]"
    error = NodeUnreachable("[/] lost [bold", hint="[link=x]")

    def gone() -> Target:
        raise error

    app = console(Watch(name, gone), ascii_only=True)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "[red]x[/nope]", "[/] lost [bold")
        await pilot.press("2")
        await until(pilot, app, "[/] lost [bold")
        for key in ("1", "slash", "left_square_bracket", "enter", "escape", "ctrl+p", "O", "p"):
            await pilot.press(key)
            await pilot.pause(0.1)
        assert app.is_running


async def test_hostile_readings_are_shown_as_they_are() -> None:
    from tests.telemetry.samples import Known, encode, loopback, make_map, reply, request_row

    rows = (request_row(0, request_id="[red]\x1b[2J", tenant="[/x]", priority="\n"),)
    hostile = make_snapshot(
        state_reason="[b]\x07", node="[", requests=Known(rows, 0.0), engine="[/]"
    )

    async def answer(method: str, path: str, headers: dict[str, str]) -> bytes:
        return reply(encode(hostile) if path == "/control/snapshot" else encode(make_map(50)))

    async with loopback(answer) as target:
        app = console(Watch("gpu-1", lambda: target))
        async with app.run_test(size=(120, 35)) as pilot:
            await until(pilot, app, "OK")
            await pilot.press("2")
            text = await until(pilot, app, "[red]", "[/x]", "[/]")
            assert "\x1b" not in text
            assert "\x07" not in text


async def test_filter_sort_rate_and_help() -> None:
    def gone() -> Target:
        raise NodeUnreachable("gone")

    app = console(*(Watch(name, gone) for name in ("alpha", "beta")))
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "alpha", "beta", "2 down", "by severity")
        await pilot.press("s")
        await until(pilot, app, "by name")
        await pilot.press("slash", *"bet", "enter")
        await until(pilot, app, "1 of 2 match 'bet'")
        assert not any("alpha" in line and "DOWN" in line for line in shown(app).splitlines()[4:8])
        await pilot.press("slash", *"zz", "enter")
        await until(pilot, app, "no node matches", absent="no node yet")
        await pilot.press("escape")
        await until(pilot, app, "alpha", absent="match")
        await pilot.press("ctrl+c")
        await pilot.pause(0.1)
        assert notices(app) == ["q quits"]
        await pilot.press("minus")
        await until(pilot, app, "every 1 s")
        await pilot.press("plus", "plus")
        assert app.session.store.interval == RATES[0]
        await pilot.press("question_mark")
        await until(pilot, app, "Keys and signs", "refuses the token")
        await pilot.press("escape")
        await until(pilot, app, "Fleet", absent="Keys and signs")
        await pilot.press("j", "2")
        await until(pilot, app, " beta ✕ DOWN")
        await pilot.press("n", "1")
        await until(pilot, app, "alpha · why DOWN", "▌✕ DOWN   alpha")


async def test_a_node_whose_control_plane_is_not_known_is_not_called_down() -> None:
    url = "http://127.0.0.1:1"
    app = console(Watch("127.0.0.1:1", lambda: resolve(url)))
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "○ UNSEEN", "not looked at", "--control-url", absent="DOWN")


async def test_a_local_node_by_its_url_is_watched_in_full(
    tiny_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVOPS_HOME", str(tiny_node.home))
    app = console(Watch("tiny", lambda: resolve(tiny_node.url)))
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "tiny", "● OK")


@pytest.mark.parametrize("size", [(80, 24), (60, 15)])
async def test_help_without_room_says_that_it_scrolls(size: tuple[int, int]) -> None:
    app = console()
    async with app.run_test(size=size) as pilot:
        await pilot.press("question_mark")
        await until(pilot, app, "Keys and signs", "j k scroll", absent="shared")
        await pilot.press(*"j" * 20)
        await until(pilot, app, "shared", "cached")


async def test_a_small_node_screen_says_what_it_does_not_list(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(60, 15)) as pilot:
        await until(pilot, app, "● OK")
        await pilot.press("2")
        await until(pilot, app, "weights", "TTFT", "running 0 /", "0 requests, not listed")


@pytest.mark.parametrize("size", [(120, 35), (80, 24), (60, 15)])
async def test_the_first_layout_is_for_the_size_at_hand(
    tiny_node: RunningNode, size: tuple[int, int]
) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=size) as pilot:
        await until(pilot, app, "● OK")
        widths: list[int] = []
        await pilot.press("2")
        for _ in range(10):
            widths.append(app.screen.query_one("#queue").outer_size.width)
            await pilot.pause(0.02)
        assert len(set(widths)) == 1, widths


async def test_the_last_map_stays_when_the_node_is_lost(tiny_node: RunningNode) -> None:
    switch = Switch(target_of(tiny_node))
    app = console(Watch("tiny", switch))
    async with app.run_test(size=(120, 35)) as pilot:
        await pilot.press("2")
        await until(pilot, app, "● OK", "KV blocks 128", absent="not fetched yet")
        await pilot.press("1")
        polls = app.session.store.view().nodes[0].poll.polls
        while app.session.store.view().nodes[0].poll.polls < polls + 2:
            await pilot.pause(0.1)
        switch.target = NOWHERE
        await until(pilot, app, "STALE")
        await pilot.press("2")
        text = await until(pilot, app, "KV blocks 128", "STALE")
        assert "fetched" not in text


async def test_a_screenshot_goes_to_the_state_folder(tiny_node: RunningNode) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "● OK")
        await pilot.press("S")
        await pilot.pause()
    pictures = list((paths.state_dir() / "screenshots").glob("*.svg"))
    assert len(pictures) == 1
    picture = pictures[0].read_text()
    assert "tiny" in picture
    assert picture.count("<text ") == picture.count('xml:space="preserve"') > 0


async def test_local_nodes_are_found_when_they_appear(
    tiny_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Console(Session(Store(discover=True), glyphs=UNICODE, write=False))
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "no node yet")
        monkeypatch.setenv("KVOPS_HOME", str(tiny_node.home))
        await until(pilot, app, "tiny", "● OK", absent="no node yet")


async def test_no_tick_asks_for_a_new_layout(
    tiny_node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = watching(tiny_node)
    async with app.run_test(size=(120, 35)) as pilot:
        await until(pilot, app, "● OK")
        await pilot.press("2")
        await until(
            pilot, app, "● OK", "KV blocks 128", "no request in flight", absent="not fetched yet"
        )
        await pilot.pause(1.0)
        layouts: list[object] = []
        real = NodeScreen._refresh_layout
        monkeypatch.setattr(
            NodeScreen,
            "_refresh_layout",
            lambda self, *a, **k: (layouts.append(a), real(self, *a, **k)),
        )
        for _ in range(5):
            app.tick()
            await pilot.pause(0.2)
        assert layouts == []


async def test_a_key_shows_the_reasons_that_have_no_room() -> None:
    """On 80x24 a long list is cut; the key that the last line names shows the rest, and then the first part again."""

    def nowhere() -> Target:
        raise NodeUnreachable("first " + "word " * 35, hint="mend " * 35 + "it")

    app = console(Watch("alpha", nowhere))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app, "more lines: w", "first")
        for _ in range(30):
            await pilot.press("w")
            if "from the start: w" in shown(app):
                break
        await until(pilot, app, "from the start: w")
        await pilot.press("w")
        await until(pilot, app, "more lines: w", "first")


async def test_a_map_that_is_not_there_yet_says_why_whole_and_without_a_url() -> None:
    from tests.telemetry.samples import encode, loopback, reply

    reason = "the model is being loaded (reading the weights, 3 of 5 files, then the warm-up)."
    body = b'{"error":{"message":"' + reason.encode() + b'","code":"not_ready"}}'

    async def answer(method: str, path: str, headers: dict[str, str]) -> bytes:
        ready = path == "/control/snapshot"
        return reply(encode(make_snapshot())) if ready else reply(body, "503 Service Unavailable")

    async with loopback(answer) as target:
        app = console(Watch("gpu-1", lambda: target))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, app, "OK")
            await pilot.press("2")
            text = await until(pilot, app, "block map: the model", "warm-up).")
    assert all(word in text for word in reason.split())
    assert "http://" not in text
    assert "/control/" not in text


def test_the_console_needs_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys, kvops.cli.tui, kvops.cli.snapshot, kvops.tui.start, kvops.tui.app, kvops.telemetry.clients.kvops\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'torch' or 'node.engine' in name])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "[]"


def test_the_first_paint_waits_for_no_http_library() -> None:
    code = "import sys, kvops.tui.start, kvops.tui.app\nprint('httpx' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.strip() == "False"


def test_no_panel_reads_markup() -> None:
    """Untrusted text goes through Text and markup=False; `Static` and `Label` would parse it."""
    source = Path(__file__).parents[2] / "src" / "kvops" / "tui"
    for file in source.rglob("*.py"):
        code = file.read_text()
        assert "Static(" not in code, file
        assert "Label(" not in code, file
        assert code.count("self.notify(") == code.count("markup=False"), file
