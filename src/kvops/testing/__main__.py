"""`python -m kvops.testing`: a broken node, or a broken proxy before one, to try the gate on.

python -m kvops.testing --defect list
python -m kvops.testing --defect wrong_usage --upstream http://127.0.0.1:8000
python -m kvops.testing --defect leaks_after_disconnect
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading

import typer

from kvops.errors import KvopsError
from kvops.testing.defects import DEFECTS
from kvops.testing.node import serve
from kvops.testing.proxy import proxy


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.defect == ["list"]:
        _list()
        return 0
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        if given.upstream:
            with proxy(given.upstream, *given.defect, port=given.port) as url:
                typer.echo(f"proxy {url} before {given.upstream}")
                ended.wait()
            return 0
        with serve(*given.defect, keys=given.keys) as node:
            file = node.home / "state" / "nodes" / "faulty" / "admin.token"
            at = f"--node {node.url} --control-url {node.control_url} --token-file {file}"
            typer.echo(f"kvops verify {at}")
            ended.wait()
    except KvopsError as error:
        typer.echo(f"error: {error}", err=True)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kvops.testing",
        description="A node without a model, broken on purpose, or a broken proxy before a node.",
    )
    parser.add_argument(
        "--defect",
        action="append",
        default=[],
        metavar="NAME",
        help="what is wrong; may be given more than once; `list` names them all; none: sound",
    )
    parser.add_argument(
        "--upstream", metavar="URL", help="the data plane of the node to stand before"
    )
    parser.add_argument("--port", type=int, default=0, help="of the proxy; default: a free one")
    parser.add_argument("--keys", action="store_true", help="the node asks for API keys")
    return parser


def _list() -> None:
    for defect in DEFECTS:
        where = "node, proxy" if defect.outside else "node"
        typer.echo(f"{defect.name:26}{where:13}{defect.check:24}{defect.breaks}")


if __name__ == "__main__":
    sys.exit(main())
