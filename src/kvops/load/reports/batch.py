"""How fast a finite list was worked off: tokens a second over the whole of it, and whether all of it was."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kvops.load.refusals import STATUSES
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.doubts import blamed, client_gaps
from kvops.load.reports.slo import cache_notes
from kvops.load.statistics import unsent, window_seconds
from kvops.units import format_duration, format_whole


def judge(data: RunData) -> Verdict:
    found, options = facts(data), data.info.options
    failures, gaps = [], []
    if found["lost"]:
        failures += [
            f"{found['lost']} of {found['asked']} were not answered",
            *failure_lines(data.records),
        ]
    if found["missing"]:
        gaps.append(f"{found['missing']} of {options['requests']} were not asked to the end")
    if found["without_usage"]:
        gaps.append(
            f"{found['without_usage']} answers came without usage: their tokens are not known"
        )
    least, rate = options["min_tokens_per_second"], found["output_tokens_per_second"]
    if least is not None and rate is None:
        gaps.append(
            "no time passed between the first request and the last answer: there is no rate"
        )
    if least is not None and rate is not None and rate < least and not gaps:
        blame, excused = blamed(
            data, [f"{rate:.1f} output tokens/s are under the wanted {least:g}"]
        )
        failures, gaps = [*failures, *blame], [*gaps, *excused]
    if least is not None:  # without, the verdict rests on no time
        gaps += client_gaps(data)
    shown = [f"{found['answered']} of {options['requests']} answered"]
    if least is not None and rate is not None:
        shown.append(f"{rate:.1f} output tokens/s, {least:g} are wanted")
    return verdict(failures, gaps, cache_notes(data.records), shown)


def facts(data: RunData) -> dict[str, Any]:
    """`lost`: asked and not answered, refusals that were asked again left out."""
    own = [one for one in data.records if one.name == "request"]
    answered = [one for one in own if one.expected and one.status not in STATUSES]
    lost = [one for one in own if one.failed and not unsent(one)]
    window = window_seconds([*answered, *lost])
    output = sum(one.completion_tokens or 0 for one in answered)
    prompts = sum(one.prompt_tokens or 0 for one in answered)
    wanted = data.info.options["requests"]
    return {
        "asked": len(answered) + len(lost),
        "answered": len(answered),
        "lost": len(lost),
        "missing": max(0, wanted - len(answered) - len(lost)),
        "put_off": sum(one.expected and one.status in STATUSES for one in own),
        "without_usage": sum(one.completion_tokens is None for one in answered),
        "seconds": window,
        "output_tokens": output,
        "prompt_tokens": prompts,
        "output_tokens_per_second": output / window if window else None,
        "total_tokens_per_second": (output + prompts) / window if window else None,
    }


def body(data: RunData) -> RenderableType:
    found = facts(data)
    if found["seconds"] is None:
        return Text("nothing was answered")
    text = Text(
        f"{found['answered']} of {data.info.options['requests']} answered in {format_duration(found['seconds'])}"
    )
    if found["output_tokens_per_second"] is not None:
        text.append(
            f": {found['output_tokens_per_second']:.1f} output tokens/s, "
            f"{found['total_tokens_per_second']:.1f} with the {format_whole(found['prompt_tokens'])} of the prompts"
        )
    if found["put_off"]:
        text.append(f"\n{found['put_off']} refusals with Retry-After were waited out")
    return text
