"""Whether the client was the bottleneck: late sends, requests never sent, a full core."""

from __future__ import annotations

from kvops.load.records import ClientSample, ErrorClass, RequestRecord
from kvops.load.statistics import client_health
from tests.load.made import answer, busy_client, lost

CALM = [ClientSample(float(at), 1, 1, 0.2, 0.004) for at in range(200)]


def scheduled(late: list[float]) -> list[RequestRecord]:
    return [answer("a", at + by, t_intended=float(at)) for at, by in enumerate(late)]


def test_a_calm_client_is_not_doubted() -> None:
    found = client_health(CALM, scheduled([0.002] * 150))
    assert found.doubt is None
    assert (found.cpu_max, found.lag_max, found.samples) == (0.2, 0.004, 200)
    assert found.lateness.samples == 150


def test_late_sends_are_told_at_p99() -> None:
    found = client_health(CALM, scheduled([0.002] * 97 + [0.8] * 3))
    assert found.doubt == "scheduled requests were sent 800 ms late at p99, more than 500 ms"
    assert client_health(CALM, scheduled([0.002] * 199 + [0.8])).doubt is None


def test_a_connection_that_takes_long_is_not_the_clients_lateness() -> None:
    slow = [answer("a", at + 4.0, t_intended=float(at), connect=3.99) for at in range(150)]
    assert client_health(CALM, slow).doubt is None
    assert client_health(CALM, scheduled([4.0] * 150)).slow is not None


def test_of_few_sends_the_latest_counts() -> None:
    found = client_health(CALM, scheduled([0.002] * 20 + [0.8]))
    assert found.doubt == "scheduled requests were sent 800 ms late at worst, more than 500 ms"


def test_requests_that_were_never_sent_are_told() -> None:
    unsent = [lost("a", 1.0, ErrorClass.CLIENT_SATURATED)] * 2
    found = client_health(CALM, [*scheduled([0.0] * 8), *unsent])
    assert found.unsent == 2
    assert found.doubt == "2 of 10 requests were due but never sent: the client was full"
    assert found.slow is None, "the times of those that were sent are what they are"


def test_a_closed_loop_has_no_lateness_and_no_samples_no_figures() -> None:
    found = client_health([], [answer("a", 1.0)])
    assert (found.lateness.samples, found.lateness.max) == (0, None)
    assert (found.cpu_max, found.lag_max, found.doubt) == (None, None, None)


def test_its_own_start_is_not_held_against_a_client() -> None:
    asked = [answer("a", float(at)) for at in range(10, 40)]
    assert client_health([*busy_client(10), *CALM[10:40]], asked).doubt is None
    assert "timers were over 100 ms late" in (client_health(busy_client(40), asked).doubt or "")
