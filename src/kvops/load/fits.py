"""Whether the prompts that a run asks for can be made for a node: asked before the first request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvops.errors import NodeProtocolError, UsageError
from kvops.load import needle, workload
from kvops.load.endpoint import Endpoint
from kvops.load.haystack import Count, least
from kvops.load.options import Option, shown
from kvops.load.scenarios import Scenario
from kvops.units import format_whole

SPARE = 8
"""Tokens that another seed's words may take more."""
UNLIKE = 16
"""Tokens, more than two needles differ by: prompts that are no longer than this over the first are looked at singly."""


def check(scenario: Scenario, options: Mapping[str, Any], seed: int, endpoint: Endpoint) -> None:
    """Raises UsageError for prompts longer than the node takes, or too short for what they must hold by its tokenizer.

    Raises NodeProtocolError for a tokenizer route that fails.
    """
    scenario.check_context(dict(options), endpoint.max_model_len)
    floored = {name: one for name, one in scenario.options.items() if one.must_hold is not None}
    if not floored:
        return
    try:
        count, exact = needle.counter(endpoint.client, endpoint.model)
        for name, option in floored.items():
            _check_floor(name, option, options, seed, count, exact=exact)
    except ValueError as error:
        raise NodeProtocolError(
            f"the node's tokenizer cannot be asked: {endpoint.client.clean(str(error))}",
            hint="see the node's log",
        ) from None


def _check_floor(
    name: str, option: Option, options: Mapping[str, Any], seed: int, count: Count, *, exact: bool
) -> None:
    shortest = min(options[name])
    what, floor = _FLOORS[option.must_hold or "opening"]
    if shortest >= (tokens := floor(options, seed, count)):
        return
    flag = "--" + name.replace("_", "-")
    by = (
        "by the node's tokenizer"
        if exact
        else "by an estimate, for the node has no tokenizer route"
    )
    raise UsageError(
        f"{flag} {shown(shortest)} is too short: {what} and the chat template take {format_whole(tokens)} tokens {by}",
        hint=f"{flag} {-(-(tokens + SPARE) // 32) * 32} has room for them",
    )


def _of_needles(options: Mapping[str, Any], seed: int, count: Count) -> int:
    """The most that a prompt of the run needs without a document: needles differ by a few tokens."""
    cells = needle.plan(seed, options["lengths"], options["depths"], options["repeats"])
    first = least(cells[0].needle, count)
    near = [cell.needle for cell in cells if cell.length < first + UNLIKE]
    return max([first, *(least(one, count) for one in near)])


_FLOORS: dict[str, tuple[str, Callable[[Mapping[str, Any], int, Count], int]]] = {
    "needle": ("the hidden number, the question for it", _of_needles),
    "opening": (
        "the words that tell it from other prompts",
        lambda _, __, count: workload.least(count),
    ),
}
