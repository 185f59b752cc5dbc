"""Whole runs: the real command line and a real locust against the scripted node."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvops.errors import UsageError
from kvops.load import launcher, runs
from kvops.load.records import ErrorClass, RequestRecord, Tail, read_records
from tests.harness import KVOPS
from tests.load import commands
from tests.load.commands import Said
from tests.load.scripted import Reply, Request, Respond, node, serving, words

SECRET = "not-for-the-arguments"
SMALL = ("--lengths", "128,256", "--depths", "0,100", "--seed", "3")


def load(home: Path, *args: str, **env: str) -> tuple[Said, Any]:
    result = commands.load(*args, "--json", KVOPS_HOME=str(home), **env)
    return result, result.report if result.stdout.startswith("{") else None


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.05)


def lines_of(home: Path) -> int:
    return sum(
        len(file.read_bytes().splitlines()) for file in home.glob("state/runs/*/requests.jsonl")
    )


def test_recall_run_and_its_folder(kvops_home: Path) -> None:
    with serving(node) as server:
        result, report = load(
            kvops_home, "run", "needle_recall", "--node", server.url, *SMALL, KVOPS_API_KEY=SECRET
        )
        keys = {request.headers.get("authorization") for request in server.requests}
    assert result.returncode == 0, result.stderr
    assert report["verdict"]["outcome"] == "pass"
    assert (report["report"]["found"], report["report"]["n"]) == (4, 4)
    assert report["run"]["status"] == "finished"
    assert keys == {f"Bearer {SECRET}"}
    folder = Path(report["folder"])
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert set(files) == {
        "run.json", "requests.jsonl", "client.jsonl", "locust.log", "report.json", "report.html",
    }  # fmt: skip
    assert not any(SECRET.encode() in data for data in files.values())
    assert b"magic" not in files["requests.jsonl"], "no text of a prompt is kept"
    records = read_records(folder)
    assert len(records) == 6
    for one in records:
        assert one.needle is not None
        assert one.prompt_tokens == one.needle.counted_tokens, (
            "the aimed length is the one the server counted"
        )
        assert (one.completion_tokens, len(one.itl)) == (3, 2)
    again = commands.load("show")
    assert again.returncode == 0
    assert "recall 100 % (4 of 4); at least 51 %" in again.stdout
    assert "needs 20" in again.stdout
    assert "n/a" not in again.stdout


def test_a_node_that_forgets_fails_the_run(kvops_home: Path) -> None:
    def forgetful(request: Request, reply: Reply) -> None:
        if request.path != "/v1/chat/completions":
            return node(request, reply)
        reply.stream()
        reply.content("I do not know.")
        reply.usage(words(request.json()["messages"][0]["content"]), 4)
        return reply.done()

    with serving(forgetful) as server:
        result, report = load(kvops_home, "run", "needle_recall", "--node", server.url, *SMALL)
    assert result.returncode == 1
    assert report["summary"]["errors"] == {"wrong_answer": 4}
    assert "recall 0/4" in report["verdict"]["reasons"][0]


def test_an_answer_with_another_prompts_number_fails_the_control(kvops_home: Path) -> None:
    numbers: list[str] = []
    lock = threading.Lock()

    def leaking(request: Request, reply: Reply) -> None:
        if request.path != "/v1/chat/completions":
            return node(request, reply)
        prompt = request.json()["messages"][0]["content"]
        own = [word.rstrip(".") for word in prompt.split() if word.rstrip(".").isdigit()]
        with lock:
            numbers.extend(own)
            last = numbers[-1] if numbers else "nothing"
        reply.stream()
        reply.content(last)
        reply.usage(words(prompt), 1)
        return reply.done()

    with serving(leaking) as server:
        result, report = load(
            kvops_home, "run", "needle_recall", "--node", server.url, *SMALL, "--users", "1"
        )
    assert result.returncode == 1
    assert "without a needle" in report["verdict"]["reasons"][0]


def strict(request: Request, reply: Reply) -> None:
    """Answers every injection as a kvops node must."""
    if request.path == "/v1/models":
        return reply.json(200, {"data": [{"id": "scripted", "max_model_len": 64}]})
    if request.path != "/v1/completions":
        return node(request, reply)
    if len(request.body) > 100_000:
        return reply.json(413, {"error": {"code": "too_large", "message": "too large"}})
    try:
        body = request.json()
        prompt, room = body["prompt"], body["max_tokens"]
        assert isinstance(room, int)
        assert room > 0
        assert "no_such_field" not in body
    except (ValueError, TypeError, RecursionError, AssertionError):
        return reply.json(
            400, {"error": {"code": "invalid_request", "message": "bad field no_such_field"}}
        )
    if len(prompt) + room > 64:
        refusal = {
            "code": "context_length_exceeded",
            "message": "long",
            "prompt_tokens": len(prompt),
            "limit": 64,
        }
        return reply.json(400, {"error": refusal})
    reply.stream()
    reply.content("x")
    reply.usage(len(prompt), 1)
    return reply.done()


def dies_of_nesting() -> Respond:
    """Strict, until a deeply nested body comes: from then on it answers nothing."""
    dead = threading.Event()

    def respond(request: Request, reply: Reply) -> None:
        if b"[[[[" in request.body:
            dead.set()
            reply.json(400, {"error": {"code": "too_large", "message": "deep"}})
        elif not dead.is_set():
            strict(request, reply)

    return respond


def test_injections_answered_rightly(kvops_home: Path) -> None:
    with serving(strict) as server:
        result, report = load(
            kvops_home,
            "run",
            "oversize_injection",
            "--node",
            server.url,
            "--body-bytes",
            "200000",
            "--seed",
            "1",
        )
    assert result.returncode == 0, report["verdict"]
    assert report["report"]["not_tried"] == []
    assert report["summary"]["requests"] == 1 + 3 * 7


def test_a_limit_that_was_not_tried_is_no_pass(kvops_home: Path) -> None:
    with serving(strict) as server:
        result, report = load(
            kvops_home,
            "run",
            "oversize_injection",
            "--node",
            server.url,
            "--max-prompt-tokens",
            "10",
        )
    assert result.returncode == 3
    assert report["report"]["not_tried"] == ["limit-1", "limit"]
    assert "--max-prompt-tokens 10" in report["verdict"]["reasons"][0]


def test_a_node_that_dies_of_an_injection_fails_the_run(kvops_home: Path) -> None:
    with serving(dies_of_nesting()) as server:
        result, report = load(
            kvops_home, "run", "oversize_injection", "--node", server.url, "--body-bytes", "200000"
        )
    assert result.returncode == 1
    assert report["summary"]["errors"] == {"connection_reset": 1, "node_down": 1}
    assert all("deep nesting" in reason for reason in report["verdict"]["reasons"])


def test_a_node_that_goes_away_fails_the_run_although_it_broke(kvops_home: Path) -> None:
    gone = threading.Event()

    def leaving(request: Request, reply: Reply) -> None:
        if request.path == "/v1/chat/completions":
            gone.set()
        if not gone.is_set():
            node(request, reply)

    with serving(leaving) as server:
        result, report = load(kvops_home, "run", "needle_recall", "--node", server.url, *SMALL)
    assert result.returncode == 1
    assert report["run"]["status"] == "failed"
    assert "/v1/tokenize" in report["run"]["reason"]
    assert report["summary"]["errors"].keys() == {"connection_reset"}


def test_ramp_counts_each_step(kvops_home: Path) -> None:
    def paced(request: Request, reply: Reply) -> None:
        if request.path != "/v1/chat/completions":
            return node(request, reply)
        reply.stream()
        for _ in range(4):
            time.sleep(0.02)
            reply.content("word ")
        reply.usage(50, 4)
        return reply.done()

    with serving(paced) as server:
        result, report = load(
            kvops_home, "run", "ramp", "--node", server.url, "--users", "2", "--step-seconds", "2"
        )
    steps = report["report"]["steps"]
    assert [step["users"] for step in steps] == [1, 2]
    assert all(step["summary"]["succeeded"] >= 5 for step in steps)
    assert steps[0]["summary"]["itl"]["samples"] == 3 * steps[0]["summary"]["succeeded"]
    assert result.returncode == 0, report["verdict"]


def slow(request: Request, reply: Reply) -> None:
    """A small node that takes a tenth of a second for an answer."""
    if request.path == "/v1/chat/completions":
        time.sleep(0.1)
    node(request, reply)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_and_marks_what_it_has(kvops_home: Path, number: int) -> None:
    with serving(slow) as server:
        process = subprocess.Popen(
            [*KVOPS, "load", "run", "ramp", "--node", server.url, "--step-seconds", "60", "--json"],
            env={"KVOPS_HOME": str(kvops_home), "PATH": ""}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: lines_of(kvops_home) >= 2, "second record")
        children = psutil.Process(process.pid).children(recursive=True)
        assert any("locust" in " ".join(child.cmdline()) for child in children)
        process.send_signal(number)
        out, _ = process.communicate(timeout=40)
    report = json.loads(out)
    assert process.returncode == 130
    assert report["run"]["status"] == "interrupted"
    assert report["summary"]["succeeded"] >= 2
    assert report["verdict"]["outcome"] == "inconclusive"
    assert not any(child.is_running() for child in children)


def test_locust_ends_when_kvops_is_killed(kvops_home: Path) -> None:
    with serving(slow) as server:
        process = subprocess.Popen(
            [*KVOPS, "load", "run", "ramp", "--node", server.url, "--step-seconds", "60"],
            env={"KVOPS_HOME": str(kvops_home), "PATH": ""}, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        wait_for(lambda: lines_of(kvops_home) >= 1, "first record")
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        wait_for(lambda: not any(child.is_running() for child in children), "end of locust")
    shown, report = load(kvops_home, "show")
    assert shown.returncode == 3
    assert report["verdict"]["reasons"][0] == "the run never ended"


def test_plain_locust_runs_a_scenario_and_kvops_shows_it(kvops_home: Path) -> None:
    scenario = str(Path(runs.__file__).parents[3] / "scenarios" / "needle_recall.py")
    command = [sys.executable, "-m", "locust", "-f", scenario, "--headless", "--only-summary"]
    with serving(node) as server:
        result = subprocess.run(
            [*command, "-H", server.url, "--lengths", "128", "--depths", "50", "--seed", "4"],
            env={"KVOPS_HOME": str(kvops_home)}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "INCONCLUSIVE: needle_recall\n  1 of 1 found shows a recall of 20 %" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("kvops load show ")
    shown, report = load(kvops_home, "show")
    assert shown.returncode == 3
    assert (report["run"]["options"]["lengths"], report["report"]["n"]) == ([128], 1)
    folder = Path(report["folder"])
    assert json.loads((folder / "report.json").read_text())["verdict"] == report["verdict"]
    assert (folder / "report.html").read_bytes().startswith(b"<!DOCTYPE html>")
    (listed,) = json.loads(commands.load("runs", "--json").stdout)
    assert (listed["status"], listed["outcome"]) == ("finished", "inconclusive")


@pytest.mark.parametrize(
    ("arguments", "code", "words_wanted"),
    [
        (["run", "rampp"], 2, "did you mean ramp"),
        (["run", "ramp", "--step-second", "5"], 2, "did you mean --step-seconds"),
        (["run", "ramp", "--node", "http://192.0.2.7"], 2, "--allow-remote 192.0.2.7"),
        (["run", "ramp", "--node", "http://127.0.0.1:9"], 4, "cannot reach"),
        (
            ["run", "ramp", "--node", "http://127.0.0.1:9", "--processes", "2"],
            2,
            "--processes 2: ramp sends from one process",
        ),
        (
            ["run", "ramp_to_knee", "--node", "http://127.0.0.1:9", "--workers", "2"],
            2,
            "--workers 2: ramp_to_knee sends from one process",
        ),
        (
            ["run", "malformed_input", "--node", "http://127.0.0.1:9", "--processes", "2"],
            2,
            "malformed_input sends from one process",
        ),
        (
            ["run", "soak", "--node", "http://127.0.0.1:9", "--processes", "3"],
            2,
            "--processes 3: there are only 2 users to share",
        ),
        (
            ["run", "ramp", "--node", "http://127.0.0.1:9", "--duration", "soon"],
            2,
            "--duration soon",
        ),
        (["run", "ramp"], 4, "no node runs"),
        (["show"], 2, "no run"),
        (
            ["run", "ramp", "--node", "http://127.0.0.1:9", "--duration", "0s"],
            2,
            "shorter than 1 s",
        ),
    ],
)
def test_what_cannot_be_run_says_why(
    kvops_home: Path, arguments: list[str], code: int, words_wanted: str
) -> None:
    result = commands.load(*arguments)
    assert result.returncode == code
    assert words_wanted in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(kvops_home.glob("state/runs/*"))


def test_a_length_over_the_nodes_is_refused_before_the_run(kvops_home: Path) -> None:
    with serving(strict) as server:
        result, _ = load(
            kvops_home, "run", "needle_recall", "--node", server.url, "--lengths", "999999"
        )
    assert result.returncode == 2
    assert "--lengths 999999" in result.stderr
    assert "64 tokens" in result.stderr
    assert not list(kvops_home.glob("state/runs/*"))


def test_a_missing_key_is_said_to_be_missing(kvops_home: Path) -> None:
    def keyed(request: Request, reply: Reply) -> None:
        reply.json(401, {"error": {"code": "invalid_api_key", "message": "no"}})

    with serving(keyed) as server:
        result, _ = load(kvops_home, "run", "ramp", "--node", server.url)
        wrong, _ = load(kvops_home, "run", "ramp", "--node", server.url, KVOPS_API_KEY=SECRET)
    assert (result.returncode, wrong.returncode) == (2, 2)
    assert "none was given" in result.stderr
    assert "refuses the API key" in wrong.stderr
    assert "--api-key-file" in result.stderr


def test_runs_are_listed_and_a_wrong_id_points_there(kvops_home: Path) -> None:
    info = runs.RunInfo(
        run="needle_recall-20260101T000000Z-abc", scenario="needle_recall", report="recall", options={}, users=1,
        seed=0, target="http://127.0.0.1:1", started_at=0.0,
    )  # fmt: skip
    run = runs.create(info)
    run.finish("finished")
    assert info.run in commands.load("runs").stdout
    listed = json.loads(commands.load("runs", "--json").stdout)
    assert [one["run"] for one in listed] == [info.run]
    wrong = commands.load("show", "nope")
    assert wrong.returncode == 2
    assert "kvops load runs" in wrong.stderr
    near = commands.load("show", "x" + info.run[1:])
    assert f"did you mean {info.run}" in near.stderr


@pytest.mark.parametrize("columns", ["40", "80"])
def test_the_list_stays_within_the_terminal(kvops_home: Path, columns: str) -> None:
    said = commands.load("list", COLUMNS=columns).stdout
    one = commands.load("list", "oversize_injection", COLUMNS=columns).stdout
    prose = [line for line in (said + one).splitlines() if not line.lstrip().startswith("--")]
    assert max(len(line) for line in prose if "(" not in line) <= int(columns)
    assert "--max-prompt-tokens  [default: off]" in one


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:80", "http://localhost"]
)
def test_loopback_needs_no_leave(url: str) -> None:
    launcher.check_target(url, ())
    launcher.check_target("http://node.example", ["node.example"])


@pytest.mark.parametrize("url", ["http://localhost.example", "http://10.0.0.1", "http://0.0.0.0"])
def test_other_machines_do(url: str) -> None:
    with pytest.raises(UsageError, match="--allow-remote"):
        launcher.check_target(url, ["node.example"])


def test_our_process_stays_free_of_gevent_and_locust(kvops_home: Path) -> None:
    code = (
        "import sys; from kvops.cli.main import app; from kvops.load import launcher, runs, node_view; "
        "from kvops.load.reports import base, summary; import kvops.cli.load; "
        "print([m for m in ('gevent', 'locust', 'torch') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_a_line_being_written_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    tail = Tail(file, RequestRecord)
    assert tail.new() == []
    line = (
        b'{"run":"r","scenario":"s","name":"n","seq":0,"user":0,"t_send":1.0,"e2e":1.0,'
        b'"expected":false,"error_class":"tls"}\n'
    )
    file.write_bytes(line + line[:30])
    assert [one.error_class for one in tail.new()] == [ErrorClass.TLS]
    with file.open("ab") as more:
        more.write(line[30:])
    assert len(tail.new()) == 1
    assert tail.new() == []
