"""States over time: what fires, when, and what does not. The clock is a number here."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvops.alerts.evaluator import SHOW_RESOLVED, Evaluator, RuleState
from kvops.alerts.rulebook import rulebook
from kvops.alerts.rules import Rule
from tests.alerts.scenes import Scene, snapshot_of, wandering

T0 = 1_800_000_000.0


def one_rule(**fields: Any) -> tuple[Rule, ...]:
    bounds = {"above": "90%", "clear": "80%", "for": "30s"}
    rule = {"name": "Mine", "kind": "threshold", "reading": "kv_usage_ratio", **bounds}
    rules = rulebook(inline=[rule | {"summary": "s", "remedy": "r"} | fields])
    return tuple(rule for rule in rules if rule.name == "Mine")


def phases(rules: tuple[Rule, ...], usages: list[float | None], step: float = 10) -> list[str]:
    evaluator = Evaluator(rules)
    found = []
    for at, usage in enumerate(usages):
        now = T0 + at * step
        states = evaluator.step(snapshot_of(Scene(kv_usage=usage), now), now)
        found.append(states["Mine"].phase)
    return found


def test_it_fires_when_the_condition_held_long_enough() -> None:
    assert phases(one_rule(), [0.5, 0.95, 0.95, 0.95, 0.95]) == [
        "inactive", "pending", "pending", "pending", "firing",
    ]  # fmt: skip


def test_a_break_begins_the_wait_anew() -> None:
    assert phases(one_rule(), [0.95, 0.95, 0.95, 0.5, 0.95, 0.95, 0.95])[-1] == "pending"


def test_the_bound_itself_is_well() -> None:
    assert phases(one_rule(**{"for": "0s"}), [0.9, 0.91]) == ["inactive", "firing"]


def test_it_ends_only_past_the_clear_bound() -> None:
    assert phases(one_rule(**{"for": "0s"}), [0.95, 0.85, 0.81, 0.8, 0.85]) == [
        "firing", "firing", "firing", "resolved", "resolved",
    ]  # fmt: skip


def test_resolved_is_shown_for_a_while() -> None:
    steps = int(SHOW_RESOLVED / 50) + 1
    found = phases(one_rule(**{"for": "0s"}), [0.95] + [0.1] * steps, step=50)
    assert found[1] == "resolved"
    assert found[-2:] == ["resolved", "inactive"]


def test_no_data_is_no_value() -> None:
    """It fires nothing, ends a wait, and ends no alert."""
    evaluator = Evaluator(one_rule())
    state = evaluator.step(snapshot_of(Scene(kv_usage=None), T0), T0)["Mine"]
    assert (state.phase, state.value) == ("inactive", None)
    assert state.no_data == "the engine is not running"
    assert phases(one_rule(), [0.95, 0.95, None, 0.95, 0.95, 0.95])[-1] == "pending"
    assert phases(one_rule(**{"for": "0s"}), [0.95, None, None, 0.1]) == [
        "firing", "firing", "firing", "resolved",
    ]  # fmt: skip


def test_a_gauge_that_was_not_told_again_is_no_value() -> None:
    evaluator = Evaluator(one_rule(**{"for": "0s"}))
    old = snapshot_of(Scene(kv_usage=0.99), T0 - 61)
    state = evaluator.step(old, T0)["Mine"]
    assert (state.phase, state.value) == ("inactive", None)
    assert "ago" in state.no_data


def test_absence_fires_for_what_is_not_there_and_for_what_is_stale() -> None:
    absence = {"name": "Mine", "kind": "absence", "reading": "kv_usage_ratio", "stale_after": "20s"}
    rules = tuple(
        rule
        for rule in rulebook(inline=[absence | {"summary": "s", "remedy": "r"}])
        if rule.name == "Mine"
    )
    evaluator = Evaluator(rules)
    for now, usage, told, phase in (
        (T0, 0.5, T0, "inactive"),
        (T0 + 10, None, T0, "firing"),
        (T0 + 20, 0.5, T0 + 20, "resolved"),
        (T0 + 40, 0.5, T0 + 20, "resolved"),
        (T0 + 41, 0.5, T0 + 20, "firing"),
    ):
        assert evaluator.step(snapshot_of(Scene(kv_usage=usage), told), now)["Mine"].phase == phase


def test_another_set_of_labels_is_another_alert() -> None:
    rules = tuple(rule for rule in rulebook() if rule.name == "AlertDrill")
    evaluator = Evaluator(rules)
    first = evaluator.step(snapshot_of(Scene(drill="n1"), T0), T0)["AlertDrill"]
    same = evaluator.step(snapshot_of(Scene(drill="n1"), T0 + 5), T0 + 5)["AlertDrill"]
    second = evaluator.step(snapshot_of(Scene(drill="n2"), T0 + 9), T0 + 9)["AlertDrill"]
    assert (first.labels, first.started_at) == ({"nonce": "n1"}, T0)
    assert same == first
    assert (second.labels, second.started_at) == ({"nonce": "n2"}, T0 + 9)


def counting(values: list[int | None], **fields: Any) -> list[RuleState]:
    rate = {
        "kind": "rate",
        "reading": "preemptions",
        "window": "1m",
        "above": "0.5",
        "clear": None,
        "for": "0s",
    }
    rules = one_rule(**rate | fields)
    evaluator = Evaluator(rules)
    found = []
    for at, value in enumerate(values):
        now = T0 + 10 * at
        scene = Scene(kv_usage=None if value is None else 0.1, preemptions=value or 0)
        found.append(evaluator.step(snapshot_of(scene, now), now)["Mine"])
    return found  # fmt: skip


def test_a_rate_of_one_sample_is_no_rate() -> None:
    first, second = counting([1000, 1000])
    assert first.no_data
    assert (second.value, second.phase) == (0.0, "inactive")


def test_a_counter_that_begins_anew_has_not_fallen() -> None:
    *_, last = counting([1000, 1006, 3, 9, 15])
    assert last.value is not None
    assert last.value == pytest.approx((6 + 3 + 6 + 6) / 60, rel=0.2)


def test_a_clock_that_jumps_forward_fires_nothing_and_ends_nothing() -> None:
    rules = one_rule()
    evaluator = Evaluator(rules)
    bad = Scene(kv_usage=0.95)
    for now in (T0, T0 + 10):
        assert evaluator.step(snapshot_of(bad, now), now)["Mine"].phase == "pending"
    later = T0 + 86400
    assert evaluator.step(snapshot_of(bad, later), later)["Mine"].phase == "pending"
    for more, phase in ((10, "pending"), (20, "firing")):
        now = later + more
        assert evaluator.step(snapshot_of(bad, now), now)["Mine"].phase == phase


def test_a_clock_that_is_set_back_keeps_what_was_watched() -> None:
    rules = one_rule()
    evaluator = Evaluator(rules)
    bad = Scene(kv_usage=0.95)
    for now in (T0, T0 + 20):
        evaluator.step(snapshot_of(bad, now), now)
    for now, phase in ((T0 - 5000, "pending"), (T0 - 4990, "firing")):
        state = evaluator.step(snapshot_of(bad, now), now)["Mine"]
        assert state.phase == phase
        assert state.since <= now


_LEVELS = st.lists(
    st.one_of(st.none(), st.sampled_from([0.1, 0.79, 0.8, 0.85, 0.9, 0.91, 0.99])),
    min_size=1,
    max_size=40,
)


@given(_LEVELS, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_it_fires_only_after_the_whole_wait_and_never_without_a_value(
    usages: list[float | None], wait: int
) -> None:
    """Against what the words say, counted in steps."""
    found = phases(one_rule(**{"for": f"{10 * wait}s"}), usages)
    bad_for, fires = 0, False
    for usage, phase in zip(usages, found, strict=True):
        bad_for = bad_for + 1 if usage is not None and usage > 0.9 else 0
        goes_on = fires and (usage is None or usage > 0.8)
        fires = goes_on or (not fires and bad_for > wait)
        bad_for = bad_for if not fires else 0
        assert (phase == "firing") == fires, (usages, found)


@given(st.integers(0, 10_000), st.integers(1, 59))
@settings(max_examples=20, deadline=None)
def test_a_restart_changes_nothing(seed: int, at: int) -> None:
    """But for counters, of which a new process knows nothing yet."""
    rules = tuple(rule for rule in rulebook() if rule.kind in ("threshold", "absence"))
    scenes = list(wandering(seed, 60))
    straight, broken = Evaluator(rules), Evaluator(rules)
    for step, scene in enumerate(scenes):
        now = T0 + 13 * step
        if step == at:
            kept = msgspec.json.decode(
                msgspec.json.encode(broken.states), type=dict[str, RuleState]
            )
            broken = Evaluator(rules, kept, broken.at)
        snapshot = snapshot_of(scene, now)
        assert straight.step(snapshot, now) == broken.step(snapshot, now)


@given(st.lists(st.floats(-5000, 5000), min_size=1, max_size=30), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_whatever_the_clock_does_nothing_lies_in_the_future(jumps: list[float], seed: int) -> None:
    rules = rulebook()
    evaluator = Evaluator(rules)
    chance, now = random.Random(seed), T0
    for jump, scene in zip(jumps, wandering(seed, len(jumps)), strict=True):
        now += jump if chance.random() < 0.5 else 2
        for state in evaluator.step(snapshot_of(scene, now), now).values():
            assert state.since <= now
            assert state.started_at <= now


def test_the_same_gives_the_same() -> None:
    def run() -> list[dict[str, RuleState]]:
        evaluator = Evaluator(rulebook())
        return [
            evaluator.step(snapshot_of(scene, T0 + 5 * at), T0 + 5 * at)
            for at, scene in enumerate(wandering(3, 80))
        ]

    assert run() == run()


@pytest.mark.parametrize("requests", [0, 19, 20])
def test_a_burn_needs_enough_requests(requests: int) -> None:
    burn = {"name": "Mine", "kind": "burn", "bad": ["requests_failed"], "total": ["requests"], "objective": 0.9,
            "factor": 2, "long": "2m", "short": "1m", "summary": "s", "remedy": "r"}  # fmt: skip
    rules = tuple(rule for rule in rulebook(inline=[burn]) if rule.name == "Mine")
    evaluator = Evaluator(rules)
    for at in range(7):
        failed = requests * at // 6
        now = T0 + 10 * at
        scene = Scene(outcomes={"stop": 0, "error": failed, "timeout": 0})
        state = evaluator.step(snapshot_of(scene, now), now)["Mine"]
    assert (state.phase == "firing") == (requests >= 20)
    assert not state.no_data
