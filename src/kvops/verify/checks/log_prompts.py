"""Does what clients send stay out of logs, metrics and everything else that operators and others can read?"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec
from pydantic import Field

from kvops.verify.api import Api
from kvops.verify.check import Check, Outcome, Parameters, require
from kvops.verify.context import Context
from kvops.verify.control import control_plane
from kvops.verify.crowd import gathered, until
from kvops.verify.logfiles import MOST_BYTES, audit_files, log_files, no_log

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CONTROL_READS = (
    "/control/snapshot", "/control/requests", "/control/config", "/control/alerts", "/control/quarantine",
)  # fmt: skip


class PromptParameters(Parameters):
    log_file: str | None = None
    """The node's log; default: KVOPS_NODE_LOG, else what a kvops node of this machine writes."""
    settle_within: float = Field(default=5.0, gt=0)
    """Seconds until the log must have a line of the requests, where its lines name them."""


class Canaries(msgspec.Struct, frozen=True):
    """Words that nobody else sends: found anywhere, they were written down."""

    prompt: str
    message: str
    key: str
    model: str
    field: str
    path: str

    @classmethod
    def fresh(cls) -> Canaries:
        return cls(*(f"canary-{name}-{secrets.token_hex(6)}" for name in cls.__struct_fields__))

    def found_in(self, data: bytes) -> list[str]:
        """What of them is in `data`, by name."""
        words = msgspec.structs.asdict(self)
        return [name for name, word in words.items() if word.encode() in data]


async def no_prompts(context: Context, parameters: PromptParameters) -> Outcome:
    logs = log_files(context, parameters.log_file)
    files = logs + audit_files(context)
    canaries = Canaries.fresh()
    page = await _read_while_it_runs(context, canaries)
    request_id = await _send(context, canaries)
    seen = await _logged(files, request_id, parameters.settle_within)
    places = page | await _read_after(context) | {f.name: _tail(f) for f in files}
    found = {place: names for place, data in places.items() if (names := canaries.found_in(data))}
    require(
        not found,
        observed="; ".join(f"{place}: {', '.join(names)}" for place, names in found.items()),
        expected="nothing of what a client sent",
        remedy="what users write can be read by whoever reads these: lower the engine's log level or redact",
        n=len(places),
        found=found,
    )
    if not logs:
        no_log(f"nothing in {', '.join(places) or 'any page'}, but ")
    lines = "with a line of the request" if seen else "its lines name no request"
    return Outcome(
        verdict="pass",
        observed=f"{len(places)} places read ({len(files)} files, {lines}): none holds a canary",
        expected="nothing of what a client sent",
        n=len(places),
        evidence={"places": sorted(places), "request_logged": seen},
    )


async def _read_while_it_runs(context: Context, canaries: Canaries) -> dict[str, bytes]:
    """What can be read while a request with a canary is in flight."""
    extra = {"ignore_eos": True} if context.facts.engine in ("kvops", "vllm") else {}
    body = context.completion(f"{canaries.prompt} is", 64, **extra)
    async with gathered(context.api) as crowd:
        (guest,) = crowd.invite(1, body)
        await until(lambda: guest.state != "sent", 30.0)
        pages = await _read_after(context)
    return {f"{place} meanwhile": data for place, data in pages.items()}


async def _send(context: Context, canaries: Canaries) -> str | None:
    """Each canary in its place; the id of one of the requests, if the node gives any."""
    good = context.completion(f"{canaries.prompt} and", 2)
    reply = await context.api.post(COMPLETIONS, good)
    await context.api.post(CHAT, context.chat([{"role": "user", "content": canaries.message}], 2))
    await context.api.post(COMPLETIONS, good | {"model": canaries.model})
    await context.api.post(COMPLETIONS, good | {canaries.field: 1})
    await context.api.post(COMPLETIONS, f'{{"model": "{canaries.model}", '.encode())
    stranger = {"Authorization": f"Bearer {canaries.key}"}
    await context.api.post(COMPLETIONS, good, headers=stranger, keyed=False)
    await context.api.get(f"/v1/{canaries.path}?key={canaries.path}")
    return reply.headers.get("x-request-id")


async def _logged(files: list[Path], request_id: str | None, within: float) -> bool:
    """Whether a log names the request: then what comes with it has been written, too."""
    if request_id is None or not files:
        return False
    wanted = request_id.encode()
    return await until(lambda: any(wanted in _tail(file) for file in files), within)


async def _read_after(context: Context) -> dict[str, bytes]:
    """Pages of both planes, by path; those that are not there are left out."""
    pages = await _pages(context.api, ("/metrics",))
    if context.target.control_url is not None:
        async with control_plane(context) as control:
            pages |= await _pages(control, CONTROL_READS)
    return pages


async def _pages(api: Api, paths: tuple[str, ...]) -> dict[str, bytes]:
    replies = {path: await api.get(path) for path in paths}
    return {p: r.text.encode("utf-8", "replace") for p, r in replies.items() if r.status == 200}


def _tail(file: Path) -> bytes:
    """The last 64 MiB; nothing of a file that was rotated away meanwhile."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - MOST_BYTES))
            return opened.read()
    except OSError:
        return b""


NO_PROMPTS = Check(
    id="logs.no_prompts",
    title="Prompts stay out of logs",
    purpose="Marked words sent as prompt, message, key, model, field and path are in no log, metric or snapshot.",
    parameters=PromptParameters,
    run=no_prompts,
    area="V3",
    closing=True,
)
