"""How long prompts and answers are, and prompts of such a length that no two of a run share.

Lengths are drawn from a seeded source, so that a run can be had again; a prompt begins with a number of its own, so
that no prefix cache answers for the model.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvops.load.haystack import Count, sentence
from kvops.load.needle import CHARACTERS_PER_TOKEN, TEMPLATE_TOKENS
from kvops.paths import open_regular
from kvops.units import format_whole

LONGEST = 10_000_000
"""Tokens: no length may be over it."""
FORMS = "200, normal:200,50, lognormal:200,0.8,8-2000 or file:PATH"
DRAWS = 100
"""A draw out of bounds is drawn again so often, then taken to the nearest bound."""
TAIL = 4.0
"""Standard deviations from the middle to the bounds, where none are given."""
MAX_FILE = 16 * 2**20
SAMPLE = 1000
"""Tokens, about, of the text that a line is fitted to."""
ROUNDS = 6
"""Corrections of a prompt's length by the node's own count."""

Kind = Literal["fixed", "normal", "lognormal", "file"]
_BOUNDS = re.compile(r"(\d{1,8})-(\d{1,8})")


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of whole numbers from `low` to `high`, both taken in."""

    kind: Kind
    middle: float
    """The number itself, the mean, or the median."""
    spread: float
    """Standard deviation: of the length (normal) or of its logarithm (lognormal)."""
    low: int
    high: int
    values: tuple[int, ...] = ()
    """Of a file: drawn with equal chance."""
    text: str = ""
    """As it is typed; a file by its whole path."""

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Raises ValueError that names the forms."""
        name, colon, rest = text.strip().partition(":")
        kind, body = (name, rest) if colon else ("fixed", name)
        makers: dict[str, Callable[[str], Lengths]] = {
            "fixed": _fixed,
            "normal": lambda given: _spread("normal", given),
            "lognormal": lambda given: _spread("lognormal", given),
            "file": _from_file,
        }
        if kind not in makers:
            raise ValueError(f"{text[:60]!r} is not a length; forms: {FORMS}")
        return makers[kind](body.strip())

    def draw(self, source: random.Random) -> int:
        match self.kind:
            case "fixed":
                return self.low
            case "file":
                return source.choice(self.values)
            case _:
                return self._bounded(source)

    def _bounded(self, source: random.Random) -> int:
        """Again until it is within the bounds: clamping would pile lengths up at them."""
        for _ in range(DRAWS):
            value = round(self._raw(source))
            if self.low <= value <= self.high:
                return value
        return min(max(value, self.low), self.high)

    def _raw(self, source: random.Random) -> float:
        if self.kind == "normal":
            return source.gauss(self.middle, self.spread)
        return source.lognormvariate(math.log(self.middle), self.spread)


class Workload(msgspec.Struct, frozen=True):
    """How long the prompts and the answers of a scenario are."""

    prompts: Lengths
    answers: Lengths

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Workload:
        """From `prompt_tokens` and `max_tokens`."""
        return cls(Lengths.parse(options["prompt_tokens"]), Lengths.parse(options["max_tokens"]))

    def draw(
        self, source: random.Random, prompt: int | None = None, answer: int | None = None
    ) -> tuple[int, int]:
        """Tokens of a prompt and of its answer; those that a trace gives stand."""
        drawn = self.prompts.draw(source), self.answers.draw(source)
        return prompt or drawn[0], answer or drawn[1]


def _fixed(text: str) -> Lengths:
    value = _whole(text)
    return Lengths("fixed", value, 0.0, value, value, (), str(value))


def _spread(kind: Literal["normal", "lognormal"], text: str) -> Lengths:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (2, 3):
        raise ValueError(f"{kind}:{text[:60]}: takes two numbers and bounds, as in {FORMS}")
    middle, spread = _number(parts[0], 1, LONGEST), _number(parts[1], 0, LONGEST)
    if kind == "lognormal" and spread > TAIL:
        raise ValueError(
            f"lognormal: a sigma of {spread:g} is over {TAIL:g}: its lengths have no bound"
        )
    low, high = _bounds(parts[2]) if len(parts) == 3 else _natural(kind, middle, spread)
    if not low <= middle <= high:
        raise ValueError(f"{kind}: the middle {middle:g} is outside its bounds {low}-{high}")
    return Lengths(kind, middle, spread, low, high, (), f"{kind}:{','.join(parts)}")


def _natural(kind: str, middle: float, spread: float) -> tuple[int, int]:
    """Where TAIL standard deviations end."""
    if kind == "normal":
        ends = middle - TAIL * spread, middle + TAIL * spread
    else:
        ends = middle * math.exp(-TAIL * spread), middle * math.exp(TAIL * spread)
    return max(1, math.floor(ends[0])), min(LONGEST, math.ceil(ends[1]))


def _bounds(text: str) -> tuple[int, int]:
    match = _BOUNDS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} are no bounds such as 8-2000")
    low, high = _whole(match[1]), _whole(match[2])
    if low > high:
        raise ValueError(f"the bounds {text} are the wrong way round")
    return low, high


def _from_file(text: str) -> Lengths:
    path = Path(text).expanduser().absolute()
    try:
        with open_regular(path) as file:
            lines = file.read(MAX_FILE + 1).decode()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ValueError(f"file:{text}: {reason}") from error
    if len(lines) > MAX_FILE:
        raise ValueError(f"file:{text}: over {format_whole(MAX_FILE)} characters")
    values = tuple(
        _line(line, number, text)
        for number, line in enumerate(lines.splitlines(), 1)
        if line.strip()
    )
    if not values:
        raise ValueError(f"file:{text}: holds no length; it takes one whole number a line")
    middle = sum(values) / len(values)
    return Lengths("file", middle, 0.0, min(values), max(values), values, f"file:{path}")


def _line(line: str, number: int, name: str) -> int:
    try:
        return _whole(line.strip())
    except ValueError as error:
        raise ValueError(f"file:{name}, line {number}: {error}") from None


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:12]) <= LONGEST:
        raise ValueError(f"{text[:40]!r} is not a whole number from 1 to {LONGEST}")
    return int(text)


def _number(text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ValueError(f"{text[:40]!r} is not a number from {low:g} to {high:g}")
    return value


def prompt(source: random.Random, tokens: int, count: Count | None = None) -> str:
    """Plain sentences of about `tokens` tokens with the chat template; exact to a few with the node's `count`.

    The first words are unlike those of every other prompt. A length too short for them gives them alone.
    """
    text = _Text(source)
    size = max(0, tokens - TEMPLATE_TOKENS) * CHARACTERS_PER_TOKEN
    made = text.cut(size)
    for _ in range(ROUNDS if count is not None else 0):
        found = count(made) if count is not None else tokens
        if tokens - 2 <= found <= tokens or (found > tokens and made == text.opening):
            break
        size = max(0.0, len(made) + (tokens - 1 - found) * len(made) / max(1, found))
        made = text.cut(size)
    return made


def least(count: Count) -> int:
    """Tokens of the shortest prompt that can be made, about: two openings may differ by one."""
    return count(prompt(random.Random("sample"), 1))


def fitted(count: Count) -> Count:
    """Counts prompts as `count` does, off by a few percent, and asks nobody: a line through a short and a long one."""
    short, long = (prompt(random.Random("sample"), tokens) for tokens in (1, SAMPLE))
    least = count(short)
    slope = (count(long) - least) / (len(long) - len(short))
    return lambda text: round(least + slope * (len(text) - len(short)))


class _Text:
    """Sentences as many as are asked for, always the same ones."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self.opening = f"Letter {source.randrange(10**7, 10**8)}."
        self._whole = self.opening

    def cut(self, size: float) -> str:
        """At most `size` characters, cut between words, but the opening at least."""
        while len(self._whole) < size:
            self._whole += " " + sentence(self._source)
        return self.opening + self._whole[len(self.opening) : max(0, int(size))].rpartition(" ")[0]


def source_of(*seed: Any) -> random.Random:
    """The random source of one request: the same for the same seed and place in the run."""
    return random.Random(" ".join(map(str, seed)))
