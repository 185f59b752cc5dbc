from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import ConfigError, KvopsError, UsageError
from kvops.verify.check import Check, Outcome, Parameters
from kvops.verify.checks import CHECKS
from kvops.verify.context import Context
from kvops.verify.profile import Entry, Profile, builtin_profiles, load_profile
from kvops.verify.selection import plan, select


def test_every_builtin_profile_loads_and_names_only_known_checks() -> None:
    assert builtin_profiles() == ["golive", "quick", "release", "smoke"]
    for name in builtin_profiles():
        assert load_profile(name).name == name
        assert plan(load_profile(name), CHECKS)


def test_check_ids_are_unique_and_every_check_says_what_it_is_for() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    assert all(check.title and check.purpose.endswith(".") for check in CHECKS)
    assert all(check.area and check.typical > 0 for check in CHECKS)


def test_only_and_skip_keep_the_order_of_the_profile() -> None:
    smoke = load_profile("smoke")
    chosen = plan(
        smoke, CHECKS, only=["resp.stream", "reach.health", "resp.short"], skip=["resp.short"]
    )
    assert [planned.check.id for planned in chosen] == ["reach.health", "resp.stream"]


def test_what_judges_all_others_comes_after_them_in_a_profile_that_adds_some() -> None:
    chosen = [planned.check for planned in plan(load_profile("release"), CHECKS)]
    assert [check.id for check in chosen[-3:]] == [
        "claims.retry_after",
        "logs.no_prompts",
        "logs.clean",
    ]
    assert not any(check.closing for check in chosen[:-3])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smok", "did you mean smoke?"),
        ("zzz", "there are: golive, quick, release, smoke"),
        ("../smoke", "smoke"),
    ],
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
    assert planned.parameters.model_dump() == {"max_tokens": 3, "min_samples": 1}


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
        (["resp."], [], 5),
        (["resp."], ["resp.short"], 6),
        (["reach.health"], ["auth."], 10),
    ],
)
def test_what_is_left_out_is_the_profile_less_the_plan(
    only: list[str], skip: list[str], left: int
) -> None:
    smoke = load_profile("smoke")
    chosen = select(smoke, "smoke", CHECKS, only, skip)
    ids = {planned.check.id for planned in chosen.checks}
    assert len(chosen.left_out) == left
    assert ids | set(chosen.left_out) == {entry.id for entry in smoke.checks}
    assert ids & set(chosen.left_out) == set()
    assert {name.split(".")[0] for name in ids} <= {
        "reach",
        "resp",
        "metrics",
        "memory",
        "disconnect",
        "auth",
    }
    assert all(
        ids == set() or chosen.left_out[name] == "--skip"
        for name in skip
        if name in chosen.left_out
    )


def test_an_area_names_its_checks() -> None:
    checks = [
        Check(id=name, title=name, purpose="A test.", parameters=Parameters, run=_pass, area=area)
        for name, area in (("a.one", "V7"), ("a.two", "V8"), ("b.one", "V7"))
    ]
    profile = Profile(schema_version=1, name="p", checks=[Entry(id=check.id) for check in checks])
    assert [p.check.id for p in plan(profile, checks, only=["V7"])] == ["a.one", "b.one"]
    assert [p.check.id for p in plan(profile, checks, skip=["V7"])] == ["a.two"]
    with pytest.raises(UsageError, match="V9"):
        plan(profile, checks, only=["V9"])


async def _pass(context: Context, parameters: Parameters) -> Outcome:
    return Outcome(verdict="pass", observed=1, expected=1)


def test_a_profile_that_extends_changes_adds_and_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        HEAD
        + "- {id: resp.near_limit, timeout: 9s, severity: advisory, parameters: {max_prompt_tokens: 4000}}\n"
        + "- {id: resp.short}\n- {id: resp.stream}\n"
    )
    (tmp_path / "more.yaml").write_text(
        "schema_version: 1\nname: more\nextends: base.yaml\nwithout: [resp.stream]\nchecks:\n"
        "- {id: resp.errors}\n- {id: resp.near_limit, timeout: 7s, parameters: {min_samples: 2}}\n"
    )
    first, second, third = plan(load_profile(str(tmp_path / "more.yaml")), CHECKS)
    assert [p.check.id for p in (first, second, third)] == [
        "resp.near_limit",
        "resp.short",
        "resp.errors",
    ]
    assert (first.entry.timeout, first.entry.severity) == (7.0, "advisory")
    assert first.parameters.model_dump()["max_prompt_tokens"] == 4000
    assert first.parameters.min_samples == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: more.yaml", "extends itself"),
        ("extends: other.yaml", "extends itself"),
        ("extends: none.yaml", "cannot read"),
        ("extends: smok", "no profile 'smok'"),
        ("extends: smoke\nwithout: [resp.shrt]", "resp.shrt"),
        ("checks: [{id: resp.short}, {id: resp.short}]", "more than once"),
        ("without: []", "there are none"),
    ],
)
def test_a_profile_that_cannot_stand_is_refused(tmp_path: Path, text: str, says: str) -> None:
    more, other = tmp_path / "more.yaml", tmp_path / "other.yaml"
    more.write_text(f"schema_version: 1\nname: more\n{text}\n")
    other.write_text("schema_version: 1\nname: other\nextends: more.yaml\n")
    with pytest.raises(KvopsError) as caught:
        load_profile(str(more))
    assert says in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_every_fault_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(HEAD + "- id: resp.short\n  timeout: soon\n- id: resp.stream\n  colour: red\n")
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    assert "line 5, checks.0.timeout: 'soon'" in caught.value.message
    assert "line 7, checks.1.colour: not known" in caught.value.message
    path.write_text(
        HEAD + "- id: resp.shrt\n- id: resp.short\n  parameters:\n    max_token: 3\n"
        "- id: resp.stream\n  parameters: {max_tokens: many}\n"
    )
    with pytest.raises(ConfigError) as caught:
        plan(load_profile(str(path)), CHECKS)
    for words in (
        "mine.yaml line 4: no check 'resp.shrt'",
        "mine.yaml line 7: resp.short: max_token: not known",
        "mine.yaml line 9: resp.stream: max_tokens: 'many'",
    ):
        assert words in caught.value.message
    assert "did you mean resp.short?" in caught.value.hint


def test_the_fingerprint_follows_thresholds_and_not_what_is_left_out(tmp_path: Path) -> None:
    smoke = load_profile("smoke")
    whole = select(smoke, "smoke", CHECKS)
    assert select(smoke, "smoke", CHECKS, skip=["resp."]).fingerprint == whole.fingerprint
    path = tmp_path / "mine.yaml"
    path.write_text(
        "schema_version: 1\nname: smoke\nextends: smoke\n"
        "checks: [{id: disconnect.frees, parameters: {within: 6}}]\n"
    )
    assert select(load_profile(str(path)), "smoke", CHECKS).fingerprint != whole.fingerprint
