"""What an evaluation asks of the process that computes it, and what that answers: token ids and numbers, no text.

One `Assignment` goes in as a line of JSON, after which the pipe stays open. Lines of JSON come out, each a `Doing`, a
`Measured` (the float32 reference first), or a `Fatal` as the last.
"""

from __future__ import annotations

import msgspec

from kvops.models.evaluation import Evaluation
from kvops.node.wire import Fatal, KvDtype, WeightsDtype


class Combination(msgspec.Struct, frozen=True):
    weights: WeightsDtype
    kv: KvDtype


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    model_path: str
    combinations: tuple[Combination, ...]
    """None of them: all that this machine computes."""
    evaluations: tuple[Evaluation, ...]
    """What is known already; `auto` follows it."""
    windows: tuple[tuple[int, ...], ...]
    """Pieces of text, each on its own: every token but the first is predicted from those before it."""
    prompts: tuple[tuple[int, ...], ...]
    answer_tokens: int
    """The longest answer to a prompt."""


class Doing(msgspec.Struct, frozen=True, tag=True):
    what: str
    done: int
    """Tokens."""
    total: int


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One combination, as `auto` was resolved."""

    weights: str
    kv: str
    device: str
    """`cpu` or `cuda`."""
    seconds: float
    losses: tuple[float, ...]
    """-ln p of each predicted token of all windows, in order."""
    likeliest: tuple[int, ...]
    """The token that was thought likeliest in the place of each."""
    answers: tuple[tuple[int, ...], ...]
    """Greedy, to each prompt."""


Message = Doing | Measured | Fatal

ASSIGNMENT = msgspec.json.Decoder(Assignment)
MESSAGE: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
