"""How a check ends: in its own outcome, or in the one that its exception stands for, always within its time."""

from __future__ import annotations

import asyncio

import httpx

from kvops.errors import KvopsError, NodeError, NodeUnauthorized, NodeUnreachable
from kvops.units import format_duration
from kvops.verify import needs
from kvops.verify.check import Finding, Outcome
from kvops.verify.context import Context
from kvops.verify.prompts import CannotFit
from kvops.verify.selection import PlannedCheck


async def outcome_of(planned: PlannedCheck, context: Context) -> Outcome:
    """Every exception has a verdict: what the node did is a fail, what the check did an error."""
    limit = planned.entry.timeout
    try:
        await needs.met(planned.check, context)
        async with asyncio.timeout(limit):
            return await planned.check.run(context, planned.parameters)
    except Finding as finding:
        return finding.outcome
    except CannotFit as unfit:
        return _open(unfit.reason, unfit.remedy)
    except TimeoutError:
        return await _silent(context, f"not finished within {format_duration(limit)}")
    except httpx.TimeoutException as error:
        return await _silent(context, f"no answer to {_where(error)} in time")
    except httpx.TransportError as error:
        return _lost(f"connection lost at {_where(error)}: {_words(error)}", "the node went away")
    except NodeUnreachable as error:
        return _lost(error.message, "the control plane does not answer")
    except NodeUnauthorized as error:
        return _open(error.message, error.hint)
    except NodeError as error:
        return _lost(error.message, error.hint or "the node broke the protocol")
    except Exception as error:
        return _broken(f"{type(error).__name__}: {_words(error)}")


async def _silent(context: Context, what: str) -> Outcome:
    """Slow and hung look alike from here; `/livez`, which is about progress, tells them apart."""
    try:
        status = (await context.api.get("/livez", within=5)).status
    except httpx.TransportError:
        status = None
    if status in (200, 404):
        return _open(
            what, "the node moves but slowly: free its machine, or raise the timeout in the profile"
        )
    return _lost(f"{what}; /livez {status or 'does not answer'}", "the node hangs")


def _lost(what: str, why: str) -> Outcome:
    remedy = f"{why}: see kvops node logs, and kvops node status"
    return Outcome(verdict="fail", observed=what, expected="an answer", remedy=remedy)


def _open(what: str, remedy: str) -> Outcome:
    return Outcome(verdict="inconclusive", observed=what, expected="a result", remedy=remedy)


def _broken(what: str) -> Outcome:
    remedy = "the check itself broke: report it with the result file"
    return Outcome(verdict="error", observed=what, expected="a result", remedy=remedy)


def _where(error: httpx.RequestError) -> str:
    try:
        return f"{error.request.method} {error.request.url.path}"
    except RuntimeError:
        return "the node"


def _words(error: Exception) -> str:
    text = error.message if isinstance(error, KvopsError) else str(error)
    return " ".join(text.split())[:200] or type(error).__name__
