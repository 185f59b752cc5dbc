"""Counts the tokens of an answer's text by the model's own tokenizer, as a check of what the server's usage says.

Only where this machine has the very model in its store, and at a bounded cost: counting happens between a request's
end and its record, so no time of that request holds it, but others are in flight meanwhile.
"""

from __future__ import annotations

import time

from kvops.errors import KvopsError
from kvops.models import store
from kvops.models.tokenizer import Tokenizer, load_tokenizer
from kvops.telemetry.snapshot import Known, NodeSnapshot

SHARE = 0.01
"""Of the time since the start that counting may take; answers beyond that are left out, evenly over the run."""
MAX_TEXT = 20_000
"""Characters; longer answers are not counted, for one of them would hold up all that is in flight."""


class Counter:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._started, self._spent = time.perf_counter(), 0.0

    def count(self, text: str) -> int | None:
        """None where counting was left out for its cost."""
        start = time.perf_counter()
        if len(text) > MAX_TEXT or self._spent > SHARE * (start - self._started):
            return None
        try:
            tokens = len(self._tokenizer.encode(text, special=False))
        except KvopsError:
            return None  # no Unicode
        self._spent += time.perf_counter() - start
        return tokens


def counter(before: NodeSnapshot | None) -> Counter | None:
    """For the model that the node says it serves; None where this machine does not have it."""
    if before is None or not isinstance(before.model, Known):
        return None
    return of_revision(before.model.value.revision)


def of_revision(revision: str) -> Counter | None:
    """Of the pulled model with these weights."""
    try:
        for stored in store.list_models():
            if stored.revision == revision:
                return Counter(load_tokenizer(stored.path))
    except (KvopsError, OSError):
        return None  # a store that cannot be read has no tokenizer for us
    return None
