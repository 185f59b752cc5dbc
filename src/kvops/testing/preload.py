"""What a process of a faulty node needs, imported once by the fork server that all of them come from."""

from __future__ import annotations

from kvops.testing import process, words

words.tokenizer_json()

__all__ = ["process"]
