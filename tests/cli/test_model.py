"""`kvops model` as a user types it: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvops import paths
from kvops.cli.main import app
from kvops.errors import KvopsError
from tests.harness import run_kvops


def kvops(*args: str, typed: str = "") -> Any:
    """Runs in this process; errors of the tree come out as `exception`."""
    return CliRunner().invoke(app, ["model", *args], input=typed)


@pytest.fixture
def pulled(tiny_model: Path) -> str:
    result = kvops("pull", str(tiny_model))
    assert result.exit_code == 0, result.output
    assert "pulled tiny-llama (llama" in result.stdout
    return "tiny-llama"


def test_pull_shows_its_steps_and_says_when_there_is_nothing_to_do(
    tiny_model: Path, pulled: str
) -> None:
    again = kvops("pull", str(tiny_model))
    assert again.exit_code == 0
    assert "already there, verified" in again.stdout
    other = kvops("pull", str(tiny_model), "--name", "other")
    assert [step in other.stderr for step in ("copying", "checking", "hashing")] == [True] * 3


def test_list(pulled: str) -> None:
    table = kvops("list")
    assert pulled in table.stdout
    rows = json.loads(kvops("list", "--json").stdout)
    assert [row["name"] for row in rows] == [pulled]
    assert rows[0]["revision"] in table.stdout
    assert rows[0]["family"] == "llama"


def test_list_of_nothing_says_how_to_start() -> None:
    assert "kvops model pull smollm2-135m" in kvops("list").stdout
    assert json.loads(kvops("list", "--json").stdout) == []


def test_list_names_what_it_cannot_read(pulled: str) -> None:
    (paths.models_dir() / pulled / "manifest.json").unlink()
    result = kvops("list")
    assert "no readable manifest" in result.stderr


def test_show(pulled: str, tiny_model: Path) -> None:
    fields = json.loads(kvops("show", pulled, "--json").stdout)
    assert fields["kv_bytes_per_token"] == {
        "float32": 2 * 2 * 2 * 16 * 4,
        "bfloat16": 2 * 2 * 2 * 16 * 2,
    }
    assert (fields["layers"], fields["heads"], fields["max_context_length"]) == (2, 4, 512)
    assert {file["name"] for file in fields["files"]} >= {"config.json", "model.safetensors"}
    text = kvops("show", pulled).stdout
    sizes = ("512 B in fp32, 256 B in bf16", "512 tokens", "model.safetensors")
    for shown in (*sizes, fields["revision"], str(tiny_model)):
        assert shown in text
    outside = json.loads(kvops("show", str(tiny_model), "--json").stdout)
    assert (outside["revision"], outside["pulled_at"], outside["files"]) == (
        fields["revision"],
        None,
        [],
    )


def test_verify_names_the_file_and_what_to_do(pulled: str) -> None:
    good = kvops("verify", pulled)
    assert (good.exit_code, json.loads(kvops("verify", pulled, "--json").stdout)["ok"]) == (0, True)
    weights = paths.models_dir() / pulled / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 0x80
    weights.write_bytes(content)
    bad = kvops("verify", pulled)
    assert bad.exit_code == 1
    assert "model.safetensors was changed" in bad.stderr
    assert f"kvops model remove {pulled}" in bad.stderr
    report = json.loads(kvops("verify", pulled, "--json").stdout)
    assert (report["ok"], [fault["file"] for fault in report["faults"]]) == (
        False,
        ["model.safetensors"],
    )


def test_remove_asks_first(pulled: str) -> None:
    refused = kvops("remove", pulled, typed="n\n")
    assert refused.exit_code == 1
    assert (paths.models_dir() / pulled).is_dir()
    assert kvops("remove", pulled, typed="y\n").exit_code == 0
    assert not (paths.models_dir() / pulled).exists()
    missing = kvops("remove", pulled, "--yes")
    assert isinstance(missing.exception, KvopsError)
    assert missing.exception.code == "model_not_found"


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (("show", "nothing"), 1, "kvops model pull smollm2-135m"),
        (("show", "smollm"), 1, "did you mean smollm2-135m?"),
        (("verify", "smollm"), 1, "did you mean smollm2-135m?"),
        (("remove", "smollm", "--yes"), 1, "did you mean smollm2-135m?"),
        (("pull", "smollm"), 1, "did you mean smollm2-135m?"),
        (("show", "./nope"), 1, "no such file or folder: ./nope"),
        (("pull", "./nope"), 1, "no such file or folder: ./nope"),
        (("verify", "smollm2-135m"), 1, "kvops model pull smollm2-135m"),
        (("pull", "nothing"), 1, "no model 'nothing' to pull"),
        (("pull", "hf:bad"), 2, "no hub reference"),
        (("remove", "../x", "--yes"), 2, "not valid"),
    ],
)
def test_errors_are_text_with_a_next_step(
    args: tuple[str, ...], exit_code: int, message: str, kvops_home: Path
) -> None:
    done = run_kvops("model", *args, env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == exit_code
    assert message in done.stderr
    assert "  next: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_slip_in_the_name_of_a_pulled_model(pulled: str) -> None:
    for command in (("show", "tiny-lama"), ("verify", "tiny-lama"), ("remove", "tiny-lama", "-y")):
        error = kvops(*command).exception
        assert isinstance(error, KvopsError)
        assert error.hint == f"did you mean {pulled}?"


def test_a_damaged_local_file_is_not_to_be_pulled_again(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(b"GGUF\x03\0\0\0")
    (tmp_path / "empty").mkdir()
    for source, hint in ((cut, "damaged or cut short"), (tmp_path / "empty", "safetensors")):
        error = kvops("pull", str(source)).exception
        assert isinstance(error, KvopsError)
        assert hint in error.hint
        assert "pull the model again" not in error.hint


def test_remove_without_anyone_to_ask(pulled: str, kvops_home: Path) -> None:
    done = run_kvops("model", "remove", pulled, env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert "Aborted" not in done.stderr


def test_a_pipe_gets_whole_values_and_a_narrow_terminal_whole_columns(
    tiny_model: Path, kvops_home: Path
) -> None:
    name = "a-name-that-is-rather-long-for-a-narrow-terminal"
    assert kvops("pull", str(tiny_model), "--name", name, "--link").exit_code == 0
    env = {"KVOPS_HOME": str(kvops_home), "COLUMNS": "60"}
    piped = run_kvops("model", "list", env=env).stdout
    assert f"{tiny_model} (linked)" in piped
    assert "…" not in piped
    narrow = run_kvops("model", "list", env=env | {"FORCE_COLOR": "1"}).stdout
    assert name in narrow
    assert str(tiny_model) not in narrow
    assert "not shown for want of width: family, parameters, revision" in narrow
    assert "…" not in narrow


@pytest.mark.parametrize("command", [("model", "pull"), ("model", "show"), ("node", "start")])
def test_help_names_what_an_option_takes(command: tuple[str, ...]) -> None:
    text = CliRunner().invoke(app, [*command, "--help"]).output
    assert "TEXT" not in text
    assert "INTEGER" not in text


@pytest.mark.model
def test_the_default_model(default_model_home: Path) -> None:
    env = {"KVOPS_HOME": str(default_model_home)}
    again = run_kvops("model", "pull", "smollm2-135m", env=env)
    assert "already there, verified: smollm2-135m" in again.stdout
    fields = json.loads(run_kvops("model", "show", "smollm2-135m", "--json", env=env).stdout)
    assert (fields["revision"], fields["parameters"]) == ("b179c9523d0e", 134_515_008)
    assert fields["kv_bytes_per_token"]["float32"] == 2 * 30 * 3 * 64 * 4
