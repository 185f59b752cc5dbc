"""What is exported for Prometheus: its own tool accepts it, and it fires exactly when our evaluator does."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvops.alerts.evaluator import Evaluator
from kvops.alerts.export import duration, export
from kvops.alerts.rulebook import rulebook
from kvops.alerts.rules import BurnRule, Rule
from tests.alerts.scenes import Scene, scraped, snapshot_of, wandering
from tests.conftest import REPO

STEP = 13
"""Seconds. No window of a rule is a multiple of it, so that it does not matter whether a window includes its start."""
STEPS = 170
SEEDS = range(5)
NODE = {"job": "kvops", "instance": "n1"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is missing (Debian: apt-get install prometheus)",
)


def promtool(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["promtool", *arguments], input=stdin, capture_output=True, text=True, timeout=150
    )


@needs_promtool
def test_promtool_accepts_the_exported_rules(tmp_path: Path) -> None:
    rules = rulebook(file=REPO / "configs" / "alerts.yaml")
    file = tmp_path / "rules.yml"
    file.write_text(export(rules))
    checked = promtool("check", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules) + 1} rules found" in checked.stdout


def short_burns() -> list[dict[str, Any]]:
    """Rules that fit into a test. Their limits are no round numbers, for the two add up in another order."""
    common = {
        "kind": "burn",
        "long": "11m",
        "short": "3m",
        "least_requests": 20,
        "summary": "s",
        "remedy": "r",
    }
    errors = {"bad": ["requests_failed"], "total": ["requests"], "objective": 0.9, "factor": 2.07}
    return [
        {"name": "ErrorsShort", **errors, **common},
        {"name": "TtftShort", "good": ["ttft_within_10s"], "total": ["first_tokens", "requests_failed"],
         "objective": 0.8, "factor": 2.07, **common},
        {"name": "NothingAsked", "kind": "rate", "reading": "requests", "window": "3m", "below": 0.25, "clear": 0.5,
         "for": "1m", "summary": "s", "remedy": "r"},
        {"name": "MemoryUntold", "kind": "absence", "reading": "memory_used_ratio", "for": "30s", "summary": "s",
         "remedy": "r"},
        {"name": "PreemptionsUntold", "kind": "absence", "reading": "preemptions", "summary": "s", "remedy": "r"},
    ]  # fmt: skip


def firing(rules: tuple[Rule, ...], scenes: list[Scene]) -> list[dict[str, dict[str, str]]]:
    """At each step, the rules that fire by our evaluator, with the labels of their alerts."""
    evaluator = Evaluator(rules)
    found = []
    for at, scene in enumerate(scenes):
        states = evaluator.step(snapshot_of(scene, at * STEP), at * STEP)
        found.append({name: s.labels for name, s in states.items() if s.phase == "firing"})
    return found


def input_series(scenes: list[Scene]) -> list[dict[str, str]]:
    """In promtool's notation; a series that is gone is marked stale, as a scrape does it."""
    rows = [scraped(scene) for scene in scenes]
    names = dict.fromkeys(name for row in rows for name in row)
    return [
        {"series": _with_node(name), "values": _values([row.get(name) for row in rows])}
        for name in names
    ]


def _with_node(name: str) -> str:
    where = 'job="kvops", instance="n1"'
    return (
        name.replace("{}", f"{{{where}}}") if "{}" in name else name.replace("{", f"{{{where}, ", 1)
    )


def _values(values: list[float | None]) -> str:
    texts = []
    for before, value in zip([None, *values], values, strict=False):
        gone = "_" if before is None else "stale"
        texts.append(gone if value is None else repr(float(value)))
    return " ".join(texts)


def rule_tests(rules: tuple[Rule, ...], scenes: list[Scene]) -> dict[str, Any]:
    expected = firing(rules, scenes)
    return {
        "interval": f"{STEP}s",
        "input_series": input_series(scenes),
        "alert_rule_test": [
            {
                "eval_time": f"{at * STEP}s",
                "alertname": rule.name,
                "exp_alerts": [
                    {"exp_labels": {"severity": rule.severity, **NODE, **labels[rule.name]}}
                ]
                if rule.name in labels
                else [],
            }
            for at, labels in enumerate(expected)
            for rule in rules
        ],
    }


@needs_promtool
def test_both_fire_and_end_at_the_same_times(tmp_path: Path) -> None:
    rules = rulebook(inline=short_burns())
    document = yaml.safe_load(export(rules))
    for rule in document["groups"][0]["rules"]:
        del rule["annotations"]  # the value in them is Prometheus's text for a number
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document))
    tests = [rule_tests(rules, list(wandering(seed, STEPS))) for seed in SEEDS]
    plan = {"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP}s", "tests": tests}
    (tmp_path / "tests.yml").write_text(json.dumps(plan))
    result = promtool("test", "rules", str(tmp_path / "tests.yml"))
    assert result.returncode == 0, (result.stdout + result.stderr)[:4000]


@needs_promtool
def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """One alert left out of what is expected is found."""
    rules = rulebook()
    document = yaml.safe_load(export(rules))
    for rule in document["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document))
    test = rule_tests(rules, list(wandering(0, 60)))
    fired = next(row for row in test["alert_rule_test"] if row["exp_alerts"])
    fired["exp_alerts"] = []
    plan = {"rule_files": ["rules.yml"], "evaluation_interval": f"{STEP}s", "tests": [test]}
    (tmp_path / "tests.yml").write_text(json.dumps(plan))
    result = promtool("test", "rules", str(tmp_path / "tests.yml"))
    assert result.returncode == 1
    assert fired["alertname"] in result.stdout + result.stderr


def test_the_scenes_try_every_rule() -> None:
    """Each of them fires and ends in what both are compared on, but those that look at hours."""
    rules = rulebook(inline=short_burns())
    fired: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for seed in SEEDS:
        states = firing(rules, list(wandering(seed, STEPS)))
        for before, after in itertools.pairwise(states):
            fired.update(after.keys() - before.keys())
            ended.update(before.keys() - after.keys())
    long = {rule.name for rule in rules if isinstance(rule, BurnRule) and rule.long >= 3600}
    names = {rule.name for rule in rules} - long
    assert names - set(fired) == set()
    # Broken bookkeeping stays broken; the other two look back for longer than the scenes have quiet.
    assert names - set(ended) <= {"BlockPoolBroken"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500ms"), (1, "1s"), (90, "90s"), (300, "5m"), (5400, "90m"), (7200, "2h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_summary_is_no_template() -> None:
    odd = {"name": "Odd", "kind": "threshold", "reading": "stalled", "above": 0, "remedy": "r"}
    rules = rulebook(inline=[odd | {"summary": "{{ $labels }}"}])
    document = yaml.safe_load(export(rules))
    found = next(rule for rule in document["groups"][0]["rules"] if rule["alert"] == "Odd")
    assert "{{" not in found["annotations"]["summary"]
