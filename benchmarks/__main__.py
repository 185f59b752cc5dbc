"""`python -m benchmarks [ROOM]`: run the measurements of one room and print their table."""

from __future__ import annotations

import argparse
import importlib

from benchmarks.table import print_table

ROOMS = {"first_light": "first_light", "engine": "engine", "node": "operated", "load": "load"}
"""What is asked for, and the module that measures it."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("room", nargs="?", choices=ROOMS, default="first_light")
    parser.add_argument("--peer", choices=("llama_cpp",), help="engine: measure it side by side")
    parser.add_argument("--peer-url", help="engine: an OpenAI server to measure side by side")
    options = vars(parser.parse_args())
    room = options.pop("room")
    given = {name: value for name, value in options.items() if value is not None}
    module = importlib.import_module(f"benchmarks.{ROOMS[room]}")
    print_table(f"kvops bench {room}", module.measure(**given))


if __name__ == "__main__":
    main()
