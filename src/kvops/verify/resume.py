"""Going on with an interrupted run: only where node, profile and thresholds are what they were."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from kvops.errors import UsageError
from kvops.telemetry.targets import Target
from kvops.verify import runs
from kvops.verify.facts import Facts
from kvops.verify.result import Report
from kvops.verify.selection import Plan

_FACTS = {
    "engine": "engine",
    "engine_version": "engine version",
    "model": "model",
    "revision": "revision",
    "max_model_len": "context length",
    "kv_dtype": "KV dtype",
    "config_hash": "configuration",
}


def unfinished(text: str) -> Report:
    """The kept run that `--resume` names; `last` is the latest interrupted one. Raises UsageError."""
    if text == runs.LAST:
        found = next((one for one in runs.reports() if goes_on(one)), None)
        if found is None:
            raise UsageError(
                "no interrupted run is kept", hint="kvops verify runs lists what there is"
            )
        _require_ended(found)
        return found
    report = runs.find(text)
    if not goes_on(report):
        raise UsageError(
            f"run {report.run_id} is not interrupted, its verdict is {report.verdict}",
            hint="start a new one: leave --resume out",
        )
    _require_ended(report)
    return report


def goes_on(report: Report) -> bool:
    """Whether a run can be taken up again: it was stopped, or its node was not there when it was taken up before."""
    return report.verdict == "interrupted" or (
        report.verdict == "unreachable" and bool(report.checks)
    )


def began(earlier: Report) -> float:
    """Unix seconds at which the first part of a run began. Raises UsageError."""
    try:
        return datetime.fromisoformat(earlier.started_at).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"run {earlier.run_id} does not say when it began: started_at {earlier.started_at[:40]!r}",
            hint="start a new one: leave --resume out",
        ) from None


def known(earlier: Report | None, now: Facts) -> Facts:
    """What a node says of itself, and what it does not say now as the first part of the run has heard it."""
    if earlier is None:
        return now
    said = msgspec.structs.asdict(now)
    return Facts(**{name: value or getattr(earlier.target, name) for name, value in said.items()})


def _require_ended(report: Report) -> None:
    if runs.is_running(report.run_id):
        raise UsageError(
            f"run {report.run_id} still goes on in another process",
            hint="wait for it to end, or stop it with Ctrl-C",
        )


def require_same(earlier: Report, plan: Plan, target: Target) -> None:
    """Raises UsageError that says in what the run would differ from its first part."""
    differs = []
    if earlier.target.name != target.name and target.url != earlier.target.url:
        differs.append(f"node {earlier.target.url} then, {target.url} now")
    if plan.profile.name != earlier.profile:
        differs.append(f"profile {earlier.profile} then, {plan.profile.name} now")
    elif plan.fingerprint != earlier.profile_hash:
        differs.append(
            f"profile {earlier.profile}: {_changed(earlier, plan)} "
            f"({earlier.profile_hash or 'unknown'} then, {plan.fingerprint} now)"
        )
    _require_none(earlier, differs)


def _changed(earlier: Report, plan: Plan) -> str:
    """Which checks, as far as the run knows: of one that was not made yet it knows the name alone."""
    then = {check.id: (check.severity, check.parameters) for check in earlier.checks}
    known = {*then, *earlier.not_run, *earlier.left_out}
    now = {
        p.check.id: (p.entry.severity, p.parameters.model_dump(mode="json"))
        for p in plan.everything
    }
    said = {
        "new": [name for name in now if name not in known],
        "gone": [name for name in known if name not in now],
        "other thresholds": [name for name in then if name in now and then[name] != now[name]],
    }
    found = [f"{what}: {', '.join(sorted(ids))}" for what, ids in said.items() if ids]
    return "; ".join(found) or "thresholds of checks that were not made yet"


def agreement(earlier: Report | None) -> Callable[[Facts], None]:
    """What raises UsageError when the node that answers is not configured as in the first part of the run."""

    def agrees(facts: Facts) -> None:
        if earlier is not None and earlier.checks:
            _require_none(earlier, differences(earlier.target, facts))

    return agrees


def differences(before: Facts, now: Facts) -> list[str]:
    """In words, of all that both are known to be; what one did not say is no difference."""
    pairs = {said: (getattr(before, name), getattr(now, name)) for name, said in _FACTS.items()}
    pairs["GPUs"] = (", ".join(before.gpus) or None, ", ".join(now.gpus) or None)
    return [
        f"{said} {was} then, {is_now} now"
        for said, (was, is_now) in pairs.items()
        if was is not None and is_now is not None and was != is_now
    ]


def _require_none(earlier: Report, differs: Sequence[str]) -> None:
    if differs:
        raise UsageError(
            f"run {earlier.run_id} cannot be gone on with: {'; '.join(differs)}",
            hint="start a new one: leave --resume out",
        )


def command(run_id: str, options: Sequence[Sequence[str]]) -> str:
    """What to type to go on."""
    words = ["kvops", "verify", "--resume", run_id]
    return shlex.join([*words, *(word for option in options for word in option)])
