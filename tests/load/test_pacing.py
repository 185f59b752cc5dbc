"""Schedules of requests: their distributions, their bounds, and what a user may ask for."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from kvops.errors import UsageError
from kvops.load import pacing_options, scenarios
from kvops.load.pacing import Pacing, check, schedule

STEADY = scenarios.read(Path(__file__).parent / "scenarios" / "steady.yaml")
LISTED = scenarios.find("batch_offline")
NEVER = 1e-4
"""Chance at which a right schedule would be called wrong, over all seeds; here the seeds are fixed."""


def times(pacing: Pacing, duration: float | None = 1000.0, seed: int = 7) -> np.ndarray:
    found = [shot.at for shot in schedule(pacing, seed, duration)]
    assert found == sorted(found)
    return np.array(found, dtype=float)


def test_constant_gaps_are_exact_and_end_with_the_run() -> None:
    assert times(Pacing(kind="constant", rate=4), 2.0).tolist() == [
        0,
        0.25,
        0.5,
        0.75,
        1,
        1.25,
        1.5,
        1.75,
    ]


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(times(Pacing(kind="poisson", rate=8)), prepend=0.0)
    assert stats.kstest(gaps, "expon", args=(0, 1 / 8)).pvalue > NEVER
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4 / math.sqrt(len(gaps)), (
        "gaps depend on each other"
    )


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_rate_and_the_burstiness_asked_for(shape: float) -> None:
    gaps = np.diff(times(Pacing(kind="gamma", rate=8, burstiness=shape)), prepend=0.0)
    assert stats.kstest(gaps, "gamma", args=(shape, 0, 1 / (8 * shape))).pvalue > NEVER
    assert np.mean(gaps) == pytest.approx(1 / 8, rel=4 / math.sqrt(shape * len(gaps)))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1 / math.sqrt(shape), rel=0.1)


@pytest.mark.parametrize(("first", "last"), [(2.0, 10.0), (10.0, 2.0), (6.0, 6.0)])
def test_a_ramps_rate_moves_straight(first: float, last: float) -> None:
    """Given their number, Poisson arrivals are a sample of the density that the rate is proportional to."""
    found = times(Pacing(kind="ramp", rate=first, rate_end=last))

    def share(t: np.ndarray) -> np.ndarray:
        return (first * t + (last - first) * t**2 / 2000) / (1000 * (first + last) / 2)

    assert stats.kstest(found, share).pvalue > NEVER
    assert abs(len(found) - 6000) < 4 * math.sqrt(6000)


def test_bursts_come_whole_and_on_top_of_the_rate() -> None:
    alone = times(Pacing(kind="burst", burst_size=3, burst_every=10), 31.0)
    assert alone.tolist() == [10, 10, 10, 20, 20, 20, 30, 30, 30]
    both = times(Pacing(kind="burst", rate=5, burst_size=3, burst_every=10), 1000.0)
    between = both[both % 10 != 0]
    assert len(both) - len(between) == 3 * 99
    assert stats.kstest(np.diff(between, prepend=0.0), "expon", args=(0, 1 / 5)).pvalue > NEVER


@pytest.mark.parametrize("kind", ["poisson", "gamma", "ramp", "burst"])
def test_a_seed_fixes_the_schedule(kind: str) -> None:
    pacing = {
        "poisson": Pacing(kind="poisson", rate=5),
        "gamma": Pacing(kind="gamma", rate=5, burstiness=0.5),
        "ramp": Pacing(kind="ramp", rate=5, rate_end=9),
        "burst": Pacing(kind="burst", rate=5, burst_size=2, burst_every=3),
    }[kind]
    assert times(pacing, 50.0, seed=1).tolist() == times(pacing, 50.0, seed=1).tolist()
    assert times(pacing, 50.0, seed=1).tolist() != times(pacing, 50.0, seed=2).tolist()


def test_shots_are_numbered_from_zero() -> None:
    shots = itertools.islice(schedule(Pacing(kind="burst", burst_size=2, burst_every=1), 0, 9.0), 5)
    assert [shot.number for shot in shots] == [0, 1, 2, 3, 4]


def trace_of(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    return file


def test_a_trace_is_replayed_as_it_was(tmp_path: Path) -> None:
    file = trace_of(
        tmp_path, "id,time,output_tokens,input_tokens\na,100.5,7,30\nb,100.5,8,40\nc,102,9,50\n"
    )
    shots = list(schedule(Pacing(kind="trace", trace=str(file)), 0, None))
    assert [(s.number, s.at, s.input_tokens, s.output_tokens) for s in shots] == [
        (0, 0.0, 30, 7), (1, 0.0, 40, 8), (2, 1.5, 50, 9),
    ]  # fmt: skip
    assert len(list(schedule(Pacing(kind="trace", trace=str(file)), 0, 1.0))) == 2


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "line 1: no column time, input_tokens, output_tokens"),
        ("time,input_tokens\n1,2\n", "line 1: no column output_tokens"),
        ("time,input_tokens,output_tokens\n", "holds no request"),
        ("time,input_tokens,output_tokens\n0,1,1\nsoon,2,2\n", "line 3: time 'soon' is not a number"),
        ("time,input_tokens,output_tokens\n5,1,1\n4,2,2\n", "line 3: time 4 is before the line above"),
        ("time,input_tokens,output_tokens\nnan,1,1\n", "line 2: time nan is no moment"),
        ("time,input_tokens,output_tokens\n0,0,1\n", "line 2: input_tokens 0 is out of bounds"),
        ("time,input_tokens,output_tokens\n0,1,1.5\n", "line 2: output_tokens '1.5' is not a whole number"),
        ("time,input_tokens,output_tokens\n0,1\n", "line 2: output_tokens '' is not a whole number"),
        ("time,input_tokens,output_tokens\n" + "x,1,1\n" * 9, "line 6: time 'x' is not a number; and 4 more"),
    ],
)  # fmt: skip
def test_every_fault_of_a_trace_is_named_with_its_line(
    tmp_path: Path, text: str, wanted: str
) -> None:
    with pytest.raises(UsageError) as raised:
        pacing_options.combined(STEADY, None, trace=trace_of(tmp_path, text))
    assert wanted in raised.value.message


def test_a_trace_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (binary, tmp_path / "absent.csv", tmp_path):
        with pytest.raises(UsageError, match="cannot read --trace"):
            pacing_options.combined(STEADY, None, trace=file)


def test_a_rate_alone_is_poisson_and_nothing_is_the_scenarios_own() -> None:
    assert pacing_options.combined(STEADY, 60.0, rate=2.0) == Pacing(kind="poisson", rate=2)
    assert pacing_options.combined(STEADY, None) == STEADY.pacing
    assert pacing_options.combined(LISTED, None) == Pacing()
    constant = STEADY.model_copy(update={"pacing": Pacing(kind="constant", rate=1)})
    assert pacing_options.combined(constant, 60.0, rate=3.0) == Pacing(kind="constant", rate=3)
    closed = pacing_options.combined(constant, 60.0, kind="closed")
    assert closed == Pacing()
    bursts = pacing_options.combined(STEADY, 60.0, kind="burst", burst_size=4, burst_every="500ms")
    assert (bursts.burst_size, bursts.burst_every) == (4, 0.5)


@pytest.mark.parametrize(
    ("given", "duration", "message", "hint"),
    [
        ({"kind": "poison", "rate": 1.0}, 60.0, "--arrivals poison", "did you mean poisson?"),
        ({"kind": "poisson"}, 60.0, "--arrivals poisson needs --rate", "--rate 2"),
        ({"kind": "ramp", "rate": 1.0}, 60.0, "--arrivals ramp needs --rate-end", "--rate-end 8"),
        ({"kind": "burst", "burst_size": 3}, 60.0, "needs --burst-every", "--burst-every 30s"),
        ({"kind": "trace"}, 60.0, "needs --trace", "--trace FILE"),
        ({"rate": 1.0, "rate_end": 2.0}, 60.0, "--rate-end does not go with --arrivals poisson", "--arrivals ramp"),
        ({"burst_size": 3}, 60.0, "--burst-size does not go with users", "--arrivals burst"),
        ({"kind": "poisson", "rate": 1.0, "burstiness": 2.0}, 60.0, "--burstiness does not go", "--arrivals gamma"),
        ({"kind": "closed", "rate": 1.0}, 60.0, "--rate does not go with users", "poisson"),
        ({"trace": "f.csv", "rate": 2.0}, 60.0, "--rate does not go with --arrivals trace", "poisson"),
        ({"rate": 0.0}, 60.0, "--rate 0 is out of bounds", "0.001 to 10000"),
        ({"rate": float("nan")}, 60.0, "--rate nan is out of bounds", "10000"),
        ({"rate": -1.0}, 60.0, "--rate -1 is out of bounds", "10000"),
        ({"rate": 1.0, "max_in_flight": 0}, 60.0, "--max-in-flight 0 is out of bounds", "1 to"),
        ({"kind": "burst", "burst_size": 3, "burst_every": "often"}, 60.0, "--burst-every often", "30s"),
        ({"rate": 1.0}, None, "--arrivals poisson has no end", "--duration 60s"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_says_why(
    given: dict[str, object], duration: float | None, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        pacing_options.combined(STEADY, duration, **given)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_what_comes_at_the_rate_stays_the_scenarios_but_a_row_of_a_trace_is_a_request(
    tmp_path: Path,
) -> None:
    chat = scenarios.find("chat_online")
    assert pacing_options.combined(chat, 60.0, kind="constant", rate=1.0).unit == "sessions"
    rows = trace_of(tmp_path, "time,input_tokens,output_tokens\n0,1,1\n")
    assert pacing_options.combined(chat, None, trace=rows).unit == "requests"


def test_the_speed_is_told_in_what_comes() -> None:
    assert Pacing().speed == ""
    assert Pacing(kind="poisson", rate=1.0).speed == "1 request/s"
    assert Pacing(kind="poisson", rate=0.5, unit="sessions").speed == "0.5 sessions/s"
    assert Pacing(kind="ramp", rate=1.0, rate_end=8.0).speed == "1 to 8 requests/s"


def test_a_trace_is_replayed_whole_unless_a_duration_is_typed(tmp_path: Path) -> None:
    chat = scenarios.find("chat_online")
    rows = trace_of(tmp_path, "time,input_tokens,output_tokens\n5,1,1\n9,2,2\n305,3,3\n")
    made = pacing_options.combined(chat, chat.duration, trace=rows)
    assert pacing_options.bound(made, chat, None) is None
    (whole,) = pacing_options.notes(made, None)
    assert "3 rows over 5m 00s, one request each" in whole
    assert pacing_options.bound(made, chat, 60.0) == 60
    (cut,) = pacing_options.notes(made, 60.0)
    assert "3 rows over 5m 00s, of which 2 come within 1m 00s" in cut
    closed = Pacing()
    assert pacing_options.bound(closed, chat, None) == chat.duration
    assert pacing_options.notes(closed, 60.0) == []


@pytest.mark.parametrize("name", ["batch_offline", "burst_and_recover", "ramp", "malformed_input"])
def test_a_scenario_that_times_itself_cannot_be_paced_and_those_that_can_are_named(
    name: str,
) -> None:
    with pytest.raises(UsageError, match=rf"{name} decides itself") as raised:
        pacing_options.combined(scenarios.find(name), 60.0, rate=1.0)
    taking = (
        "agent_loop, chat_online, long_document, needle_recall, shared_prefix and soak take them"
    )
    assert taking in raised.value.hint
    assert ("--by rate" in raised.value.hint) == (name == "ramp")


@pytest.mark.parametrize("name", ["agent_loop", "long_document", "needle_recall", "shared_prefix"])
def test_a_list_of_requests_comes_at_a_rate_and_is_no_trace(name: str, tmp_path: Path) -> None:
    listed = scenarios.find(name)
    made = pacing_options.combined(listed, 60.0, rate=2.0)
    assert (made.kind, made.unit) == ("poisson", "sessions" if name == "agent_loop" else "requests")
    rows = trace_of(tmp_path, "time,input_tokens,output_tokens\n0,1,1\n")
    for given in ({"trace": rows}, {"kind": "trace", "trace": rows}):
        with pytest.raises(UsageError, match="list of requests of its own") as raised:
            pacing_options.combined(listed, None, **given)
        assert "chat_online and soak replay one" in raised.value.hint


def test_closed_loops_pass_the_check() -> None:
    check(Pacing(), None)
