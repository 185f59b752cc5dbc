"""What the watched requests wait alone, and what beside the heavy ones.

Alone they must meet the objectives: else the node is too slow for them, and nothing is said of fairness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from kvops.load.fairness import ALONE, BESIDE, ROLES, Roles
from kvops.load.records import RequestRecord
from kvops.load.refusals import STATUSES
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import Columns
from kvops.load.reports.doubts import blamed, client_gaps
from kvops.load.reports.slo import cache_notes, claims, longer, words
from kvops.load.reports.spread import cells, finite, ratio, times
from kvops.load.slo import Slo
from kvops.load.statistics import Claim, Series, pooled_gaps, series, value_of
from kvops.units import format_whole


class Side(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    answered: int
    refused: int
    """With 429 or 503, by which a node protects the others."""
    failed: int
    ttft: Series
    itl: Series
    prompt_tokens: int


def judge(data: RunData) -> Verdict:
    options, watched = data.info.options, _roles(data)
    slo = Slo.of(options)
    alone, beside = (_of(data, watched.name(phase)) for phase in (ALONE, BESIDE))
    failures, gaps = failure_lines([*alone, *beside]), []
    failures += _pressing_faults(data)
    gaps += [
        f"alone, {words(name, one)}{_remedy(data, one)}"
        for name, one in claims(alone, slo).items()
        if one.outcome != "holds"
    ]
    slow, shown = [], []
    for name, one in claims(beside, slo).items():
        told = f"{watched.beside}, {words(name, one)}"
        if one.outcome == "holds":
            shown.append(told)
        elif one.outcome == "refuted" and not gaps:
            slow.append(told)
        else:
            gaps.append(told if one.outcome == "refuted" else f"{told}{_remedy(data, one)}")
    blame, excused = blamed(data, [*slow, *_over_ratio(data)])
    failures, gaps = [*failures, *blame], [*gaps, *excused]
    pressed = side(data, watched.pressing)
    if not pressed.answered:
        gaps.append(f"no {watched.pressing} request was answered: there was nothing to stand up to")
    notes = [*_notes(data), *cache_notes(data.records)]
    return verdict(failures, [*gaps, *client_gaps(data)], notes, shown)


def facts(data: RunData) -> dict[str, Any]:
    slo = Slo.of(data.info.options)
    found = {one.name: one for one in _sides(data)}
    alone, beside = (found[_roles(data).name(phase)] for phase in (ALONE, BESIDE))
    return {
        "sides": msgspec.to_builtins(list(found.values())),
        "ttft_ratio": finite(ratio(beside.ttft.p50, alone.ttft.p50)),
        "itl_ratio": finite(ratio(beside.itl.p50, alone.itl.p50)),
        "claims": msgspec.to_builtins(claims(_of(data, beside.name), slo)),
    }


def body(data: RunData) -> RenderableType:
    titles = ("", "ok", "refused", "failed", "TTFT p50", "TTFT p95", "gap p50", "gap p95", "tokens")
    table = Columns(titles, give_up=("tokens", "gap p50", "refused"))
    for one in _sides(data):
        counts = (str(one.answered), str(one.refused), str(one.failed))
        table.add(
            one.name, *counts, *cells(one.ttft), *cells(one.itl), format_whole(one.prompt_tokens)
        )
    found = facts(data)
    table.add(
        "longer by", "", "", "", times(found["ttft_ratio"]), "", times(found["itl_ratio"]), "", ""
    )
    return table


def side(data: RunData, name: str) -> Side:
    own = _of(data, name)
    answered = [one for one in own if one.expected and one.status not in STATUSES]
    failed = sum(one.failed for one in own)
    return Side(
        name=name,
        answered=len(answered),
        refused=sum(one.expected and one.status in STATUSES for one in own),
        failed=failed,
        ttft=series(
            (wait for one in answered if (wait := value_of(one, "ttft")) is not None), failed
        ),
        itl=series(pooled_gaps(answered)),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in answered),
    )


def _sides(data: RunData) -> list[Side]:
    roles = _roles(data)
    return [side(data, name) for name in (roles.name(ALONE), roles.name(BESIDE), roles.pressing)]


def _roles(data: RunData) -> Roles:
    return ROLES[data.info.scenario]


def _of(data: RunData, name: str) -> list[RequestRecord]:
    return [one for one in data.records if one.name == name and not one.cancelled]


def _pressing_faults(data: RunData) -> list[str]:
    return failure_lines(_of(data, _roles(data).pressing))


def _over_ratio(data: RunData) -> list[str]:
    most, found = data.info.options["max_ratio"], facts(data)["ttft_ratio"]
    if most is None or found is None or found <= most:
        return []
    return [
        f"the first token takes {found:.1f} times as long {_roles(data).beside}, {most:g} are allowed"
    ]


def _remedy(data: RunData, one: Claim) -> str:
    if one.outcome == "refuted":
        return "; the node is too slow even so, raise the objective"
    return longer(one, "--phase-seconds", data.info.options["phase_seconds"])


def _notes(data: RunData) -> Sequence[str]:
    if data.info.scenario == "noisy_tenant" and data.info.options["tenant_keys"] is None:
        return [
            "no --tenant-keys: both sides have one key, and only the priority class tells them apart"
        ]
    return []
