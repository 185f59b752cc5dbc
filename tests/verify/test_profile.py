from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import ConfigError, KvopsError, UsageError
from kvops.verify.checks import CHECKS
from kvops.verify.profile import builtin_profiles, left_out, load_profile, plan


def test_every_builtin_profile_loads_and_names_only_known_checks() -> None:
    assert builtin_profiles() == ["golive", "quick", "release", "smoke"]
    for name in builtin_profiles():
        assert load_profile(name).name == name
        assert plan(load_profile(name), CHECKS)


def test_check_ids_are_unique_and_every_check_says_what_it_is_for() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert all(check.title and check.purpose.endswith(".") for check in CHECKS)


def test_only_and_skip_keep_the_order_of_the_profile() -> None:
    smoke = load_profile("smoke")
    chosen = plan(
        smoke, CHECKS, only=["resp.stream", "reach.health", "resp.short"], skip=["resp.short"]
    )
    assert [planned.check.id for planned in chosen] == ["reach.health", "resp.stream"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("smok", "did you mean smoke?"), ("zzz", "there are: golive, quick, release, smoke"), ("../smoke", "smoke")],
)
def test_an_unknown_profile_is_named_with_its_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_profile(name)
    assert name in caught.value.message
    assert hint in caught.value.hint


def test_an_unknown_check_is_named_with_its_nearest() -> None:
    with pytest.raises(UsageError, match=r"resp\.shrt") as caught:
        plan(load_profile("smoke"), CHECKS, only=["resp.shrt"])
    assert caught.value.hint == "did you mean resp.short?"
    with pytest.raises(UsageError, match="no check is left"):
        plan(load_profile("smoke"), CHECKS, only=["resp.short"], skip=["resp.short"])


HEAD = "schema_version: 1\nname: mine\nchecks:\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "document"),
        ("[1, 2]", "document"),
        ("a: b: c", "mapping"),
        ("!!python/object/apply:os.system [id]", "python/object"),
        (HEAD, "checks"),
        ("schema_version: 2\nname: mine\nchecks: [{id: resp.short}]", "schema_version"),
        (HEAD + "- {id: resp.short, severity: fatal}", "severity"),
        (HEAD + "- {id: resp.short, timeout: soon}", "timeout"),
        (HEAD + "- {id: resp.short, timeout: 0s}", "timeout"),
        (HEAD + "- {id: resp.short, colour: red}", "colour"),
        (HEAD + "- {id: resp.shrt}", "resp.shrt"),
        (HEAD + "- {id: resp.short, parameters: {max_tokens: 1000000}}", "max_tokens"),
        (HEAD + "- {id: resp.short, parameters: {max_token: 3}}", "max_token"),
        ("&a [" + "*a, " * 3 + "*a]", "document"),
    ],
)
def test_a_wrong_profile_is_refused_with_the_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan(load_profile(str(path)), CHECKS)
    assert says in caught.value.message
    assert caught.value.exit_code == 2


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_profile(str(tmp_path / "none.yaml"))
    (tmp_path / "large.yaml").write_text("#" * 300_000)
    with pytest.raises(KvopsError, match="larger than"):
        load_profile(str(tmp_path / "large.yaml"))


def test_thresholds_reach_the_check(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        HEAD
        + "- {id: resp.short, severity: advisory, timeout: 1500ms, parameters: {max_tokens: 3}}"
    )
    (planned,) = plan(load_profile(str(path)), CHECKS)
    assert planned.entry.severity == "advisory"
    assert planned.entry.timeout == 1.5
    assert planned.parameters.model_dump() == {"max_tokens": 3}


def test_all_faults_of_a_profile_are_told_with_place_value_and_a_next_step(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + "- {id: resp.short, timeout: soon, severity: fatal, colour: red}")
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    for words in ("checks.0.timeout: 'soon'", "checks.0.severity: 'fatal'", "checks.0.colour"):
        assert words in caught.value.message
    assert "schema_version" in caught.value.hint


def test_a_fault_of_the_yaml_names_the_file_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("schema_version: 1\nname: a: b\n")
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    assert "mine.yaml" in caught.value.message
    assert "line 2" in caught.value.message
    assert "string>" not in caught.value.message


@pytest.mark.parametrize(
    ("only", "skip", "left"),
    [
        ([], [], 0),
        (["resp.short"], [], 10),
        ([], ["resp.short"], 1),
        (["resp.short", "resp.stream"], ["resp.short"], 10),
    ],
)
def test_what_is_left_out_is_the_profile_less_the_plan(
    only: list[str], skip: list[str], left: int
) -> None:
    smoke = load_profile("smoke")
    chosen = {planned.check.id for planned in plan(smoke, CHECKS, only, skip)}
    out = left_out(smoke, only, skip)
    assert len(out) == left
    assert chosen | set(out) == {entry.id for entry in smoke.checks}
    assert chosen & set(out) == set()
    assert all(out[name] == "--skip" for name in skip)
