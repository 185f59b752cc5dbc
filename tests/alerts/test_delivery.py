"""Messages on their way: what is sent, what goes wrong, and that nothing ever shows the URL."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvops.alerts.book import Attempt, Book, Message
from kvops.alerts.delivery.channels import Channel, DeliveryFailed, read_channels, variable
from kvops.alerts.delivery.chat import Chat, body, title
from kvops.alerts.delivery.post_office import PostOffice
from kvops.alerts.delivery.webhook import fingerprint, payload, post
from kvops.alerts.dispatch import Terms
from kvops.config.schema import AlertChannel
from kvops.errors import ConfigError
from tests.alerts.receivers import SECRET, receiver

T0 = 1_800_000_000.0
TERMS = Terms("node", 3600, 3600)


def message(rule: str = "KvUsageHigh", *, ended_at: float | None = None) -> Message:
    return Message(
        rule=rule,
        status="firing" if ended_at is None else "resolved",
        labels={"alertname": rule, "severity": "warning", "node": "n1"},
        annotations={"summary": "Full.", "remedy": "Send less.", "value": "97 %"},
        started_at=T0,
        ended_at=ended_at,
        created_at=time.time(),
    )


def webhook(url: str, name: str = "oncall", seconds: float = 10.0) -> Channel:
    return Channel(name, "webhook", url, seconds)


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_the_body_is_alertmanagers() -> None:
    firing, resolved = payload("oncall", message()), payload("oncall", message(ended_at=T0 + 60))
    assert (firing["version"], firing["status"], firing["receiver"]) == ("4", "firing", "oncall")
    assert firing["groupKey"] == '{}:{alertname="KvUsageHigh", node="n1"}'
    (alert,) = firing["alerts"]
    assert alert["startsAt"] == "2027-01-15T08:00:00.000Z"
    assert alert["endsAt"] == "0001-01-01T00:00:00Z"
    assert alert["labels"] == firing["commonLabels"] == message().labels
    assert set(alert) == {
        "status", "labels", "annotations", "startsAt", "endsAt", "generatorURL", "fingerprint",
    }  # fmt: skip
    assert resolved["alerts"][0]["endsAt"] == "2027-01-15T08:01:00.000Z"
    assert resolved["alerts"][0]["fingerprint"] == alert["fingerprint"]
    assert fingerprint({"a": "bc"}) != fingerprint({"ab": "c"})


async def test_a_webhook_is_posted() -> None:
    with receiver() as box:
        await post(webhook(box.url), message())
    assert box.alerts("KvUsageHigh") == [("firing", "2027-01-15T08:00:00.000Z")]


@pytest.mark.parametrize("status", [302, 400, 401, 404, 500, 503])
async def test_only_2xx_is_a_yes(status: int) -> None:
    with receiver() as box:
        box.status = status
        with pytest.raises(DeliveryFailed, match=f"answered {status}") as failed:
            await post(webhook(box.url), message())
    assert SECRET not in str(failed.value)


async def test_whoever_does_not_answer_is_not_waited_for() -> None:
    with receiver() as box:
        box.hang = True
        with pytest.raises(DeliveryFailed, match=r"no answer within 0\.2 s") as failed:
            await post(webhook(box.url, seconds=0.2), message())
        assert box.tries == 1
    assert SECRET not in repr(failed.value)


async def test_nobody_there() -> None:
    with receiver() as box:
        url = box.url
    with pytest.raises(DeliveryFailed, match="refused") as failed:
        await post(webhook(url), message())
    assert SECRET not in str(failed.value)


async def test_apprise_tells_a_real_service() -> None:
    chat = Chat()
    with receiver() as box:
        channel = Channel("chat", "apprise", box.url.replace("http://", "json://"), 30.0)
        await chat.send(channel, message())
        assert box.bodies[0]["title"] == "[FIRING] KvUsageHigh (warning) on n1"
        assert "Next: Send less." in box.bodies[0]["message"]
        assert box.bodies[0]["type"] == "warning"
        await chat.send(channel, message(ended_at=T0 + 5))
        assert box.bodies[1]["type"] == "success"


async def test_apprise_says_no_without_the_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    chat = Chat()
    with receiver() as box:
        box.status = 500
        for url, reason in (
            (box.url.replace("http://", "json://"), "did not take it"),
            (f"nosuch://{SECRET}", "knows no such URL"),
        ):
            with pytest.raises(DeliveryFailed, match=reason) as failed:
                await chat.send(Channel("chat", "apprise", url, 30.0), message())
            assert SECRET not in str(failed.value)
    assert SECRET not in caplog.text


def test_texts_for_a_chat() -> None:
    assert title(message(ended_at=T0 + 5)).startswith("[RESOLVED]")
    assert "Next:" not in body(message(ended_at=T0 + 5))
    assert "Since: 2027-01-15 08:00:00 UTC" in body(message())


class Office:
    """A post office with one message for each channel."""

    def __init__(self, *channels: Channel) -> None:
        self.book = Book(outbox={channel.name: {"KvUsageHigh": message()} for channel in channels})
        self.attempts: list[Attempt] = []
        self.post = PostOffice(self.book, lambda: TERMS, self.attempted)
        self.post.serve(channels)

    async def attempted(self, channel: Channel, message: Message, attempt: Attempt) -> None:
        self.attempts.append(attempt)


async def test_it_is_tried_again_until_it_is_taken() -> None:
    with receiver() as box:
        box.status = 503
        office = Office(webhook(box.url))
        await eventually(lambda: box.tries > 0)
        box.status = 200
        await eventually(lambda: bool(box.bodies))
        await eventually(lambda: not office.book.outbox["oncall"])
        await office.post.close()
    assert [attempt.outcome for attempt in office.attempts][-1] == "delivered"
    assert office.attempts[0].outcome == "retried"
    assert office.post.counts["oncall"]["delivered"] == len(box.bodies) == 1


async def test_one_that_hangs_delays_no_other() -> None:
    with receiver() as slow, receiver() as quick:
        slow.hang = True
        office = Office(webhook(slow.url, "slow", 50.0), webhook(quick.url, "quick"))
        await eventually(lambda: bool(quick.bodies))
        assert not slow.bodies
        await office.post.close()


async def test_a_channel_that_is_taken_away_is_told_nothing_more() -> None:
    with receiver() as box:
        box.hang = True
        office = Office(webhook(box.url, seconds=50.0))
        await eventually(lambda: box.tries > 0)
        office.post.serve(())
        assert office.post.channels == ()
        await office.post.close()
    assert office.attempts == []


def channels(**settings: AlertChannel) -> tuple[Channel, ...]:
    return read_channels(settings)


def test_a_url_comes_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text(f"https://chat.example/{SECRET}\n")
    file.chmod(0o600)
    (from_file,) = channels(a=AlertChannel(url_file=file))
    monkeypatch.setenv(variable("b.c"), f"https://chat.example/{SECRET}")
    (from_variable,) = channels(**{"b.c": AlertChannel()})
    monkeypatch.setenv(f"{variable('d')}_FILE", str(file))
    (pointed,) = channels(d=AlertChannel(kind="apprise"))
    assert from_file.url == from_variable.url == pointed.url == f"https://chat.example/{SECRET}"
    assert SECRET not in repr(from_file)
    assert variable("b.c") == "KVOPS_ALERT_URL_B_C"


def test_a_url_that_is_none_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    places = ("chat.example", "ftp://chat.example", "https://chat.example/a b", "http://:1", "")
    for text in (f"{place}/{SECRET}" for place in places):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(ConfigError, match=r"alerts\.channels\.a") as refused:
            channels(a=AlertChannel(url_file=file))
        assert SECRET not in str(refused.value)
    file.write_text(f"https://chat.example/{SECRET}")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"alerts\.channels\.a: .*chmod 600"):
        channels(a=AlertChannel(url_file=file))
    with pytest.raises(ConfigError, match="given nowhere"):
        channels(a=AlertChannel())
    file.chmod(0o600)
    monkeypatch.setenv(variable("a"), f"https://chat.example/{SECRET}")
    with pytest.raises(ConfigError, match="more than one place"):
        channels(a=AlertChannel(url_file=file))  # fmt: skip
