"""A broken proxy before a sound node: what the gate finds of it, and that a sound one changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvops.testing import DEFECTS, Defect, serve
from kvops.testing.proxy import proxy
from tests.verify.gate import gate, one_by_one, smoke, the_check

OUTSIDE = [one for one in DEFECTS if one.outside and not one.keys]
FEW = ("silent_truncation", "endless_stream", "no_retry_after")


def _row(defect: Defect) -> object:
    marks = [] if defect.name in FEW else [pytest.mark.long]
    return pytest.param(defect, id=defect.name, marks=marks)


def test_a_sound_proxy_passes_as_the_node_does() -> None:
    with serve() as node, proxy(node.url) as url:
        report = gate(replace(node, url=url), smoke())
    assert {r.id: (r.verdict, r.observed) for r in report.checks if r.verdict != "pass"} == {}


@pytest.mark.parametrize("defect", [_row(defect) for defect in OUTSIDE])
def test_a_defect_made_from_outside_fails_its_check(defect: Defect) -> None:
    with serve() as node, proxy(node.url, defect.name) as url:
        report = gate(replace(node, url=url), one_by_one(defect.check))
    assert the_check(report, defect.check).verdict == "fail", report.checks


def test_a_gateway_that_leads_nowhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve() as node, proxy("http://127.0.0.1:9") as nowhere, proxy(node.url) as good:
        monkeypatch.setenv("KVOPS_GATEWAY_URL", nowhere)
        lost = gate(node, one_by_one("reach.gateway"))
        monkeypatch.setenv("KVOPS_GATEWAY_URL", good)
        found = gate(node, one_by_one("reach.gateway"))
    assert [report.checks[0].verdict for report in (lost, found)] == ["fail", "pass"]
