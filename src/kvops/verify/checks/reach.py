"""Is the node there, and does it make progress? A health route that answers proves neither."""

from __future__ import annotations

import httpx
from pydantic import Field

from kvops.units import format_duration
from kvops.verify.api import Reply, token_count
from kvops.verify.check import Check, Outcome, Parameters, fail, require, warn
from kvops.verify.context import Context
from kvops.verify.facts import first_model
from kvops.verify.judge import answered, status_and_code


class HealthParameters(Parameters):
    answer_within: float = Field(default=30.0, gt=0)
    """Seconds for one token of a short prompt."""


async def health(context: Context, parameters: HealthParameters) -> Outcome:
    routes = await _health_routes(context)
    for path, reply in routes.items():
        require(
            reply.status == 200,
            observed=f"{path} says {status_and_code(reply)}",
            expected="200",
            remedy="kvops node status says why; a loading or draining node is not ready",
        )
    listing = answered(await context.api.get("/v1/models"), "/v1/models")
    model = first_model(listing)
    require(
        isinstance(model.get("id"), str),
        observed="/v1/models lists no model",
        expected="a model with an id",
        remedy="start the node with a model: kvops node start --model smollm2-135m",
    )
    canary = await _canary(context, parameters.answer_within)
    limit = token_count(model.get("max_model_len"))
    evidence = {"routes": {p: r.status for p, r in routes.items()}, "canary_seconds": canary}
    if not limit:
        warn(
            observed="/v1/models names no max_model_len that a node can have",
            expected="the longest prompt + output in tokens",
            remedy="the checks near the limit are skipped on this node",
            **evidence,
        )
    return Outcome(
        verdict="pass",
        observed=f"{', '.join(routes) or 'no health route'} 200; a token in {format_duration(canary)}",
        expected=f"200; a token within {parameters.answer_within:g} s",
        n=len(routes) + 2,
        evidence=evidence | {"max_model_len": limit},
    )


async def _health_routes(context: Context) -> dict[str, Reply]:
    """`/livez` and `/readyz`, or `/health` where the node has neither; a node without any has none."""
    for paths in (("/livez", "/readyz"), ("/health",)):
        replies = {path: await context.api.get(path) for path in paths}
        found = {path: reply for path, reply in replies.items() if reply.status != 404}
        if found:
            return found
    return {}


async def _canary(context: Context, within: float) -> float:
    body = context.completion("Hello", 1)
    try:
        reply = await context.api.post("/v1/completions", body, within=within)
    except httpx.TimeoutException:
        fail(
            observed=f"health routes answer, but no answer to one token in {format_duration(within)}",
            expected="a token: health is forward progress",
            remedy="the engine hangs or is swamped: kvops node status, then kvops node logs",
        )
    return round(answered(reply, "a one-token completion").seconds, 4)


HEALTH = Check(
    id="reach.health",
    title="Healthy and moving",
    purpose="Health routes, the model list and one real token: a node that only answers its probe is dead.",
    parameters=HealthParameters,
    run=health,
    area="V1",
)
