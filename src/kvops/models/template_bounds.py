"""How large what a chat template builds may be, told before it is built."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import TemplateError
from jinja2.runtime import Undefined

MAX_CHARACTERS = 16 * 2**20
"""Of one value, and of the whole output."""
MAX_BUILT = 64 * 2**20
"""Characters, and 8 an item, of all values that one rendering makes."""
MAX_ITEMS = 100_000
MAX_SLOW_CHARACTERS = 2**20
"""For filters that take a microsecond a word."""
MAX_NUMBER_BITS = 4_096
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_PLAIN_FORMAT = re.compile(r"(?:[^%]|%[sdr%])*")


class TemplateTooLarge(TemplateError):
    """A template built, repeated or computed more than its bound."""


def check_operator(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        bits = right if operator == "**" else right.bit_length()
        grows = left.bit_length() * bits if operator == "**" else left.bit_length() + bits
        at_most(grows, MAX_NUMBER_BITS)
    elif operator == "*":
        sequence, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(sequence, str | list | tuple) and isinstance(times, int):
            at_most(
                len(sequence) * times, MAX_CHARACTERS if isinstance(sequence, str) else MAX_ITEMS
            )
    elif operator == "%" and isinstance(left, str):
        if not _PLAIN_FORMAT.fullmatch(left):
            raise TemplateTooLarge("it formats with a width")
        length_of(right, MAX_CHARACTERS)
    elif operator == "+" and isinstance(left, str | list | tuple) and isinstance(right, type(left)):
        at_most(len(left) + len(right), MAX_CHARACTERS if isinstance(left, str) else MAX_ITEMS)


def at_most(size: int, limit: int) -> None:
    if size > limit:
        raise TemplateTooLarge(
            f"it builds a value of size {size if size < 2**64 else 'over 2^64'}, at most {limit}"
        )


def pieces(text: str, method: str, *args: Any, **kwargs: Any) -> int:
    """At most how many parts `text.split(…)` has, counted without making more than a bound of them."""
    if method == "splitlines":
        return 1 + sum(map(text.count, _LINE_ENDS))
    separator = args[0] if args else kwargs.get("sep")
    if separator is None:
        return len(text.split(None, MAX_ITEMS + 1))
    return 1 + (text.count(separator) if isinstance(separator, str) and separator else 0)


def length_of(value: Any, limit: int) -> int:
    """About how long `str(value)` is. Raises TemplateTooLarge above `limit`, before the string is made."""
    total, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, dict):
            waiting.extend([*item.keys(), *item.values()])
        elif isinstance(item, list | tuple | set):
            waiting.extend(item)
        total += 0 if isinstance(item, str | Undefined) else 32
        at_most(total, limit)
    return total
