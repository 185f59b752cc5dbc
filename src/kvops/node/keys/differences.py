"""What a change of the keys file did, by ids, for the audit. Never a digest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvops.node.keys.file import ApiKey, timestamp

MAX_IDS = 100
"""Of one kind in one record: a file may hold thousands."""


def differences(before: Sequence[ApiKey], after: Sequence[ApiKey]) -> dict[str, list[str]]:
    """Ids that were `added` and `removed`; `ending`: with the time until which they hold now; `changed`: the key
    behind the id, its tenant or its successor is another, or it no longer ends. Only what there is."""
    was, now = ({key.id: key for key in keys} for keys in (before, after))
    both = [(was[name], key) for name, key in now.items() if name in was]
    found = {
        "added": [_with_end(key) for name, key in now.items() if name not in was],
        "removed": [name for name in was if name not in now],
        "ending": [_with_end(new) for old, new in both if _ends_otherwise(old, new)],
        "changed": [new.id for old, new in both if _is_another(old, new)],
    }
    return {kind: _bounded(names) for kind, names in found.items() if names}


def _ends_otherwise(old: ApiKey, new: ApiKey) -> bool:
    return new.expires is not None and new.expires != old.expires


def _is_another(old: ApiKey, new: ApiKey) -> bool:
    """A rotation names a successor and an end, which is told as `ending`."""
    same = (old.digest, old.tenant) == (new.digest, new.tenant)
    endless = old.expires is not None and new.expires is None
    succeeded = old.replaced_by != new.replaced_by and not _ends_otherwise(old, new)
    return not same or endless or succeeded


def _with_end(key: ApiKey) -> str:
    return key.id if key.expires is None else f"{key.id} until {timestamp(key.expires)}"


def _bounded(names: Iterable[str]) -> list[str]:
    listed = list(names)
    more = len(listed) - MAX_IDS
    return [*listed[:MAX_IDS], f"and {more} more"] if more > 0 else listed
