"""`python -m benchmarks [ROOM]`: run the measurements of one room and print their table."""

from __future__ import annotations

import argparse
import importlib

from benchmarks.table import print_table

ROOMS = ("first_light",)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("room", nargs="?", choices=ROOMS, default=ROOMS[0])
    room = parser.parse_args().room
    module = importlib.import_module(f"benchmarks.{room}")
    print_table(f"kvops bench {room}", module.measure())


if __name__ == "__main__":
    main()
