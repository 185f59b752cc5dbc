from __future__ import annotations

from pathlib import Path

import pytest

from kvops.errors import ConfigError, UsageError
from kvops.load import scenarios


def test_every_scenario_has_a_locust_file_a_purpose_and_sound_defaults() -> None:
    assert scenarios.names() == ["needle_recall", "oversize_injection", "ramp"]
    for name in scenarios.names():
        one = scenarios.find(name)
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


@pytest.mark.parametrize(
    "text",
    ["", "[]", "purpose: 1", "purpose: x\nstray: 1", "purpose: {a: [", "purpose: x\nusers: 0"],
)
def test_a_broken_description_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        scenarios.read(file)
