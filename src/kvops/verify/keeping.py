"""From what a check found to what is kept of it: enough samples or no pass, bounded, and nothing JSON cannot hold."""

from __future__ import annotations

import errno
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from kvops import paths
from kvops.units import format_bytes
from kvops.verify.api import Refusal
from kvops.verify.check import Artifact, Outcome
from kvops.verify.result import MAX_REFUSALS, CheckResult, Kept
from kvops.verify.selection import PlannedCheck
from kvops.verify.waivers import Waiver, covering

MAX_EVIDENCE = 64 * 1024
MAX_SERIES = 32
MAX_ARTIFACTS = 16
MAX_WORD = 200
"""Characters of what a refusal says."""
MAX_SVG = 2 * 1024 * 1024
ARTIFACTS = "artifacts"


def row(
    planned: PlannedCheck,
    outcome: Outcome,
    *,
    started: datetime,
    took: float,
    waivers: Sequence[Waiver] = (),
    folder: Path | None = None,
) -> CheckResult:
    """`folder`: the run's, for plots; without one they are dropped. `took`: seconds."""
    check, fewest = planned.check, planned.parameters.min_samples
    outcome = _bounded(_sampled(outcome, fewest))
    return CheckResult(
        id=check.id,
        title=check.title,
        purpose=check.purpose,
        area=check.area,
        severity=planned.entry.severity,
        verdict=outcome.verdict,
        observed=outcome.observed,
        expected=outcome.expected,
        op=outcome.op,
        unit=outcome.unit,
        n=outcome.n,
        min_samples=fewest,
        started_at=started.isoformat(timespec="milliseconds"),
        took_seconds=round(took, 4),
        parameters=planned.parameters.model_dump(mode="json"),
        evidence=outcome.evidence,
        remedy=outcome.remedy,
        waived=covering(waivers, check.id, outcome.verdict),
        samples=outcome.samples,
        artifacts=tuple(_kept(check.id, outcome.artifacts, folder)),
    )


def _sampled(outcome: Outcome, fewest: int) -> Outcome:
    if outcome.verdict not in ("pass", "warn") or outcome.n >= fewest:
        return outcome
    return msgspec.structs.replace(
        outcome,
        verdict="inconclusive",
        observed=f"{outcome.observed} from {outcome.n} samples, and the verdict needs {fewest}",
        evidence=outcome.evidence | {"verdict_of_too_few": outcome.verdict},
        remedy=outcome.remedy or "give the check more time or load, or lower min_samples",
    )


def _bounded(outcome: Outcome) -> Outcome:
    """The same as JSON will have it; an error where it cannot have it."""
    try:
        found: dict[str, Any] = plain(msgspec.to_builtins(outcome, enc_hook=_scalar, str_keys=True))
        found["evidence"] = _limited(found["evidence"])
        found["samples"] = dict(sorted(found["samples"].items())[:MAX_SERIES])
        return msgspec.convert(found, type=Outcome, str_keys=True)
    except (TypeError, ValueError, RecursionError, NotImplementedError) as error:
        return Outcome(
            verdict="error",
            observed=f"what the check found cannot be kept: {type(error).__name__}: {error}"[:300],
            expected=None,
            remedy="a defect of the check itself, not of the node: report it with its result file",
        )


def _scalar(value: Any) -> Any:
    """Of numpy, the number in it."""
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in evidence")


def plain(value: Any) -> Any:
    """`value` as JSON can hold it.

    Infinities and NaN are words: null would mean that there is none. Half a surrogate pair, which the JSON of a
    node may have in it, is a question mark.
    """
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _limited(evidence: dict[str, Any]) -> dict[str, Any]:
    """Without its largest parts, each of which is named, where it is more than MAX_EVIDENCE."""
    sizes = {key: len(msgspec.json.encode(item)) for key, item in evidence.items()}
    kept = dict(evidence)
    for key in sorted(sizes, key=lambda name: -sizes[name]):
        if sum(sizes.values()) <= MAX_EVIDENCE:
            break
        kept[key] = f"left out: {format_bytes(sizes[key])}"
        sizes[key] = len(kept[key])
    return kept


def kinds(refusals: Sequence[Refusal]) -> tuple[Refusal, ...]:
    """Each kind once, in the order they were first seen; bounded."""
    return tuple(dict.fromkeys(_short(refusal) for refusal in refusals))[:MAX_REFUSALS]


def _short(refusal: Refusal) -> Refusal:
    words = {name: getattr(refusal, name) for name in ("path", "code", "retry_after")}
    cut = {name: None if text is None else plain(text[:MAX_WORD]) for name, text in words.items()}
    return msgspec.structs.replace(refusal, **cut)


def _kept(check: str, artifacts: Sequence[Artifact], folder: Path | None) -> Iterator[Kept]:
    """Plots go to disk; one that cannot is named as missing, which takes no verdict."""
    for index, artifact in enumerate(artifacts[:MAX_ARTIFACTS]):
        if artifact.path:
            yield Kept(title=artifact.title, path=artifact.path)
        if not artifact.svg or folder is None:
            continue
        name = f"{ARTIFACTS}/{check}-{index}.svg"
        data = artifact.svg.encode(errors="replace")
        try:
            if len(data) > MAX_SVG:
                raise OSError(errno.EFBIG, f"larger than {format_bytes(MAX_SVG)}")
            paths.write_atomic(folder / name, data)
            yield Kept(title=artifact.title, path=name, plot=True)
        except OSError as error:
            yield Kept(title=f"{artifact.title} (not kept: {error.strerror})", path="")
