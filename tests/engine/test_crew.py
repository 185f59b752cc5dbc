"""A step gets as many threads as pay, found out by trying neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvops.node.engine.cpu.crew import Crew

KIND = (1, 8)


def used(crew: Crew, seconds: Callable[[int], float], steps: int) -> list[int]:
    """Threads of each of `steps` steps, where `threads` of them take `seconds(threads)`."""
    chosen = []
    for _ in range(steps):
        level = crew.choose(KIND)
        chosen.append(crew.threads(level))
        crew.observe(KIND, level, seconds(chosen[-1]))
    return chosen


@pytest.mark.parametrize(("threads", "best"), [(2, 1), (2, 2), (6, 3), (8, 8), (16, 2), (1, 1)])
def test_finds_the_fastest_number_and_mostly_uses_it(threads: int, best: int) -> None:
    crew = Crew(threads)
    used(crew, lambda n: 1 + abs(n - best), 300)
    later = used(crew, lambda n: 1 + abs(n - best), 320)
    assert later.count(best) >= 0.96 * len(later)


def test_never_tries_less_than_half_of_what_is_best() -> None:
    assert set(used(Crew(64), lambda n: 1 / n, 1000)) == {64, 32}


def test_follows_a_machine_that_becomes_busy_and_quiet_again() -> None:
    crew = Crew(2)
    assert used(crew, lambda n: 1 / n, 200)[-1] == 2
    assert used(crew, lambda n: float(n), 200)[-3:].count(1) >= 2
    assert used(crew, lambda n: 1 / n, 400)[-3:].count(2) >= 2


def test_kinds_of_steps_do_not_mix() -> None:
    crew = Crew(4)
    used(crew, lambda n: float(n), 500)
    assert crew.threads(crew.choose((10, 10))) == 4
