"""Alerts of a real node: told, ended, drilled, kept over a restart, changed live; and the URLs stay secret."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from kvops.alerts.export import export
from kvops.alerts.readings import COUNTERS, GAUGES
from kvops.alerts.rulebook import rulebook
from kvops.errors import RequestError
from kvops.node.meter import OUTCOMES, REFUSALS
from kvops.telemetry.prometheus import parse
from kvops.telemetry.snapshot import CLIENT_FAULTS, Known
from tests.alerts.receivers import SECRET, Receiver, receiver
from tests.harness import RunningNode, start_node
from tests.node.conftest import eventually

# A rule that fires at once on a node that is up, and ends by another bound.
WORDS = {"summary": "s", "remedy": "r"}
ALWAYS = {
    "name": "AlwaysOn",
    "kind": "threshold",
    "reading": "disk_free_bytes",
    "above": 0,
    **WORDS,
}
NEVER = ALWAYS | {"above": None, "below": 1}
"""The same rule, which does not hold."""


def settings_of(model: Path, rule: dict[str, Any]) -> dict[str, object]:
    return {
        "model": {"name": str(model)},
        "kv_cache": {"blocks": 128},
        "runtime": {"threads": 1},
        "alerts": {
            "interval": "500ms",
            "rules": [{key: value for key, value in rule.items() if value is not None}],
            "channels": {"oncall": {"url_file": "oncall.url"}},
        },
    }


@pytest.fixture(scope="module")
def box() -> Iterator[Receiver]:
    with receiver() as box:
        yield box


@pytest.fixture(scope="module")
def watched(
    tiny_model: Path, box: Receiver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    home = tmp_path_factory.mktemp("watched")
    url = home / "oncall.url"
    url.touch(0o600)
    url.write_text(box.url + "\n")
    node = start_node(home, settings_of(tiny_model, ALWAYS), name="watched")
    yield node
    node.stop()


def alert_row(node: RunningNode, rule: str) -> dict[str, Any]:
    rows = node.control("GET", "/control/alerts").json()["rules"]
    return next(row for row in rows if row["rule"] == rule)


def told(box: Receiver, rule: str = "AlwaysOn") -> list[str]:
    return [status for status, _ in box.alerts(rule)]


def wait(condition: Callable[[], Any], what: str) -> None:
    eventually(condition, what, 60)


def test_an_alert_is_told_once(watched: RunningNode, box: Receiver) -> None:
    wait(lambda: told(box), "the receiver was told")
    row = alert_row(watched, "AlwaysOn")
    assert (row["state"], row["severity"]) == ("firing", "warning")
    assert row["since"] > 0
    assert row["value"] > 0
    before = alert_row(watched, "AlertDrill"), evaluated_at(watched)
    wait(lambda: evaluated_at(watched) > before[1] + 1, "two more looks")
    assert told(box) == ["firing"]


def evaluated_at(node: RunningNode) -> float:
    at: float = node.control("GET", "/control/alerts").json()["evaluated_at"]
    return at


def test_snapshot_and_metrics_show_it(watched: RunningNode, box: Receiver) -> None:
    wait(lambda: told(box), "the receiver was told")
    alerts = watched.snapshot().alerts
    assert isinstance(alerts, Known)
    assert [alert.rule for alert in alerts.value.active] == ["AlwaysOn"]
    page = parse(httpx.get(f"{watched.url}/metrics").text)
    assert page.value("kvops_alert_active", rule="AlwaysOn") == 1
    assert page.value("kvops_alert_active", rule="KvUsageHigh") == 0
    assert page.total("kvops_alert_deliveries_total", channel="oncall", outcome="delivered") == 1
    assert page.value("kvops_alert_deliveries_total", channel="oncall", outcome="failed") == 0


def test_a_drill_reaches_the_receiver(watched: RunningNode, box: Receiver) -> None:
    outcome = watched.control("POST", "/control/drill", json={}).json()
    assert outcome["passed"], outcome
    (row,) = outcome["channels"]
    assert (row["channel"], row["delivered"]) == ("oncall", True)
    nonces = [body["alerts"][0]["labels"].get("nonce") for body in box.bodies]
    assert outcome["nonce"] in nonces
    wait(lambda: "resolved" in told(box, "AlertDrill"), "the end of the drill was told")


def test_a_drill_that_does_not_arrive_fails_with_the_reason(
    watched: RunningNode, box: Receiver
) -> None:
    wait(lambda: alert_row(watched, "AlertDrill")["state"] != "firing", "no drill is on")
    box.status = 403
    try:
        outcome = watched.control("POST", "/control/drill", json={"timeout": 3}).json()
        assert outcome["passed"] is False
        assert outcome["channels"][0]["error"] == "the receiver answered 403"
        page = parse(httpx.get(f"{watched.url}/metrics").text)
        assert page.value("kvops_alert_deliveries_total", channel="oncall", outcome="retried") >= 1  # type: ignore[operator]
        shown = watched.kvops("alerts", "test", "--timeout", "2")
        assert shown.returncode == 1
        assert "oncall: the receiver answered 403" in shown.stderr
    finally:
        box.status = 200
    wait(
        lambda: watched.control("GET", "/control/alerts").json()["oldest_undelivered_seconds"] == 0,
        "what waited was delivered",
    )


def test_a_silenced_drill_proves_nothing(watched: RunningNode) -> None:
    silence = {"rule": "AlertDrill", "seconds": 60, "reason": "r", "by": "me"}
    assert watched.control("POST", "/control/alerts/silence", json=silence).status_code == 200
    try:
        answer = watched.control("POST", "/control/drill", json={})
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "drill_refused"
        assert "silenced" in answer.json()["error"]["message"]
    finally:
        watched.control("POST", "/control/alerts/silence", json=silence | {"seconds": 0})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/control/drill", {"timeout": 0.5}),
        ("/control/drill", {"timeout": 121}),
        ("/control/drill", {"sink": "http://192.0.2.1:80/x"}),
        ("/control/drill", {"sink": "https://127.0.0.1:80/x"}),
        ("/control/drill", {"sink": f"{SECRET}"}),
        ("/control/drill", {"sink": "x" * 513}),
        ("/control/alerts/silence", {"rule": "Nope", "seconds": 1, "reason": "r", "by": "me"}),
        ("/control/alerts/silence", {"rule": "QueueLong", "seconds": 2592001, "reason": "r", "by": "me"}),
        ("/control/alerts/silence", {"rule": "QueueLong", "seconds": -1, "reason": "r", "by": "me"}),
        ("/control/alerts/silence", {"rule": "QueueLong", "seconds": 1, "reason": "", "by": "me"}),
        ("/control/alerts/ack", {"rule": "QueueLong", "by": "me"}),
        ("/control/alerts/ack", {"rule": "Nope", "by": "me"}),
    ],
)  # fmt: skip
def test_what_is_out_of_bounds_is_refused(
    watched: RunningNode, path: str, body: dict[str, Any]
) -> None:
    answer = watched.control("POST", path, json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"]


def test_exported_rules_find_on_a_node_what_its_snapshot_says(watched: RunningNode) -> None:
    """Each series that a rule asks for is there, with the snapshot's value where that stands still."""
    watched.control("POST", "/control/drill", json={})
    text = httpx.get(f"{watched.url}/metrics").text
    series = parse(text).series
    document = yaml.safe_load(export(rulebook()))
    asked = re.findall(
        r"(kvops_\w+)(\{[^}]*\})?", " ".join(r["expr"] for r in document["groups"][0]["rules"])
    )
    unseen = (
        "kvops_recent_time_to_first_token_p95_seconds"  # too few requests: absent, as it should be
    )
    for name, labels in {pair for pair in asked if pair[0] != unseen}:
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        found = [
            value
            for (n, pairs), value in series.items()
            if n == name and wanted.items() <= set(pairs)
        ]
        assert found, f"{name}{labels} is not at /metrics"
    snapshot = watched.snapshot()
    for gauge, metric in (
        ("kv_usage_ratio", "kvops_kv_usage_ratio"),
        ("stalled", None),
        ("queue_used_ratio", None),
    ):
        reading = GAUGES[gauge].read(snapshot)
        assert isinstance(reading, Known)
        assert reading.value == (series[metric, frozenset()] if metric else 0)
    for counter in COUNTERS.values():
        assert isinstance(counter.read(snapshot), Known), counter.name


def test_every_reason_to_refuse_is_somebodys_fault() -> None:
    """A code that no list holds would be missing at /metrics until it happens first."""
    kinds = [RequestError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    known = CLIENT_FAULTS | set(REFUSALS) | set(OUTCOMES)
    elsewhere = {"cancelled", "drill_refused", "not_stored", "request_timeout", "error"}
    elsewhere |= {"shape_not_found"}  # of the control plane, as the drill's
    assert {kind.code for kind in kinds} - known - elsewhere <= {"quarantined"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing")
def test_promtool_has_nothing_to_say_of_the_metrics(watched: RunningNode) -> None:
    page = httpx.get(f"{watched.url}/metrics").text
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_the_url_is_shown_nowhere(watched: RunningNode, box: Receiver) -> None:
    wait(lambda: told(box), "the receiver was told")
    for path in ("/control/alerts", "/control/config", "/control/snapshot"):
        assert SECRET not in watched.control("GET", path).text
    assert SECRET not in httpx.get(f"{watched.url}/metrics").text
    for file in watched.home.rglob("*"):
        if file.is_file() and file.name != "oncall.url":
            assert SECRET.encode() not in file.read_bytes(), file
    for arguments in (("alerts", "list", "--all"), ("alerts", "list", "--json")):
        assert SECRET not in watched.kvops(*arguments).stdout


def test_a_restart_neither_tells_again_nor_forgets_and_the_end_is_told(
    watched: RunningNode, box: Receiver, tiny_model: Path
) -> None:
    """In one test, for each start takes seconds: acknowledged and silenced, stopped, started, ended."""
    wait(lambda: told(box), "the receiver was told")
    since = alert_row(watched, "AlwaysOn")["since"]
    assert (
        watched.control(
            "POST", "/control/alerts/ack", json={"rule": "AlwaysOn", "by": "me"}
        ).status_code
        == 200
    )
    silence = {"rule": "QueueLong", "seconds": 3600, "reason": "a test", "by": "me"}
    watched.control("POST", "/control/alerts/silence", json=silence)
    assert watched.stop() == 0
    again = start_node(watched.home, settings_of(tiny_model, ALWAYS), name="watched")
    try:
        row = alert_row(again, "AlwaysOn")
        assert (row["state"], row["since"]) == ("firing", since)
        assert row["acknowledged"]["by"] == "me"
        assert alert_row(again, "QueueLong")["silence"]["reason"] == "a test"
        at = evaluated_at(again)
        wait(lambda: evaluated_at(again) > at + 1, "two more looks")
        assert told(box) == ["firing"]
        document = yaml.safe_load((again.home / "watched.yaml").read_text())
        document["alerts"]["rules"] = settings_of(tiny_model, NEVER)["alerts"]["rules"]  # type: ignore[index]
        document["alerts"]["channels"]["oncall"]["url_file"] = str(again.home / "oncall.url")
        (again.home / "watched.yaml").write_text(yaml.safe_dump(document))
        applied = again.kvops("config", "apply", str(again.home / "watched.yaml"))
        assert applied.returncode == 0, applied.stderr
        wait(lambda: told(box) == ["firing", "resolved"], "the end was told")
    finally:
        assert again.stop() == 0


def test_a_wrong_rule_stops_the_start_with_its_field(tiny_model: Path, tmp_path: Path) -> None:
    settings = settings_of(tiny_model, ALWAYS | {"above": "much"})
    with pytest.raises(AssertionError) as failed:
        start_node(tmp_path, settings, name="wrong")
    said = str(failed.value)
    assert "node ended with 2" in said
    assert "rule AlwaysOn: above = 'much': expected a size" in said
