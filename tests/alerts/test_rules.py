"""What a rule may say: bounds, units, and errors that name rule and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvops.alerts.readings import COUNTERS, GAUGES, counter
from kvops.alerts.rulebook import MAX_RULES, rulebook
from kvops.alerts.rules import DRILL, ThresholdRule
from kvops.errors import ConfigError
from kvops.telemetry.snapshot import TTFT_BOUNDS
from tests.conftest import REPO

WORDS = {"summary": "s", "remedy": "r"}


def threshold(**fields: Any) -> dict[str, Any]:
    rule = {"name": "Mine", "kind": "threshold", "reading": "kv_usage_ratio", "above": "90%"}
    return rule | WORDS | fields


def rate(**fields: Any) -> dict[str, Any]:
    rule = {"name": "Mine", "kind": "rate", "reading": "preemptions", "window": "1m", "above": 1}
    return rule | WORDS | fields


def burn(**fields: Any) -> dict[str, Any]:
    rule = {"name": "Mine", "kind": "burn", "bad": ["requests_failed"], "total": ["requests"], "objective": "99%",
            "factor": 10, "long": "1h", "short": "5m"}  # fmt: skip
    return rule | WORDS | fields


def absence(**fields: Any) -> dict[str, Any]:
    return {"name": "Mine", "kind": "absence", "reading": "preemptions"} | WORDS | fields


def test_numbers_are_read_in_the_unit_of_the_reading() -> None:
    texts = {
        "kv_usage_ratio": ("90%", 0.9),
        "ttft_p95_seconds": ("500ms", 0.5),
        "disk_free_bytes": ("2GiB", 2 * 2**30),
        "stalled": (3, 3),
    }
    for reading, (text, value) in texts.items():
        (rule,) = (
            rule
            for rule in rulebook(inline=[threshold(reading=reading, above=text)])
            if rule.name == "Mine"
        )
        assert isinstance(rule, ThresholdRule)
        assert rule.bound == value


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (threshold(above=None), "give above or below"),
        (threshold(below=0.1), "give above or below"),
        (threshold(above="90"), "above = '90': expected a share such as 90% or 0.9"),
        (threshold(above=-0.1), "above = -0.1"),
        (threshold(above=True), "above = True"),
        (threshold(above="nan"), "above = 'nan'"),
        (threshold(above="101%"), "above = '101%'"),
        (threshold(reading="disk_free_bytes", above="much"), "expected a size"),
        (threshold(clear="95%"), "clear must be at most the bound"),
        (threshold(above=None, below="10%", clear="5%"), "clear must be at least the bound"),
        (threshold(reading="kv_usage"), "no gauge 'kv_usage'; did you mean kv_usage_ratio?"),
        (threshold(reading="preemptions"), "no gauge 'preemptions'"),
        (threshold(frobnicate=1), "frobnicate: not a field"),
        (threshold(name="kvHigh"), "name: "),
        (threshold(name="A" * 65), "name: "),
        (threshold(severity="bad"), "severity: "),
        (threshold(summary=""), "summary: "),
        (threshold(summary="s" * 301), "summary: "),
        (threshold(**{"for": "8d"}), "for: "),
        (threshold(**{"for": "soon"}), "for: "),
        (threshold(kind="guess"), "kind: expected threshold, rate, absence or burn"),
        (threshold(labels={f"l{n}": "v" for n in range(17)}), "labels: "),
        ("no mapping", "alerts.rules, rule 1"),
        (rate(window="9s"), "window: "),
        (rate(window="7h"), "window: "),
        (rate(reading="kv_usage_ratio"), "no counter 'kv_usage_ratio'"),
        (rate(reading="ttft_within_3s"), "no counter 'ttft_within_3s'"),
        (absence(stale_after="4s"), "stale_after: "),
        (absence(reading="nothing"), "no counter 'nothing'"),
        (burn(objective="93%", factor=14.4), "it could never fire"),
        (burn(objective="100%"), "objective: "),
        (burn(good=["first_tokens"]), "give bad or good"),
        (burn(bad=[]), "give bad or good"),
        (burn(total=["requsts"]), "did you mean requests?"),
        (burn(short="1h"), "short must be shorter than long"),
        (burn(least_requests=0), "least_requests: "),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_refused(rule: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        rulebook(inline=[rule])
    assert said in refused.value.message
    assert refused.value.exit_code == 2


def test_the_edges_are_accepted() -> None:
    for rule in (
        threshold(above="100%", clear="100%"),
        threshold(above=0),
        threshold(**{"for": "7d"}),
        threshold(name="A" * 64),
        rate(window="10s"),
        rate(window="6h"),
        burn(long="6h", short="10s"),
        absence(stale_after="5s"),
    ):
        assert "Mine" in {r.name for r in rulebook(inline=[rule])} or len(rule["name"]) == 64


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        rulebook(
            inline=[threshold(above="x"), rate(name="Other", window="1s")], disabled=["QueueLng"]
        )
    for part in ("rule Mine: above", "rule Other: window", "did you mean QueueLong?"):
        assert part in refused.value.message


def test_a_rule_takes_the_place_of_a_built_in_one_and_inline_that_of_the_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"rules": [threshold(name="KvUsageHigh", above="50%")]}))
    names = [rule.name for rule in rulebook()]
    from_file = rulebook(file=file)
    assert [rule.name for rule in from_file] == names
    both = rulebook(file=file, inline=[threshold(name="KvUsageHigh", above="40%")])
    bounds = [next(r for r in rules if r.name == "KvUsageHigh") for rules in (from_file, both)]
    assert [rule.bound for rule in bounds if isinstance(rule, ThresholdRule)] == [0.5, 0.4]


def test_rules_are_left_out_but_the_drill_stays() -> None:
    assert "QueueOld" not in {rule.name for rule in rulebook(disabled=["QueueOld"])}
    with pytest.raises(ConfigError, match="the drill"):
        rulebook(disabled=[DRILL])
    with pytest.raises(ConfigError, match="the drill"):
        rulebook(inline=[threshold(name=DRILL)])


def test_two_rules_of_one_name_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="the name is there twice"):
        rulebook(inline=[threshold(), threshold()])


def test_a_rate_needs_two_looks_in_its_window() -> None:
    rulebook(inline=[rate(window="1m")], interval=30)
    with pytest.raises(ConfigError, match="at least twice"):
        rulebook(inline=[rate(window="59s")], interval=30)


def test_there_is_a_bound_on_rules() -> None:
    room = MAX_RULES - len(rulebook())
    rulebook(inline=[threshold(name=f"R{n}x") for n in range(room)])
    with pytest.raises(ConfigError, match=f"more than {MAX_RULES}"):
        rulebook(inline=[threshold(name=f"R{n}x") for n in range(room + 1)])


@pytest.mark.parametrize("text", ["- 1\n", "rules: 3\n", "rules: []\nmore: 1\n", "rules: [\n"])
def test_a_file_that_holds_no_rules(text: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"rules\.yaml"):
        rulebook(file=file)


def test_the_sample_is_valid_and_names_every_reading() -> None:
    sample = REPO / "configs" / "alerts.yaml"
    assert len(rulebook(file=sample)) > len(rulebook())
    text = sample.read_text()
    assert [name for name in (*GAUGES, *COUNTERS) if name not in text and name != "drill"] == []
    assert all(f" {bound:g}" in text for bound in TTFT_BOUNDS)
    assert all(counter(f"ttft_within_{bound:g}s") for bound in TTFT_BOUNDS)


def test_no_remedy_sends_to_what_the_engine_wrote_alone() -> None:
    """An engine that was killed or hangs wrote nothing; the node's log has the reason and the exit code."""
    about = [rule for rule in rulebook() if "--engine" in rule.remedy]
    assert {rule.name for rule in about} == {"EngineRestarted", "EngineStalled"}
    assert [rule.name for rule in about if "kvops node logs --engine" in rule.remedy] == []
    assert [rule.name for rule in about if "kvops node logs" not in rule.remedy] == []


def test_no_remedy_repeats_a_number_that_is_a_setting() -> None:
    """`restart.budget` and `restart.window` may be set to others."""
    (restarted,) = [rule for rule in rulebook() if rule.name == "EngineRestarted"]
    assert not any(c.isdigit() for c in restarted.remedy)
    assert "fifth" not in restarted.remedy
    assert "restart.budget" in restarted.remedy
