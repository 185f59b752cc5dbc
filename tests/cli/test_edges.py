"""Whatever files, URLs, replies and signals bring, the command ends with an error, a next step and its exit code."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from kvops import registry
from kvops.cli.outside import outside
from tests.harness import run_kvops

ME = psutil.Process()


def ends(code: int | tuple[int, ...], *args: str, home: Path) -> subprocess.CompletedProcess[str]:
    done = run_kvops(*args, env={"KVOPS_HOME": str(home)}, timeout=60)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    assert done.returncode in ((code,) if isinstance(code, int) else code), said
    return done


COMMANDS = (
    ("node", "status"), ("node", "start", "--model", "x"), ("model", "list"), ("load", "show"),
    ("model", "pull", "smollm2-135m"), ("verify", "--node", "http://127.0.0.1:1"),
    ("load", "run", "ramp", "--node", "http://127.0.0.1:1"),
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_home_that_is_a_file(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "home"
    file.touch()
    ends((0, 1, 2, 4), *command, home=file)


def record(name: str, **changed: object) -> None:
    """A node of this test's own process."""
    fields: dict[str, object] = {
        "name": name, "pid": ME.pid, "pid_created": ME.create_time(), "url": "http://127.0.0.1:1",
        "control_url": "http://127.0.0.1:1", "model": "m", "started_at": time.time(), "version": "0",
    }  # fmt: skip
    folder = registry.node_dir(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "node.json").write_text(json.dumps(fields | changed))


def test_one_bad_record_hides_no_other(kvops_home: Path) -> None:
    record("good")
    record("bad-control", control_url="http://[::1")
    record("bad-url", url="nonsense")
    record("bad-port", url="http://127.0.0.1:99999")
    record("no-pid", pid=-5)
    record("huge-pid", pid=10**18)
    (registry.node_dir("folder") / "node.json").mkdir(parents=True)
    registry.node_dir("deep").mkdir()
    (registry.node_dir("deep") / "node.json").write_text("[" * 100_000)
    assert [each.name for each in registry.running()] == ["good"]
    assert "good" in ends((0, 1, 4), "node", "status", home=kvops_home).stdout


def test_a_token_that_is_no_text_is_none(kvops_home: Path) -> None:
    record("live")
    for junk in (os.urandom(60) + b"\xff", b"a\nb", b"a\r\nX: y"):
        registry.token_file("live").write_bytes(junk)
        ends((1, 2, 4), "node", "drain", "--node", "live", home=kvops_home)
        ends(4, "snapshot", "--node", "live", home=kvops_home)


@pytest.mark.parametrize("junk", [b"\xff\xfe\x80", b"a\nb\n", b"\x00"])
def test_a_key_file_that_is_no_secret(junk: bytes, tmp_path: Path, kvops_home: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(junk)
    node = ("--node", "http://127.0.0.1:1", "--api-key-file", str(file))
    assert str(file) in ends(2, "verify", *node, home=kvops_home).stderr


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:80\n", "http://a b", "ftp://x", "http://",
        "http://x..y", "http://[zz]", "http://127.0.0.1:0", "http://" + "a" * 300,
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", [("verify",), ("load", "run", "ramp"), ("snapshot",)], ids=str)
def test_what_is_no_url(url: str, command: tuple[str, ...], kvops_home: Path) -> None:
    from kvops.errors import UsageError
    from kvops.telemetry import targets

    with pytest.raises(UsageError):
        targets.resolve(url)
    with pytest.raises(UsageError):
        targets.resolve("http://127.0.0.1:1", control_url=url)
    if url == "http://[::1":
        ends(2, *command, "--node", url, home=kvops_home)


def answer(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


REPLIES: dict[str, tuple[bytes, tuple[int, ...]]] = {
    "hangs up": (b"", (4,)),
    "garbage": (b"\x00\x01\x02" * 100, (4,)),
    "a web page": (answer(b"<html>hi</html>", kind="text/html"), (4,)),
    "a list": (answer(b"[]"), (4,)),
    "deep": (answer(b"[" * 100_000), (4,)),
    "a broken server": (answer(b"oops", "500 X"), (4,)),
    "an error that is text": (answer(b'{"error":"x"}', "503 X"), (4,)),
    "an error that is null": (answer(b'{"error":null}', "503 X"), (4,)),
    "data that is an object": (answer(b'{"data":{"id":1}}'), (4,)),
}  # fmt: skip


@contextmanager
def listening(reply: bytes) -> Iterator[str]:
    """Gives every connection the same reply, whatever it asks."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                try:
                    connection.recv(65536)
                    connection.sendall(reply)
                except OSError:
                    pass

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize(("reply", "codes"), REPLIES.values(), ids=REPLIES.keys())
def test_what_answers_and_is_no_node(
    reply: bytes, codes: tuple[int, ...], kvops_home: Path
) -> None:
    with listening(reply) as url:
        ends(codes, "verify", "--node", url, home=kvops_home)
        load = ("load", "run", "ramp", "--users", "1", "--duration", "1s")
        ends((1, 4), *load, "--node", url, home=kvops_home)


def test_results_of_a_gate_on_a_full_disk(
    kvops_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvops.testing import serve

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    from kvops import paths
    from kvops.verify import outputs
    from kvops.verify.command import gate
    from kvops.verify.order import Asked, prepare

    with serve() as node:
        wanted: outputs.Wanted = {"html": str(kvops_home.parent / "report.html")}
        order = prepare(Asked(node=node.url, only=["resp.short"], wanted=wanted))
        monkeypatch.setattr(paths, "write_atomic", full)
        console = Console(file=(told := io.StringIO()), width=120)
        assert gate(order, console) == 2
    assert "--html" in capsys.readouterr().err
    said = told.getvalue()
    assert "✓ pass" in said
    assert "not saved: result.json: No space left on device" in said


def test_ctrl_c_in_the_imports_of_the_command_line(tmp_path: Path) -> None:
    """The signal comes from within an import, so that no clock decides."""
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from kvops.cli.entry import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "/x"), 2, "/x"),
        (OSError(28, "No space left on device"), 1, "No space"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), 1, "UnicodeDecodeError"),
        (RecursionError("too deep"), 1, "too deep"),
    ],
)
def test_the_net_names_what_it_caught(error: Exception, code: int, said: str) -> None:
    known = outside(error)
    assert known.exit_code == code
    assert said in known.message
    assert known.hint


def test_a_pull_leaves_no_lock(tiny_model: Path, tmp_path: Path, kvops_home: Path) -> None:
    ends(0, "model", "pull", str(tiny_model), "--name", "kept", home=kvops_home)
    ends((1, 2), "model", "pull", str(tmp_path / "nothing.gguf"), home=kvops_home)
    empty = tmp_path / "empty"
    empty.mkdir()
    ends((1, 2), "model", "pull", str(empty), "--name", "never", home=kvops_home)
    assert sorted(p.name for p in (kvops_home / "data" / "models").iterdir()) == ["kept"]
