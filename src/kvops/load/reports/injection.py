"""One row an injection: what was wanted, what came, and whether the node answered afterwards."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from kvops.load import injection, malformed
from kvops.load.records import RequestRecord
from kvops.load.reports.base import RunData, Verdict, failure_lines, verdict
from kvops.load.reports.cells import Columns, counted

EXPECTATIONS = {
    "oversize_injection": injection.expectations,
    "malformed_input": malformed.expectations,
}


def judge(data: RunData) -> Verdict:
    untried = facts(data)["not_tried"]
    gaps = [f"not tried: {', '.join(untried)} ({_why(data)})"] if untried else []
    notes = (
        []
        if data.info.before is not None
        else ["no snapshot: progress is judged by the canary alone"]
    )
    tried = len(facts(data)["cases"])
    return verdict(
        failure_lines(data.records), gaps, notes,
        [f"{counted(tried, 'case')} answered as wanted, the canary right and the node alive after each"],
    )  # fmt: skip


def facts(data: RunData) -> dict[str, Any]:
    done = {record.name: record for record in data.records if not record.cancelled}
    wanted = _wanted(data)
    cases = [
        {
            "case": name,
            "expects": expects,
            "status": done[name].status,
            "right": done[name].expected,
        }
        for name, expects in wanted.items()
        if name in done
    ]
    return {"cases": cases, "not_tried": [name for name in wanted if name not in done]}


def body(data: RunData) -> RenderableType:
    done = {record.name: record for record in data.records if not record.cancelled}
    titles = ("injection", "wanted", "answer", "canary", "alive")
    table = Columns(titles, give_up=("wanted",), prose=titles[1:])
    for name, wanted in _wanted(data).items():
        after = [_mark(done.get(f"{probe} after {name}")) for probe in ("canary", "livez")]
        table.add(name, wanted, _answer(done.get(name)), *after)
    return table


def _answer(record: RequestRecord | None) -> Text:
    if record is None:
        return Text("not tried", style="yellow")
    got = f"HTTP {record.status}" if record.status is not None else "no answer"
    if record.expected:
        return Text(f"✔ {got}", style="green")
    return Text(f"✘ {record.error}", style="red")


def _mark(record: RequestRecord | None) -> Text:
    if record is None:
        return Text("·", style="dim")
    return Text("✔", style="green") if record.expected else Text(f"✘ {record.error}", style="red")


def _why(data: RunData) -> str:
    longest: int | None = data.info.options.get("max_prompt_tokens")
    if data.info.max_model_len is None:
        return "the node's model list does not say max_model_len"
    if longest is not None and longest < data.info.max_model_len - 1 and _ended(data):
        return f"--max-prompt-tokens {longest} leaves them out"
    return "the run ended first"


def _ended(data: RunData) -> bool:
    last = list(_wanted(data))[-1]
    return any(record.name == f"livez after {last}" for record in data.records)


def _wanted(data: RunData) -> dict[str, str]:
    return EXPECTATIONS[data.info.scenario]()
