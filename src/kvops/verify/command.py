"""From a target and a profile to a result on disk, on the terminal and as an exit code.

Apart from `kvops.cli.verify` so that `kvops --help` does not load any of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator

from rich.console import Console

from kvops.errors import KvopsError
from kvops.telemetry.clients.kvops import KvopsClient
from kvops.verify import baseline, outputs, pictures, resume, runner, runs
from kvops.verify.check import Samples
from kvops.verify.display import display
from kvops.verify.estimates import Estimates, last_times
from kvops.verify.facts import Facts
from kvops.verify.order import Order
from kvops.verify.result import Report
from kvops.verify.table import show

LOST_REPORT = 2
"""Exit code of a run that passed and whose report could not be written where it was asked for."""


def gate(order: Order, console: Console) -> int:
    """Run the checks, keep and show the result; the exit code. Raises UsageError and what `runner.run` raises."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    run_id = order.earlier.run_id if order.earlier else runner.new_id()
    comparison = _Comparison(order)
    with _held(run_id):
        report = comparison.judged(asyncio.run(_run(order, run_id, comparison)))
        report = pictures.drawn(report)
        saved = outputs.keep(report)
    lost = outputs.deliver(report, order.asked.wanted)
    show(report, console)
    console.print(f"result: {saved}", style="dim", soft_wrap=True, highlight=False, markup=False)
    if resume.goes_on(report):
        again = resume.command(run_id, order.asked.again())
        console.print(f"go on with: {again}", soft_wrap=True, highlight=False, markup=False)
    for error in lost:
        _tell(error)
    return report.exit_code or (LOST_REPORT if lost else 0)


def _tell(error: KvopsError) -> None:
    sys.stderr.write(f"error [{error.code}]: {error.message}\n  next: {error.hint}\n")


@contextlib.contextmanager
def _held(run_id: str) -> Iterator[None]:
    """A disk that filled up meanwhile takes the lock, not the run."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(runs.held(run_id))
        yield


class _Comparison:
    """With the earlier run that `--baseline` names, once it is known."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._before = order.before

    def agrees(self, facts: Facts) -> None:
        """Raises UsageError when the node is not what the baseline was measured on."""
        order = self._order
        if order.asked.baseline is None:
            return
        if self._before is None:
            checks = [planned.check.id for planned in order.plan.checks]
            self._before = baseline.last_good(order.target, facts, order.plan.profile.name, checks)
        if self._before is not None:
            baseline.require_alike(self._before, facts, force=order.asked.force_baseline)

    def still_open(self, name: str, samples: Samples) -> bool:
        return baseline.still_open(self._before, self._order.plan.profile.baseline, name, samples)

    def judged(self, report: Report) -> Report:
        asked = self._order.asked
        if asked.baseline is None or report.verdict in ("unreachable", "interrupted"):
            return report
        rules = self._order.plan.profile.baseline
        return baseline.compared(report, self._before, rules, required=asked.require_baseline)


async def _run(order: Order, run_id: str, comparison: _Comparison) -> Report:
    """SIGTERM ends the run as Ctrl-C does: with what has been seen so far."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    target, plan = order.target, order.plan
    node = KvopsClient(target) if target.control_url else None
    done = {check.id for check in order.earlier.checks} if order.earlier else set()
    rest = [check for check in plan.checks if check.check.id not in done]
    estimates = Estimates(rest, last_times(target.name, target.url))
    console = Console(stderr=True)
    try:
        with display(console, plan.checks, estimates, len(done)) as shown:
            return await runner.run(
                target,
                node,
                plan.profile.name,
                plan.checks,
                shown.begun,
                shown.ended,
                plan.left_out,
                _terms(order, run_id, comparison),
            )
    finally:
        if node is not None:
            await node.aclose()


def _terms(order: Order, run_id: str, comparison: _Comparison) -> runner.Terms:
    same_node = resume.agreement(order.earlier)

    def agrees(facts: Facts) -> None:
        same_node(facts)
        comparison.agrees(facts)

    return runner.Terms(
        run_id=run_id,
        profile_source=order.plan.source,
        profile_hash=order.plan.fingerprint,
        waivers=order.waivers,
        allow_remote=tuple(order.asked.allow_remote),
        folder=runs.folder(run_id),
        keep=_keep,
        earlier=order.earlier,
        agrees=agrees,
        still_open=comparison.still_open,
        compares=order.asked.compares(),
    )


def _keep(report: Report) -> None:
    """A disk that is full takes what would be resumed, not the run: its end is still told."""
    with contextlib.suppress(OSError):
        runs.save(report)
