"""What every command's help has in common."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import typer

from kvops import __version__
from kvops.cli.main import app
from tests.harness import run_kvops

NODE_HELP = r"Name(, fleet name)? or URL of a node; default: the only one that runs here\."


def commands(group: object, path: str = "") -> Iterator[tuple[str, object]]:
    for name, command in getattr(group, "commands", {}).items():
        yield f"{path}{name}", command
        yield from commands(command, f"{path}{name} ")


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", ["verify", "load run", "snapshot"])
def test_the_default_of_node_is_worded_one_way(name: str) -> None:
    (option,) = (p for p in ALL[name].params if "--node" in p.opts)  # type: ignore[attr-defined]
    assert re.fullmatch(NODE_HELP, option.help)


@pytest.mark.parametrize("name", ["verify", "load run"])
def test_what_an_option_takes_is_a_word_and_no_type(name: str) -> None:
    said = run_kvops(*name.split(), "--help", env={"COLUMNS": "100"}).stdout.partition("Options:")[
        2
    ]
    assert "--node NODE" in said
    assert not re.search(r"<[a-z]", said)


@pytest.mark.parametrize("args", [("version",), ("--version",)])
def test_the_version_is_told_both_ways(args: tuple[str, ...]) -> None:
    done = run_kvops(*args, env={})
    assert (done.returncode, done.stdout) == (0, f"kvops {__version__}\n")
