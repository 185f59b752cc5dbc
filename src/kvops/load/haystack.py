"""Documents of plain varied sentences with one number hidden in them, cut to a length in tokens.

The same seed gives the same document; no two seeds share one, so that no prefix cache answers for the model.
Method: needle in a haystack (Kamradt 2023) with RULER's numeric needle and substring score (NVIDIA 2024).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

Count = Callable[[str], int]
"""Tokens of a whole chat request whose only message is this text."""

_WHEN = ("Early in the morning", "After the rain", "On most evenings", "Late last autumn", "Before lunch",
         "During the long winter", "One quiet afternoon", "Towards the end of the week", "In the spring",
         "Shortly after sunrise", "When the market closed", "While the kettle boiled")  # fmt: skip
_WHO = ("the gardener", "a young teacher", "my neighbour", "the old sailor", "our librarian", "the baker",
        "a visiting painter", "the postman", "her cousin", "the village doctor", "a tired farmer", "the carpenter",
        "his grandmother", "the bus driver", "a curious student", "the clockmaker")  # fmt: skip
_DID = ("walked slowly", "carried two baskets", "told a long story", "repaired the wooden gate", "looked for shelter",
        "painted the front door", "waited for the ferry", "planted a row of beans", "read the newspaper aloud",
        "forgot an umbrella", "sold fresh bread", "cleaned the dusty windows", "fed the grey horses",
        "listened to the radio", "folded the blankets", "sharpened the kitchen knives")  # fmt: skip
_WHERE = ("near the river", "behind the church", "at the edge of the forest", "in the small harbour",
          "beside the railway station", "on the stone bridge", "under the apple trees", "along the coast road",
          "in the town square", "by the open fire", "at the top of the hill", "outside the bakery")  # fmt: skip
_WHY = ("because the weather was mild", "and nobody seemed to mind", "although the wind was cold",
        "before going home for supper", "as the children played", "so that everyone could rest",
        "while the bells were ringing", "and the dog slept nearby", "until the lamps were lit",
        "without saying a single word")  # fmt: skip
_SHORT = (
    "It was calm.",
    "Birds sang.",
    "Time went by.",
    "The sky was clear.",
    "Leaves fell.",
    "All was well.",
)
_SHORTEST = ("So.", "Yes.", "Oh.")
_ADJECTIVES = ("amber", "silver", "crimson", "quiet", "golden", "hidden", "marble", "velvet", "northern", "copper",
               "gentle", "frozen", "ancient", "violet", "hollow", "bright")  # fmt: skip
_NOUNS = ("falcon", "lantern", "harbor", "meadow", "compass", "orchid", "canyon", "anchor", "willow", "beacon",
          "glacier", "saddle", "cottage", "raven", "island", "violin")  # fmt: skip

OPENING = "Read the document and remember the special magic number in it.\n\n"
SHORTEST = 96
"""Tokens under which there is no room for a document around the needle."""


class Needle(msgspec.Struct, frozen=True):
    key: str
    value: str
    """Seven digits, the first not 0."""

    @property
    def sentence(self) -> str:
        return f"The special magic number for {self.key} is {self.value}."

    @property
    def question(self) -> str:
        return f"\n\nWhat is the special magic number for {self.key} in the document above? Reply with the number."


class Prompt(msgspec.Struct, frozen=True):
    text: str
    tokens: int
    """Of the whole request, as `count` says."""
    needle_at: int | None
    """Tokens of the message before the needle, the template's own left out; None in a prompt without one."""
    depth: float | None
    """Where the needle really is: tokens of the document before it over all its tokens, percent."""


def make_needle(source: random.Random) -> Needle:
    key = f"{source.choice(_ADJECTIVES)}-{source.choice(_NOUNS)}"
    return Needle(key, str(source.randrange(1_000_000, 10_000_000)))


def sentence(source: random.Random) -> str:
    """One plain sentence without digits, of 12 to 25 tokens."""
    who, did, where = source.choice(_WHO), source.choice(_DID), source.choice(_WHERE)
    match source.randrange(3):
        case 0:
            return f"{source.choice(_WHEN)}, {who} {did} {where}."
        case 1:
            return f"{who.capitalize()} {did} {where} {source.choice(_WHY)}."
        case _:
            return f"{source.choice(_WHEN)}, {who} {did} {source.choice(_WHY)}."


def least(needle: Needle, count: Count) -> int:
    """Tokens of a request with the needle and its question and no document around them."""
    return max(SHORTEST, count(_assemble([], needle, 0)))


def build(
    source: random.Random, needle: Needle, length: int, depth: float | None, count: Count
) -> Prompt:
    """A request of at most `length` tokens and little less, the needle at `depth` percent of the document.

    `depth` None leaves the needle out and still asks for it. Raises ValueError for a length under SHORTEST
    or without room for the needle and its question.
    """
    if length < SHORTEST:
        raise ValueError(
            f"a needle prompt of {length} tokens is too short, the least is {SHORTEST}"
        )
    sentences = _fill(source, needle, length, depth, count)
    at = None if depth is None else _boundary(sentences, depth)
    text = _assemble(sentences, needle, at)
    if at is None:
        return Prompt(text, count(text), None, None)
    empty = count("")
    before = count(OPENING + " ".join(sentences[:at])) - empty
    whole = count(" ".join(sentences)) - empty
    ahead = count(" ".join(sentences[:at])) - empty
    return Prompt(text, count(text), before, 100 * ahead / max(1, whole))


def _fill(
    source: random.Random, needle: Needle, length: int, depth: float | None, count: Count
) -> list[str]:
    """Sentences whose request comes as close under `length` as short ones allow."""

    def size(sentences: list[str]) -> int:
        return count(_assemble(sentences, needle, None if depth is None else 0))

    if (least := size([])) > length:
        raise ValueError(
            f"a needle prompt of {length} tokens is too short for this tokenizer: the least is {least}"
        )
    per_sentence = max(1.0, (size([sentence(source) for _ in range(20)]) - size([])) / 20)
    sentences: list[str] = []
    while (missing := length - size(sentences)) >= 2 * per_sentence:
        sentences += [sentence(source) for _ in range(max(1, int(missing / per_sentence) - 1))]
    while size(sentences) > length:
        sentences.pop()
    for filler in (_SHORT, _SHORTEST):
        while size([*sentences, short := source.choice(filler)]) <= length:
            sentences.append(short)
    return sentences


def _boundary(sentences: list[str], depth: float) -> int:
    """The sentence before which `depth` percent of the text lies, nearest; text stands for tokens here."""
    wanted = sum(map(len, sentences)) * depth / 100
    ends = [0]
    for one in sentences:
        ends.append(ends[-1] + len(one))
    return min(range(len(ends)), key=lambda index: abs(ends[index] - wanted))


def _assemble(sentences: list[str], needle: Needle, at: int | None) -> str:
    body = sentences if at is None else [*sentences[:at], needle.sentence, *sentences[at:]]
    return OPENING + " ".join(body) + needle.question
