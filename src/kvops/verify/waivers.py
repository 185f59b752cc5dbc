"""Findings that a person answers for: which check, why, who and when. Nothing is waived without a reason.

A waiver lets a check that was made and did not pass stand; it covers no check that broke and no node that is gone.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import msgspec

from kvops.errors import UsageError
from kvops.verify.profile import nearest
from kvops.verify.verdict import Verdict

WAIVABLE: tuple[Verdict, ...] = ("fail", "warn", "inconclusive")
MAX_REASON = 500
BASELINE = "baseline."
"""Prefix of the rows of a comparison, which are known only after it."""


class Waiver(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    reason: str
    by: str
    """`name (uid N)` of who ran kvops."""
    at: str
    """ISO 8601, UTC."""


def waivers(
    ids: Sequence[str], reasons: Sequence[str], known: Collection[str], *, compares: bool
) -> tuple[Waiver, ...]:
    """One for each pair of `--waive` and `--reason`, in their order. Raises UsageError.

    known: the checks that are going to run. compares: whether rows of a baseline are going to be there too.
    """
    if len(ids) != len(reasons):
        raise UsageError(
            f"{len(ids)} --waive and {len(reasons)} --reason: each needs the other",
            hint="kvops verify --waive CHECK --reason 'why it may pass'",
        )
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise UsageError(f"--waive {twice[0]} twice", hint="one --waive and --reason a check")
    now, by = datetime.now(UTC).isoformat(timespec="seconds"), _user()
    return tuple(
        Waiver(id=_known(name, known, compares), reason=_reason(name, reason), by=by, at=now)
        for name, reason in zip(ids, reasons, strict=True)
    )


def _known(name: str, known: Collection[str], compares: bool) -> str:
    if name in known or (compares and name.startswith(BASELINE)):
        return name
    if name.startswith(BASELINE):
        raise UsageError(f"--waive {name}: nothing is compared", hint="add --baseline RUN")
    raise UsageError(f"--waive {name}: no such check is run", hint=nearest(name, known))


def _reason(name: str, reason: str) -> str:
    text = " ".join(reason.split())
    if not text or len(text) > MAX_REASON:
        raise UsageError(
            f"--reason for {name}: {len(text)} characters; it needs 1 to {MAX_REASON}",
            hint="say why this node may go live although the check does not pass",
        )
    return text


def _user() -> str:
    uid = os.getuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def covering(waivers: Sequence[Waiver], check: str, verdict: Verdict) -> Waiver | None:
    """The waiver that lets `check` stand with `verdict`."""
    if verdict not in WAIVABLE:
        return None
    return next((waiver for waiver in waivers if waiver.id == check), None)
