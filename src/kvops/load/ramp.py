"""The steps of a ramp: 1, 2, 4 … users, and the last number whatever it is."""

from __future__ import annotations


def steps(users: int) -> list[int]:
    doubling = [2**power for power in range(users.bit_length()) if 2**power < users]
    return [*doubling, users]


def step_name(users: int) -> str:
    return f"{users} user{'' if users == 1 else 's'}"
