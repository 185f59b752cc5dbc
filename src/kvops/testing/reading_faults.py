"""Faults in what a node says of itself: `/metrics` and the control plane."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from kvops.testing.between import Call, Fault, Reply

PageChange = Callable[[str], str]
Change = Callable[[dict[str, Any]], None]


class ChangedMetrics(Fault):
    def __init__(self, change: PageChange) -> None:
        self._change = change

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.path == "/metrics" and reply.status == 200:
            reply.body = self._change(reply.body.decode()).encode()
        return False


def without_family(name: str) -> PageChange:
    """Neither its help nor its type nor its series."""
    pattern = re.compile(rf"^(# (HELP|TYPE) )?{name}[ {{].*\n", re.MULTILINE)
    return lambda page: pattern.sub("", page)


def gauge_of(name: str) -> PageChange:
    """A counter that says it is a gauge."""
    return lambda page: page.replace(f"# TYPE {name} counter", f"# TYPE {name} gauge")


def stated_twice(page: str) -> str:
    line = next(line for line in page.splitlines() if line.startswith("kvops_engine_up "))
    return f"{page}{line}\n"


def no_rejections(page: str) -> str:
    return re.sub(r"^(kvops_request_rejections_total\{.*\}) .*$", r"\1 0.0", page, flags=re.M)


class Frozen(Fault):
    """What was said of counters first is said for ever, here and on the control plane."""

    def __init__(self) -> None:
        self._page = b""
        self._parts: dict[str, Any] = {}

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.path == "/metrics" and reply.status == 200:
            self._page = self._page or reply.body
            reply.body = self._page
        if call.path == "/control/snapshot" and reply.status == 200:
            body = reply.json
            self._parts = self._parts or {name: body[name] for name in ("traffic", "progress")}
            reply.tell(body | self._parts)
        return False


class ChangedSnapshot(Fault):
    """`change` gets the snapshot's readings, by name, where they are known."""

    def __init__(self, change: Change) -> None:
        self._change = change

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.path == "/control/snapshot" and reply.status == 200:
            body = reply.json
            readings = {
                name: reading["value"]
                for name, reading in body.items()
                if isinstance(reading, dict) and "value" in reading
            }
            self._change(readings)
            reply.tell(body)
        return False


def ledger_off(readings: dict[str, Any]) -> None:
    readings["memory"]["free"] += 1


def lost_block(readings: dict[str, Any]) -> None:
    readings["kv"]["free_blocks"] -= 1


def broken_invariant(readings: dict[str, Any]) -> None:
    readings["progress"]["invariant_violations"] = 1


def held_blocks(readings: dict[str, Any]) -> None:
    readings["kv"]["used_blocks"] += 2
    readings["kv"]["free_blocks"] -= 2


class Claims(Fault):
    """The settings that the node says it has are others than those that it has."""

    def __init__(self, section: str, claimed: dict[str, Any]) -> None:
        self._section, self._claimed = section, claimed

    async def leave(self, call: Call, reply: Reply) -> bool:
        if call.path == "/control/config" and reply.status == 200:
            body = reply.json
            body["config"][self._section] |= self._claimed
            reply.tell(body)
        if call.path == "/control/snapshot" and "max_queue" in self._claimed:
            body = reply.json
            body["queue"]["value"]["max_waiting"] = self._claimed["max_queue"]
            reply.tell(body)
        return False


class OpenDoor(Fault):
    """The control plane takes anybody for its operator."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def enter(self, call: Call) -> Reply | None:
        host = dict(call.headers).get(b"host", b"")
        call.with_header(b"authorization", f"Bearer {self._token}".encode())
        call.with_header(b"origin", None)
        call.with_header(b"host", b"127.0.0.1:" + host.rpartition(b":")[2])
        return None


class NobodyTold(Fault):
    """A drill that is said to have passed, and of which nobody heard."""

    async def enter(self, call: Call) -> Reply | None:
        if call.path != "/control/drill":
            return None
        channel = {"channel": "drill-sink", "delivered": True, "seconds": 0.2, "error": None}
        said = {"nonce": "0" * 16, "passed": True, "fired_after_seconds": 0.1}
        return Reply.of(200, said | {"channels": [channel]})
