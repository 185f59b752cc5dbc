"""The same rules for a Prometheus that scrapes nodes: as YAML, firing and ending when a node's own evaluator does.

A firing alert is remembered through ALERTS: below the bound and above `clear` it goes on, and without data it does too.
Only staleness has no counterpart there: a reading that a node does not expose is absent, one that is old is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from kvops.alerts.readings import GAUGES, INSTANCE, counter, gauge
from kvops.alerts.rules import AbsenceRule, BurnRule, RateRule, Rule, ThresholdRule

_BUILD = f"max by ({', '.join(INSTANCE)}) (kvops_build_info)"
_HEADER = """# Alert rules for Prometheus, made by kvops alerts export.
# Load them with rule_files, and scrape each node's /metrics.
"""
NODE_DOWN = {
    "alert": "NodeDown",
    "expr": "up == 0 and on (job, instance) max_over_time(kvops_build_info[1d])",
    "for": "1m",
    "labels": {"severity": "critical"},
    "annotations": {
        "summary": "A node that was seen within a day answers no scrape. It cannot tell so itself.",
        "remedy": "kvops node status on its machine, then kvops node logs.",
    },
}
"""What a node cannot say of itself."""


def export(rules: Sequence[Rule]) -> str:
    """A rule file."""
    group = {"name": "kvops", "rules": [*(_rule(rule) for rule in rules), NODE_DOWN]}
    text = yaml.safe_dump({"groups": [group]}, sort_keys=False, width=1000, allow_unicode=True)
    return _HEADER + text


def _rule(rule: Rule) -> dict[str, Any]:
    entry: dict[str, Any] = {"alert": rule.name, "expr": expression(rule)}
    if rule.hold:
        entry["for"] = duration(rule.hold)
    entry["labels"] = {**rule.labels, "severity": rule.severity}
    entry["annotations"] = {
        "summary": _literal(rule.summary),
        "remedy": _literal(rule.remedy),
        "value": "{{ $value }}",
    }
    return entry


def expression(rule: Rule) -> str:
    """PromQL that gives a value for each node on which the alert is to be active."""
    if isinstance(rule, AbsenceRule):
        return f"{_BUILD} unless on ({', '.join(INSTANCE)}) ({_present(rule)})"
    by = gauge(rule.reading).by if isinstance(rule, ThresholdRule) else INSTANCE
    on = f"on ({', '.join(by)})"
    firing = f'max by ({", ".join(by)}) (ALERTS{{alertname="{rule.name}", alertstate="firing"}})'
    value = _value(rule)
    parts = [_bad(rule)]
    if isinstance(rule, ThresholdRule | RateRule) and rule.clear is not None:
        parts.append(f"(({value}) {_sign(rule)} {_number(rule.clear)} and {on} {firing})")
    node = f"on ({', '.join(INSTANCE)})"
    parts.append(f"(({firing} unless {node} ({value})) and {node} kvops_build_info)")
    return " or ".join(parts)


def duration(seconds: float) -> str:
    """`90s`, `5m`, `6h`: what Prometheus reads."""
    for unit, size in (("h", 3600), ("m", 60), ("s", 1)):
        if seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds * 1000:.0f}ms"


def _value(rule: ThresholdRule | RateRule | BurnRule) -> str:
    """What the rule holds against its bound; there is no result where there is no data."""
    match rule:
        case ThresholdRule():
            return rule.gauge.promql
        case RateRule():
            return _risen("rate", (rule.reading,), rule.window)
        case BurnRule():
            return _share_bad(rule, rule.short)


def _bad(rule: ThresholdRule | RateRule | BurnRule) -> str:
    if not isinstance(rule, BurnRule):
        return f"(({_value(rule)}) {_sign(rule)} {_number(rule.bound)})"
    limit, on = _number(rule.limit), f"on ({', '.join(INSTANCE)})"
    asked = _risen("increase", rule.total, rule.long)
    return (
        f"(({_share_bad(rule, rule.short)}) > {limit} and {on} ({_share_bad(rule, rule.long)}) > {limit}"
        f" and {on} ({asked}) >= {_number(rule.least_requests)})"
    )


def _share_bad(rule: BurnRule, window: float) -> str:
    part = _risen("increase", rule.bad or rule.good, window)
    share = f"({part}) / ({_risen('increase', rule.total, window)})"
    return share if rule.bad else f"1 - {share}"


def _risen(function: str, names: Iterable[str], window: float) -> str:
    selectors = [selector for name in names for selector in counter(name).selectors]
    by, span = ", ".join(INSTANCE), duration(window)
    return " + ".join(f"sum by ({by}) ({function}({selector}[{span}]))" for selector in selectors)


def _present(rule: AbsenceRule) -> str:
    if rule.reading in GAUGES:
        return gauge(rule.reading).promql
    by = ", ".join(INSTANCE)
    return " + ".join(f"sum by ({by}) ({each})" for each in counter(rule.reading).selectors)


def _sign(rule: ThresholdRule | RateRule) -> str:
    return ">" if rule.above is not None else "<"


def _number(value: float) -> str:
    return repr(value) if value % 1 else f"{value:.0f}"


def _literal(text: str) -> str:
    """Text that Prometheus's templates leave alone."""
    return text.replace("{{", "{ {")
