"""Shapes that were in flight when engines died: who is refused, who is let go, and what outlives the daemon."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvops.config.load import load_config
from kvops.config.settings import Settings
from kvops.errors import EngineRestarted, Quarantined
from kvops.node.quarantine import MOST, Quarantine, Shape
from kvops.node.sampling import SamplingParams
from kvops.node.wire import Submit
from kvops.telemetry.snapshot import Known
from tests.harness import RunningNode, start_node
from tests.node.conftest import HTTP, complete, error_of, eventually, model_of
from tests.node.test_lifecycle import in_flight, in_thread, raw_post

Request = list[Submit]


def request(
    length: int, *, tenant: str = "t", content: int = 1, n: int = 1, **params: object
) -> Request:
    """What the engine would be given for one prompt and n choices."""
    chosen = SamplingParams(**{"max_tokens": 8, **params})  # type: ignore[arg-type]
    return [
        Submit(
            request_id=f"r{index}", prompt_token_ids=(content,) * length, params=chosen, tenant=tenant,
            salt=b"", leader="r0" if index else None,
        )
        for index in range(n)
    ]  # fmt: skip


def settings_of(**quarantine: object) -> Settings:
    return Settings(
        load_config(None, {f"quarantine.{key}": value for key, value in quarantine.items()})
    )


@pytest.fixture
def quarantine(tmp_path: Path) -> Quarantine:
    return Quarantine(tmp_path / "quarantine.json", settings_of())


def refused(quarantine: Quarantine, one: Request) -> bool:
    try:
        quarantine.check(one, ())
    except Quarantined:
        return True
    return False


def test_one_crash_refuses_nobody(quarantine: Quarantine) -> None:
    quarantine.engine_lost("killed", [request(5)])
    assert not refused(quarantine, request(5))
    assert [quarantine.standing(one) for one in quarantine.all()] == ["suspect"]


def test_in_two_crashes_alone_is_refused_with_a_reason(quarantine: Quarantine) -> None:
    quarantine.engine_lost("killed", [request(5), request(6)])
    quarantine.engine_lost("stalled", [request(7), request(5)])
    with pytest.raises(Quarantined, match="2 engine crashes") as caught:
        quarantine.check(request(5, content=2), ())
    assert caught.value.http_status == 422
    assert "kvops node quarantine" in caught.value.hint
    assert not refused(quarantine, request(6))
    assert not refused(quarantine, request(7))
    assert (quarantine.refused, quarantine.quarantined) == (1, 1)
    assert quarantine.all()[0].reasons == ["killed", "stalled"]


@pytest.mark.parametrize(
    "other",
    [request(6), request(5, tenant="u"), request(5, n=2), request(5, temperature=0.5), request(5, max_tokens=9),
     request(5, logit_bias={3: 1.0}), request(5, stop_token_ids=(3,)), request(5, seed=1)],
)  # fmt: skip
def test_another_shape_is_served(quarantine: Quarantine, other: Request) -> None:
    for _ in range(2):
        quarantine.engine_lost("killed", [request(5)])
    assert refused(quarantine, request(5, content=9))
    assert not refused(quarantine, other)


def test_a_shape_says_nothing_of_the_content() -> None:
    assert Shape.of(request(5, content=3)) == Shape.of(request(5, content=4))
    assert Shape.of(request(5, seed=3)) == Shape.of(request(5, seed=4))
    one, other = ({token: 1.0} for token in (77_777, 88_888))
    assert Shape.of(request(5, logit_bias=one)) == Shape.of(request(5, logit_bias=other))
    assert Shape.of(request(5, stop_token_ids=(7,))) == Shape.of(request(5, stop_token_ids=(8,)))


def test_those_beside_the_culprit_are_tried_one_at_a_time_and_let_go(
    quarantine: Quarantine,
) -> None:
    crowd = [request(length) for length in range(1, 9)]
    culprit = crowd[3]
    for _ in range(2):
        quarantine.engine_lost("killed", crowd)
    assert not any(refused(quarantine, one) for one in crowd), "nobody is worse than the others"
    with pytest.raises(EngineRestarted, match="one at a time"):
        quarantine.check(crowd[0], [request(99), crowd[1]])
    quarantine.check(crowd[0], [request(99)])
    quarantine.answered(crowd[0])
    quarantine.check(crowd[0], [crowd[1]])
    quarantine.engine_lost("killed", [culprit, request(99), crowd[0]])
    assert [one for one in crowd if refused(quarantine, one)] == [culprit]


def test_an_answer_lets_a_suspect_go_but_ends_no_quarantine(quarantine: Quarantine) -> None:
    quarantine.engine_lost("killed", [request(5)])
    quarantine.answered(request(5))
    quarantine.engine_lost("killed", [request(5)])
    assert not refused(quarantine, request(5))
    quarantine.engine_lost("killed", [request(5)])
    quarantine.answered(request(5))
    assert refused(quarantine, request(5))


def test_equal_requests_in_one_crash_count_once(quarantine: Quarantine) -> None:
    quarantine.engine_lost("killed", [request(5), request(5)])
    assert not refused(quarantine, request(5))


def test_it_outlives_the_daemon_and_is_cleared_for_good(tmp_path: Path) -> None:
    file = tmp_path / "quarantine.json"
    first = Quarantine(file, settings_of())
    first.engine_lost("killed", [request(5), request(6)])
    second = Quarantine(file, settings_of())
    second.engine_lost("killed", [request(5)])
    third = Quarantine(file, settings_of())
    assert refused(third, request(5))
    assert file.stat().st_mode & 0o077 == 0
    assert third.clear(Shape.of(request(5)).id) == 1
    assert third.clear("0" * 12) == 0
    assert not refused(Quarantine(file, settings_of()), request(5))
    assert [one.shape for one in Quarantine(file, settings_of()).all()] == [Shape.of(request(6))]
    assert third.clear(None) == 1
    assert Quarantine(file, settings_of()).all() == []


def test_crashes_and_quarantines_expire(
    quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    quarantine.engine_lost("killed", [request(5)])
    monkeypatch.setattr(time, "time", lambda: now + 3700)
    quarantine.engine_lost("killed", [request(5)])
    assert not refused(quarantine, request(5)), "the first crash is too long ago"
    quarantine.engine_lost("killed", [request(5)])
    assert refused(quarantine, request(5))
    monkeypatch.setattr(time, "time", lambda: now + 3700 + 86_300)
    assert refused(quarantine, request(5))
    monkeypatch.setattr(time, "time", lambda: now + 3700 + 86_500)
    assert not refused(quarantine, request(5))
    assert quarantine.all() == []


def test_more_crashes_can_be_asked_for(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "q.json", settings_of(crashes=3))
    for _ in range(2):
        quarantine.engine_lost("killed", [request(5)])
    assert not refused(quarantine, request(5))
    quarantine.engine_lost("killed", [request(5)])
    assert refused(quarantine, request(5))


def test_there_is_no_probation_before_so_many(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "q.json", settings_of(crashes=3))
    crowd = [request(length) for length in range(1, 9)]
    for _ in range(2):
        quarantine.engine_lost("killed", crowd)
    quarantine.check(crowd[0], crowd[1:])


def test_it_is_bounded_and_keeps_the_worst(quarantine: Quarantine) -> None:
    for _ in range(2):
        quarantine.engine_lost("killed", [request(1)])
    for start in range(2, 3 * MOST, 64):
        quarantine.engine_lost("killed", [request(start + i) for i in range(64)])
    assert len(quarantine.all()) == MOST
    assert refused(quarantine, request(1))


NO_CRASH = b'[{"id": "0", "shape": {"tenant": "a", "choices": 1, "asks": []}, "crashes": [], "reasons": []}]'


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1}', b"[" * 5000, b'[{"id": 1}]', NO_CRASH])
def test_a_broken_file_is_no_reason_not_to_start(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "quarantine.json"
    file.write_bytes(content)
    quarantine = Quarantine(file, settings_of())
    assert quarantine.all() == []
    quarantine.engine_lost("killed", [request(5)])
    assert len(Quarantine(file, settings_of()).all()) == 1


def test_a_full_disk_costs_the_file_only(
    quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvops.paths.write_atomic", full)
    for _ in range(2):
        quarantine.engine_lost("killed", [request(5)])
    assert refused(quarantine, request(5))


# On a node.


@pytest.fixture(scope="module")
def node(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    settings: dict[str, object] = {
        "model": {"name": str(long_model)},
        "kv_cache": {"blocks": 1024},
        "runtime": {"threads": 1},
        "restart": {"budget": 50, "backoff": "10ms"},
    }
    node = start_node(tmp_path_factory.mktemp("quarantine"), settings, name="quarantine")
    yield node
    node.stop()


POISON = {"prompt": "a deadly one", "max_tokens": 16_000}


def kill_with(node: RunningNode, **fields: object) -> None:
    """Kill the engine while a request like this is in it, and wait for the next one."""
    engine = node.engine()
    thread, answers = in_thread(lambda: complete(node, **fields))
    eventually(lambda: in_flight(node.snapshot()) > 0, "it is in flight", 60)
    engine.kill()
    thread.join(60)
    assert error_of(answers[0])["code"] == "engine_restarted"
    eventually(lambda: HTTP.get(f"{node.url}/readyz").status_code == 200, "ready again", 60)


def test_a_node_quarantines_and_an_operator_clears(node: RunningNode) -> None:
    model_of(node)
    kill_with(node, **POISON)
    kill_with(node, **POISON)
    answer = complete(node, **POISON)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (422, "quarantined")
    assert complete(node, prompt="a harmless one", max_tokens=4).status_code == 200
    metrics = HTTP.get(f"{node.url}/metrics").text
    assert "kvops_requests_quarantined_total 1.0" in metrics
    assert "kvops_quarantined_shapes 1.0" in metrics
    assert 'kvops_request_rejections_total{reason="quarantined"} 1.0' in metrics
    progress = node.snapshot().progress
    assert isinstance(progress, Known)
    assert progress.value.quarantined == 1

    listed = node.kvops("node", "quarantine", "list", "--json")
    (shape,) = json.loads(listed.stdout)["shapes"]
    assert (shape["id"], shape["standing"]) == (error["fingerprint"], "quarantined")
    assert shape["reasons"] == ["killed", "killed"]
    table = node.kvops("node", "quarantine", "list").stdout
    assert shape["id"] in table
    assert "max_tokens=16000" in table
    for stored in node.home.rglob("quarantine.json"):
        assert "deadly" not in stored.read_text()

    unknown = node.kvops("node", "quarantine", "clear", "0" * 12)
    assert unknown.returncode == 1
    assert "error [shape_not_found]" in unknown.stderr
    assert "knows no shape" in unknown.stderr
    assert node.kvops("node", "quarantine", "clear", shape["id"]).returncode == 0
    assert "nothing" in node.kvops("node", "quarantine", "list").stdout
    with raw_post(node, **POISON):
        eventually(lambda: in_flight(node.snapshot()) == 1, "it is served again", 60)


def test_the_control_plane_refuses_what_is_no_id(node: RunningNode) -> None:
    for wrong in ("xyz", "0" * 13, 7, ["0" * 12]):
        answer = node.control("POST", "/control/quarantine/clear", json={"id": wrong})
        assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_request")
    said = node.kvops("node", "quarantine", "clear", "abc").stderr
    assert "id: must be 12 hex digits" in said
    answer = node.control("POST", "/control/quarantine/clear", json={"id": "0" * 12})
    assert (answer.status_code, error_of(answer)["code"]) == (404, "shape_not_found")
    assert node.control("POST", "/control/quarantine/clear", json={}).json() == {"cleared": 0}
