"""Do wrong requests get the right status and an error object that a client can act on?"""

from __future__ import annotations

from typing import Any

import msgspec

from kvops.verify.check import Check, Outcome, Parameters, require
from kvops.verify.context import Context
from kvops.verify.judge import Fault, advice, answered, error_faults, says


class Probe(msgspec.Struct, frozen=True):
    name: str
    path: str
    body: Any
    """None for a GET, bytes as they are, else JSON."""
    statuses: tuple[int, ...]
    code: str
    """What a kvops node says; other engines have codes of their own."""


def probes(context: Context) -> list[Probe]:
    """422 is what engines say that leave validation to their web framework."""
    completions, good = "/v1/completions", context.completion("Hello", 1)
    bad = (400, 422)
    found = [
        Probe("malformed JSON", completions, b'{"model": "x", "prompt": ', bad, "invalid_request"),
        Probe("not an object", completions, [1, 2], bad, "invalid_request"),
        Probe("wrong type", completions, good | {"max_tokens": "ten"}, bad, "invalid_request"),
        Probe("no messages", "/v1/chat/completions", {"model": context.model}, bad, "invalid_request"),
        Probe("unknown model", completions, good | {"model": "no-such-model"}, (404,), "model_not_found"),
        Probe("unknown path", "/v1/no-such-path", None, (404,), "not_found"),
    ]  # fmt: skip
    if context.is_kvops:
        field = good | {"no_such_field": 1}
        found.append(Probe("unknown field", completions, field, (400,), "invalid_request"))
    return found


async def errors(context: Context, parameters: Parameters) -> Outcome:
    wrong: dict[str, list[Fault]] = {}
    asked = probes(context)
    for probe in asked:
        if probe.body is None:
            reply = await context.api.get(probe.path)
        else:
            reply = await context.api.post(probe.path, probe.body)
        # Outside its OpenAI routes an engine may answer 404 in whatever form.
        shape_matters = context.is_kvops or probe.path != "/v1/no-such-path"
        code = probe.code if context.is_kvops else None
        faults = error_faults(reply, probe.statuses, code)
        if not shape_matters and reply.status in probe.statuses:
            faults = []
        if faults:
            wrong[probe.name] = faults
    require(
        not wrong,
        observed="; ".join(f"{name}: {', '.join(says(faults))}" for name, faults in wrong.items()),
        expected="4xx with error.message, type, code",
        remedy=advice(fault for faults in wrong.values() for fault in faults),
        faults={name: says(faults) for name, faults in wrong.items()},
    )
    answered(
        await context.api.post("/v1/completions", context.completion("Hello", 1)),
        "a good request after the wrong ones",
    )
    return Outcome(
        verdict="pass",
        observed=f"{len(asked)} refused rightly; a good one answered after",
        expected="4xx with error.message, type, code",
        n=len(asked) + 1,
        evidence={"probes": [probe.name for probe in asked]},
    )


ERRORS = Check(
    id="resp.errors",
    title="Wrong requests",
    purpose="Malformed JSON, wrong fields, unknown models and paths get a clear error, never a 500 or silence.",
    parameters=Parameters,
    run=errors,
    area="V10",
)
