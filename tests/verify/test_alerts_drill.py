"""An alert that the gate itself has received is a pass; one that a node says it has delivered is a remark."""

from __future__ import annotations

from kvops.testing import serve
from kvops.verify.profile import Entry, Profile
from kvops.verify.result import CheckResult
from tests.verify.gate import FaultyNode, gate, the_check


def drilled(node: FaultyNode, *, own_sink: bool) -> CheckResult:
    entry = Entry(id="alerts.drill", timeout=60, parameters={"own_sink": own_sink})
    report = gate(node, Profile(schema_version=1, name="drill", checks=[entry]))
    assert report.exit_code == 0
    return the_check(report, "alerts.drill")


def test_without_a_receiver_of_the_gates_own_a_delivery_is_the_nodes_word() -> None:
    with serve() as node:
        near, far = drilled(node, own_sink=True), drilled(node, own_sink=False)
    assert (near.verdict, far.verdict) == ("pass", "warn")
    assert "at the gate's sink" in str(near.observed)
    assert "by the node's own word alone" in str(far.observed)
    assert "on the node's machine" in far.remedy
    assert far.evidence["arrived_after_seconds"] is None
