from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvops.errors import ConfigError, UsageError
from kvops.load import scenarios
from kvops.load.pacing import Pacing
from kvops.load.reports import summary
from kvops.load.slo import Slo
from tests.harness import run_kvops


def test_every_scenario_has_a_locust_file_a_purpose_and_sound_defaults() -> None:
    assert scenarios.names() == [
        "agent_loop", "batch_offline", "burst_and_recover", "chat_online", "disconnect_storm", "long_document",
        "malformed_input", "needle_recall", "noisy_tenant", "oversize_injection", "ramp", "ramp_to_knee",
        "shared_prefix", "soak", "whale_and_minnows",
    ]  # fmt: skip
    for name in scenarios.names():
        one = scenarios.find(name)
        assert one.report in summary.REPORTS
        assert one.path.is_file()
        assert one.purpose.endswith("?")
        for option_name, option in one.options.items():
            if option.default is not None:
                text = (
                    ",".join(map(str, option.default))
                    if isinstance(option.default, list)
                    else str(option.default)
                )
                assert option.parse(option_name, text) == option.default


def test_how_requests_come_is_told() -> None:
    assert scenarios.find("batch_offline").arrivals == "8 users"
    assert scenarios.find("agent_loop").arrivals == "2 users, or --rate"
    assert scenarios.find("ramp_to_knee").arrivals == "1 user"
    assert scenarios.find("soak").arrivals == "2 users, or --rate"
    told = "poisson 0.5 sessions/s, or --arrivals closed"
    assert scenarios.find("chat_online").arrivals == told


def test_the_list_is_short_and_the_options_are_told_of_one() -> None:
    every = run_kvops("load", "list", env={}).stdout
    assert all(name in every for name in scenarios.names())
    assert "--" not in every.replace("or --rate)", "").replace("or --arrivals closed)", "")
    assert len(every.splitlines()) <= 4 * len(scenarios.names())
    one = run_kvops("load", "list", "ramp_to_knee", env={})
    assert "--resolution" in one.stdout
    assert "--depths" not in one.stdout
    as_json = json.loads(run_kvops("load", "list", "--json", env={}).stdout)
    assert all(described.get("options") is not None for described in as_json)
    wrong = run_kvops("load", "list", "ramp_to_kne", env={})
    assert wrong.returncode == 2
    assert "did you mean ramp_to_knee" in wrong.stderr


def test_options_are_taken_in_both_forms() -> None:
    values = scenarios.find("needle_recall").parse(["--lengths", "128,256", "--min-recall=0.5"])
    assert (values["lengths"], values["min_recall"], values["repeats"]) == ([128, 256], 0.5, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lenghts", "5"], "did you mean --lengths?"),
        (["stray"], "no option 'stray'"),
        (["--lengths"], "needs a value"),
        (["--lengths", "5"], "out of bounds"),
        (["--lengths", "many"], "whole numbers"),
        (["--lengths", "512,abc"], "'abc' is not a whole number"),
        (["--lengths", "96,7,9"], "7 is out of bounds"),
        (["--lengths", "5"], "from 96 to 1000000"),
        (["--lengths", "abc", "--depths", "300"], "--depths 300"),
        (["--depths", "nan"], "out of bounds"),
        (["--repeats", "1,2"], "takes one number"),
        (["--min-recall", "1.01"], "from 0 to 1"),
    ],
)
def test_a_wrong_option_is_named_with_its_bound(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        scenarios.find("needle_recall").parse(arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("--user", "did you mean --users?"),
        ("--max_inflight", "did you mean --max-in-flight?"),
        ("--length", "did you mean --lengths?"),
        ("--thinks", "its options: --lengths, --depths"),
    ],
)
def test_a_mistyped_option_is_told_the_nearest_of_the_run_too(typed: str, hint: str) -> None:
    done = run_kvops("load", "run", "needle_recall", typed, "2", env={})
    assert done.returncode == 2
    assert hint in done.stderr


def test_where_a_trace_is_replayed_other_defaults_hold_and_what_is_typed_stands() -> None:
    chat, trace = scenarios.find("chat_online"), Pacing(kind="trace", trace="f")
    assert chat.parse([])["turns"] == "lognormal:2,0.5,1-5"
    assert chat.parse([], trace)["turns"] == "1"
    assert chat.parse(["--turns", "3"], trace)["turns"] == "3"


@pytest.mark.parametrize("name", ["needle_recall", "ramp"])
def test_a_prompt_longer_than_the_node_takes_is_refused_with_the_bound(name: str) -> None:
    one = scenarios.find(name)
    flag = {"needle_recall": "--lengths", "ramp": "--prompt-tokens"}[name]
    options = one.parse([flag, "1000", "--max-tokens", "24"])
    one.check_context(options, 1024)
    one.check_context(options, None)
    with pytest.raises(UsageError, match=rf"{flag} 1000 .* 1 023 tokens .*up to 999"):
        one.check_context(options, 1023)


def test_a_note_stands_only_where_it_is_true() -> None:
    one = scenarios.find("oversize_injection")
    (note,) = one.notes(one.parse([]))
    assert "whole context length" in note
    assert one.notes(one.parse(["--max-prompt-tokens", "100"])) == []


def test_an_unknown_scenario_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean needle_recall"):
        scenarios.find("needle_recal")


OPTION = "purpose: x\noptions: {one: {help: h, "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "mapping"),
        ("[]", "mapping"),
        ("purpose: 1", "string"),
        ("purpose: x\nstray: 1", "stray"),
        ("purpose: {a: [", "flow"),
        ("purpose: x\nusers: 0", "greater than or equal to 1"),
        ("purpose: x\nreport: none", "report"),
        ("purpose: x\npacing: {kind: sometimes}", "kind"),
        ("purpose: x\npacing: {speed: 5}", "no setting speed of pacing"),
        ("purpose: x\npacing: {rate: many}", "rate"),
        ("purpose: x\npacing: 5", "pacing"),
        ("purpose: x\npacing: {unit: miles}", "unit"),
        ("purpose: x\nreplayed: {one: 5}", "replayed"),
        ("purpose: x\nreplayed: {one: '5'}", "no option one"),
        ("purpose: x\nmax_processes: 0", "max_processes"),
        ("purpose: x\nslo: {ttft: 0}", "slo.ttft"),
        ("purpose: x\nslo: {latency: 1}", "slo.latency"),
        ("purpose: x\nslo: {percentile: 95}", "slo.percentile"),
        ("purpose: x\nslo: {}\noptions: {slo_ttft: {type: int, help: h}}", "both an option"),
        (OPTION + "type: number}}", "options.one.type"),
        (OPTION + "type: lengths, default: uniform}}", "'uniform'"),
        (OPTION + "type: int, default: 5, maximum: 4}}", "5 is out of bounds"),
        (OPTION + "type: choice, default: a}}", "has choices"),
        (OPTION + "type: int, must_hold: needle}}", "only ints"),
        (OPTION + "type: choice, choices: [a], default: b}}", "none of a"),
    ],
)
def test_a_broken_description_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml") as caught:
        scenarios.read(file)
    assert words in str(caught.value)


FULL = """
purpose: x?
pacing: {kind: poisson, rate: 2}
slo: {ttft: 2, itl: 0.25, percentile: 0.9}
options:
  prompt_tokens: {type: lengths, default: "lognormal:50,1,8-200", maximum: 4000, in_context: true, help: h}
  max_tokens: {type: lengths, default: 16, help: h}
  by: {type: choice, choices: [users, rate], default: users, help: h}
  keys: {type: file, help: h}
  tenants: {type: keys, help: h}
"""


@pytest.fixture
def full(tmp_path: Path) -> scenarios.Scenario:
    file = tmp_path / "mine.yaml"
    file.write_text(FULL)
    return scenarios.read(file)


def test_pacing_and_objectives_are_read(full: scenarios.Scenario) -> None:
    assert full.pacing == Pacing(kind="poisson", rate=2.0)
    assert Slo.of(full.defaults()) == Slo(ttft=2, itl=0.25, percentile=0.9)
    values = full.parse(["--slo-ttft", "300ms", "--slo-e2e=9s"])
    assert Slo.of(values).bounds() == {"ttft": 0.3, "itl": 0.25, "e2e": 9.0}
    assert json.loads(json.dumps(full.model_dump(mode="json")))["pacing"]["kind"] == "poisson"


def test_lengths_choices_and_files_are_values_that_json_holds(
    full: scenarios.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("a b")
    monkeypatch.chdir(tmp_path)
    values = full.parse(["--prompt-tokens", "normal:90,9", "--by=rate", "--keys", "keys"])
    assert json.loads(json.dumps(values)) == values
    assert (values["prompt_tokens"], values["by"]) == ("normal:90,9", "rate")
    assert values["keys"] == str(tmp_path / "keys")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt-tokens", "lognormal:50,1,8-5000"], "5000 is out of bounds"),
        (["--prompt-tokens", "uniform:1"], "a distribution, 200, normal:200,50"),
        (["--by", "time"], "'time' is none of users, rate"),
        (["--keys", "/no/such"], "--keys /no/such: No such file"),
        (["--tenants", __file__], "line 1 is not a new name and its key"),
        (["--tenants", str(Path(__file__).with_name("__init__.py"))], "holds 0 of the two tenants"),
        (["--tenants", "/dev/null"], "not a regular file"),
        (["--slo-ttft", "0s"], "out of bounds"),
        (["--slo-percentile", "95"], "from 0.5 to 0.999"),
        (["--slo-tfft", "1s"], "did you mean --slo-ttft"),
    ],
)
def test_a_wrong_value_of_those_is_named(
    full: scenarios.Scenario, arguments: list[str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        full.parse(arguments)
    assert words in str(caught.value) + str(caught.value.hint)


def test_the_longest_of_a_distribution_must_fit(full: scenarios.Scenario) -> None:
    options = full.parse(["--max-tokens", "normal:20,1,10-30"])
    full.check_context(options, 230)
    with pytest.raises(UsageError, match=r"--prompt-tokens 200 and --max-tokens 30"):
        full.check_context(options, 229)
