"""What is looked at before a node starts: one list, for the start itself and for `kvops node check`. Imports no torch.

A check passes, warns, fails, or says why there is nothing to look at. Only a failure keeps a node from starting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from kvops.config.schema import NodeConfig
from kvops.errors import KvopsError, NodeStartError
from kvops.node.alerting import checked
from kvops.node.check_files import (
    check_access,
    check_control,
    check_disk,
    check_folders,
    check_port,
    runs,
)
from kvops.node.check_gpu import check_gpu, check_gpu_memory
from kvops.node.check_machine import (
    check_clock,
    check_descriptors,
    check_memory_policy,
    check_python,
    check_torch,
)
from kvops.node.finding import Finding, Looked, failed
from kvops.node.preflight import check_memory, check_model, check_version

if TYPE_CHECKING:
    from kvops.models.store import StoredModel

Check = Callable[[NodeConfig], Looked]
Report = Callable[[str, str], None]

log = structlog.get_logger("kvops.check")


def _model(config: NodeConfig) -> Looked:
    from kvops.models.store import resolve

    model = resolve(config.model.name)
    check_version(config, model.revision)
    check_model(config, model.path)
    return Looked("pass", f"{model.name} at {model.path}")


def _memory(config: NodeConfig) -> Looked:
    from kvops.models.store import resolve

    if runs(config):
        return Looked("skip", f"the node {config.name} runs, and has its memory")
    model = resolve(config.model.name).path
    return check_gpu_memory(config, model) or check_memory(config, model)


def _alerts(config: NodeConfig) -> Looked:
    rules, channels = checked(config.alerts)
    if not config.alerts.enabled:
        return Looked("skip", "alerts.enabled = false")
    return Looked("pass", f"{len(rules)} rules, {len(channels)} receivers")


def _batch(config: NodeConfig) -> Looked:
    runtime = config.runtime
    running = f"{runtime.max_running} requests run at once"
    if runtime.max_running == runtime.max_batch_size:
        return Looked("pass", running)
    return Looked(
        "warn",
        f"{running}, not runtime.max_batch_size = {runtime.max_batch_size}: a step of runtime.max_batched_tokens = "
        f"{runtime.max_batched_tokens} has room for no more",
        f"raise max_batched_tokens to {2 * runtime.max_batch_size}, or lower max_batch_size to {runtime.max_running}",
    )


CHECKS: dict[str, Check] = {
    "python": check_python,
    "torch": check_torch,
    "gpu": check_gpu,
    "model": _model,
    "memory": _memory,
    "batch": _batch,
    "disk": check_disk,
    "folders": check_folders,
    "keys and certificate": check_access,
    "alerts": _alerts,
    "port": lambda config: check_port(config, "port"),
    "control port": lambda config: check_port(config, "control_port"),
    "control plane": check_control,
    "clock": check_clock,
    "descriptors": check_descriptors,
    "memory policy": check_memory_policy,
}


def run_checks(config: NodeConfig) -> list[Finding]:
    return [_run(name, check, config) for name, check in CHECKS.items()]


def check_start(config: NodeConfig, report: Report) -> StoredModel:
    """The model to serve. Warnings are reported. Raises what the first check that fails has to say."""
    from kvops.models.store import resolve

    found = run_checks(config)
    for one in found:
        if one.error is not None:
            raise one.error
    passed = {one.check: one.detail for one in found if one.status == "pass"}
    line = [passed[name] for name in ("python", "torch", "memory", "disk") if name in passed]
    report("checks", ", ".join(line))
    for one in found:
        if one.status == "warn":
            log.warning("check", check=one.check, detail=one.detail, remedy=one.remedy)
            report("warning", f"{one.check}: {one.detail}; {one.remedy}")
    return resolve(config.model.name)


def _run(name: str, check: Check, config: NodeConfig) -> Finding:
    try:
        looked = check(config)
    except KvopsError as error:
        return failed(name, error)
    except OSError as error:
        what = f"{error.filename or name}: {error.strerror}"
        return failed(name, NodeStartError(what, hint="see that it is there and may be used"))
    return Finding(name, looked.status, looked.detail, looked.remedy)
