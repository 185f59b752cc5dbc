"""What to say when a model is not there: the nearest that is, or how to get it; the same from every command."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from kvops.errors import ModelNotFound
from kvops.models.catalog import CATALOG


def not_pulled(name: str, pulled: Sequence[str]) -> ModelNotFound:
    """For a name that should be in the store, which holds `pulled`."""
    if looks_like_path(name):
        return no_such_path(name)
    return ModelNotFound(f"there is no model {name!r} on this machine", hint=_hint(name, pulled))


def not_pullable(text: str) -> ModelNotFound:
    """For what is no catalog model, no hub reference and no path."""
    if looks_like_path(text):
        return no_such_path(text)
    near = _nearest(text, list(CATALOG))
    known = f"use {', '.join(CATALOG)}, hf:ORG/NAME, or the path of a .gguf file or a folder"
    return ModelNotFound(
        f"there is no model {text!r} to pull", hint=f"did you mean {near}?" if near else known
    )


def no_such_path(text: str) -> ModelNotFound:
    return ModelNotFound(
        f"no such file or folder: {text}", hint="give the path of a .gguf file or of a folder"
    )


def looks_like_path(text: str) -> bool:
    return "/" in text or text.endswith(".gguf") or text.startswith((".", "~"))


def _hint(name: str, pulled: Sequence[str]) -> str:
    if name in CATALOG:
        return f"kvops model pull {name}"
    near = _nearest(name, [*pulled, *CATALOG])
    if near in pulled:
        return f"did you mean {near}?"
    if near:
        return f"did you mean {near}? kvops model pull {near}"
    return f"kvops model list shows those that were pulled; to start: kvops model pull {next(iter(CATALOG))}"


def _nearest(name: str, known: Sequence[str]) -> str | None:
    begins = [each for each in known if name and each.startswith(name.lower())]
    return next(iter(begins or difflib.get_close_matches(name.lower(), known, 1, 0.6)), None)
