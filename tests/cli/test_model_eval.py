"""`kvops model eval` as a user types it: the table, the record, the exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from kvops.cli.main import app
from kvops.cli.model_eval import _exit_code
from kvops.models import store
from kvops.quality.evaluate import Result
from tests.harness import KVOPS, run_kvops
from tests.quality.test_figures import made
from tests.tiny import make_tiny_model

FEW = ("--tokens", "256")


def kvops(*args: str) -> Any:
    return CliRunner().invoke(app, ["model", *args])


@pytest.fixture
def pulled(tiny_model: Path) -> str:
    assert kvops("pull", str(tiny_model)).exit_code == 0
    return "tiny-llama"


def test_it_is_measured_printed_and_recorded(pulled: str) -> None:
    done = kvops("eval", pulled, "--weights", "bfloat16", "--kv", "bfloat16", *FEW, "--json")
    assert done.stdout, f"{done.output} {done.exception!r}"
    told = json.loads(done.stdout)
    reference, rounded = told["results"]
    assert (reference["verdict"], reference["cost"], reference["recorded"]) == ("exact", 0, False)
    assert (rounded["weights"], rounded["kv"], rounded["recorded"]) == ("bfloat16",) * 2 + (True,)
    assert 0 < abs(rounded["cost"]) < 0.05
    assert rounded["cost"] == rounded["perplexity"] / reference["perplexity"] - 1
    assert done.exit_code == {"within": 0, "over": 1, "inconclusive": 3}[rounded["verdict"]]
    (kept,) = store.pulled(pulled).evaluations
    assert (kept.tokens, kept.needles, kept.perplexity) == (256, 5, rounded["perplexity"])
    assert (kept.files_sha256, kept.corpus_sha256) == (
        store.pulled(pulled).digest,
        rounded["corpus_sha256"],
    )
    shown = kvops("show", pulled).stdout
    assert "bfloat16 weights, bfloat16 KV on cpu: " in shown
    (row,) = json.loads(kvops("show", pulled, "--json").stdout)["evaluations"]
    assert row["verdict"] == rounded["verdict"]


def test_the_table_says_what_it_rests_on(pulled: str) -> None:
    done = kvops("eval", pulled, *FEW)
    for words in (
        "against float32",
        "the reference",
        "of 5",
        "256 tokens of the Python 3.",
        "sha256",
        "depths 0, 25, 50, 75, 100 %",
    ):
        assert words in done.stdout, f"{done.output} {done.exception!r}"
    steps = ("checking the files", "preparing texts", "float32 weights, float32 KV")
    assert [step in done.stderr for step in steps] == [True] * 3
    assert store.pulled(pulled).evaluations or "float32 throughout" in done.stdout


def test_a_model_that_is_read_in_place_is_measured_but_not_recorded(tiny_model: Path) -> None:
    done = kvops("eval", str(tiny_model), "--weights", "float32", "--kv", "float32", *FEW)
    assert done.exit_code == 0
    assert "not recorded: read in place" in done.stdout


def test_a_context_without_room_for_a_needle_says_so(tmp_path: Path) -> None:
    small = make_tiny_model(tmp_path / "small", max_context=64)
    done = kvops("eval", str(small), "--weights", "float32", "--kv", "float32", *FEW)
    assert "no room" in done.stdout
    assert "recall:" not in done.stdout


def test_the_exit_code_is_the_worst_verdict() -> None:
    exact = Result(made(weights="float32", kv="float32"), 1.0, recorded=False)
    good, dear, unclear = (
        Result(made(10.0 + cost, margin), 1.0, recorded=True)
        for cost, margin in ((0.01, 0.001), (0.3, 0.001), (0.1, 0.02))
    )
    assert _exit_code([exact, good]) == 0
    assert _exit_code([exact, unclear, dear]) == 1
    assert _exit_code([exact, good, unclear]) == 3


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("nothing",), 1, "there is no model 'nothing'"),
        (("tiny-llama", "--all", "--kv", "int8"), 2, "--all takes every combination"),
        (("tiny-llama", "--kv", "int4"), 2, "int4"),
        (("tiny-llama", "--tokens", "5"), 2, "greater than or equal to 256"),
    ],
)
def test_what_cannot_be_evaluated(
    args: tuple[str, ...], code: int, words: str, pulled: str, kvops_home: Path
) -> None:
    done = run_kvops("model", "eval", *args, env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_files_that_were_changed_are_not_evaluated(pulled: str, kvops_home: Path) -> None:
    config = store.store_dir() / pulled / "config.json"
    config.write_text(config.read_text() + " ")
    done = run_kvops("model", "eval", pulled, env={"KVOPS_HOME": str(kvops_home)})
    assert done.returncode == 1
    assert "config.json was changed" in done.stderr


def test_an_error_of_the_process_is_told_as_what_it_is(
    pulled: str, kvops_home: Path, tmp_path: Path
) -> None:
    env = {"KVOPS_HOME": str(kvops_home)}
    done = run_kvops("model", "eval", pulled, "--kv", "fp8", *FEW, env=env)
    if done.returncode == 0:
        pytest.skip("this machine computes fp8")
    assert done.returncode == 2
    assert "error [config]: kv_cache.dtype: fp8 needs an NVIDIA GPU" in done.stderr
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise RuntimeError('no such library')")
    broken = env | {"PYTHONPATH": str(tmp_path)}
    done = run_kvops("model", "eval", pulled, *FEW, env=broken)
    assert done.returncode == 1
    assert "error [engine_died]: the evaluation ended: RuntimeError: no such library" in done.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGKILL, -9)]
)
def test_however_it_is_ended_its_process_ends_too(
    number: signal.Signals, code: int, pulled: str, kvops_home: Path
) -> None:
    process = subprocess.Popen(
        [*KVOPS, "model", "eval", pulled, "--tokens", "100000", "--all"],
        env=os.environ | {"KVOPS_HOME": str(kvops_home)}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("float32 weights"):
            break
    children = psutil.Process(process.pid).children()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in said
    assert len(children) == 1
    assert psutil.wait_procs(children, timeout=60)[1] == []
