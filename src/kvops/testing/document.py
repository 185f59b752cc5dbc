"""The tables of docs/gate.md that follow from the code. `python -m kvops.testing.document docs/gate.md` writes them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvops.testing.defects import DEFECTS
from kvops.verify.check import Check
from kvops.verify.checks import CHECKS
from kvops.verify.profile import Entry, builtin_profiles, load_profile

ORDER = ("quick", "smoke", "golive", "release")


def matrix() -> str:
    """What is broken, where it can be, and which check must fail."""
    rows = [
        (
            f"`{one.name}`",
            one.breaks,
            f"`{one.check}`",
            "node, proxy" if one.outside else "node",
        )
        for one in DEFECTS
    ]
    return table(("defect", "a node that", "fails", "made by"), rows)


def checks() -> str:
    """Every check, its thresholds in golive, or in the first profile that has it, and the profiles that have it."""
    entries = {name: {e.id: e for e in load_profile(name).checks} for name in _profiles()}
    rows = []
    for check in CHECKS:
        named = [name for name in entries if check.id in entries[name]]
        shown = "golive" if "golive" in named else next(iter(named), None)
        entry = entries[shown][check.id] if shown else None
        rows.append(
            (
                f"`{check.id}`",
                check.area or "",
                check.purpose.removesuffix("."),
                thresholds(check, entry),
                ", ".join(named) or "–",
            )
        )
    return table(("check", "item", "what it shows", "thresholds", "profiles"), rows)


def _profiles() -> list[str]:
    known = builtin_profiles()
    return [name for name in ORDER if name in known] + sorted(set(known) - set(ORDER))


def thresholds(check: Check, entry: Entry | None) -> str:
    """As the profile has them, and the check's own where it says nothing."""
    values = check.parameters.model_validate(entry.parameters if entry else {}).model_dump()
    return ", ".join(
        f"`{name}` {_said(value)}" for name, value in values.items() if _tells(name, value)
    )


def _tells(name: str, value: Any) -> bool:
    return value is not None and (name, value) != ("min_samples", 1)


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_said, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def filled(text: str) -> str:
    """`text` with the tables between their marks as the code has them. Raises ValueError where a mark is missing."""
    for name, made in (("checks", checks()), ("matrix", matrix())):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, _, rest = text.partition(begin)
        _, mark, tail = rest.partition(end)
        if not mark:
            raise ValueError(f"the document has no {begin} … {end}")
        text = f"{head}{begin}\n{made}\n{end}{tail}"
    return text


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text()))
