"""The judge of each scenario's report, against made runs: what passes, what fails, and what is too little to say."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from kvops.load import needle
from kvops.load.records import ClientSample, ErrorClass, NeedleScore, RequestRecord, ServerSample
from kvops.load.reports import (
    batch,
    disconnect,
    fairness,
    knee,
    lengths,
    prefix,
    recall,
    recovery,
    slo,
    soak,
    summary,
    turns,
)
from kvops.load.reports.base import RunData, Verdict
from kvops.load.statistics import wilson_lower
from kvops.telemetry import snapshot as snap
from tests.load.made import answer, busy_client, lost, refused, run


def shown(report: Any, data: RunData) -> str:
    """The report's body and its JSON: both must come out whatever the run holds."""
    json.dumps(report.facts(data), allow_nan=False)
    if data.records and hasattr(report, "plots"):
        assert all(plot.title for plot in report.plots(data))
    return printed(report.body(data))


def printed(what: RenderableType) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as captured:
        console.print(what, soft_wrap=True)
    return captured.get()


def check(report: Any, data: RunData, outcome: str, words: str = "") -> Verdict:
    found: Verdict = report.judge(data)
    assert found.outcome == outcome, found
    assert words in " | ".join(found.reasons)
    shown(report, data)
    return found


def test_nothing_at_all_is_never_a_pass() -> None:
    for report, scenario in [
        (batch, "batch_offline"), (disconnect, "disconnect_storm"), (fairness, "noisy_tenant"),
        (fairness, "whale_and_minnows"), (knee, "ramp_to_knee"), (lengths, "long_document"), (prefix, "shared_prefix"),
        (recall, "needle_recall"),
        (recovery, "burst_and_recover"), (slo, "chat_online"), (soak, "soak"), (turns, "agent_loop"),
    ]:  # fmt: skip
        check(report, run(scenario, []), "inconclusive")
        every = [lost("1 users 1", 1.0, ErrorClass.CONNECT_REFUSED, group="1")]
        assert report.judge(run(scenario, every)).outcome != "pass"


def test_a_node_that_answers_nobody_within_the_objective_fails() -> None:
    def cut_off(after: float) -> list[RequestRecord]:
        cut = [lost("turn 1", float(at), ErrorClass.CLIENT_CANCEL) for at in range(8)]
        return [msgspec.structs.replace(one, e2e=after) for one in cut]

    found = summary.judge(run("chat_online", cut_off(100.0)))
    assert found.outcome == "fail"
    assert found.reasons[0].startswith("TTFT p95 within 2.00 s: refuted")
    early = summary.judge(run("chat_online", cut_off(1.0)))
    assert early.outcome == "inconclusive", "within the time that it had"
    assert "nothing to judge" in early.reasons[0]


def test_a_run_too_short_to_see_its_client_says_so() -> None:
    unseen = summary.judge(run("chat_online", chats(80)))
    assert unseen.outcome == "pass"
    assert any("whether it was the bottleneck is not known" in note for note in unseen.notes)
    idle = [ClientSample(float(at), 1, 1, 0.1, 0.0) for at in range(80)]
    seen = summary.judge(run("chat_online", chats(80), client=idle))
    assert not any("bottleneck" in note for note in seen.notes)


# Objectives


def chats(n: int, **more: Any) -> list[RequestRecord]:
    return [answer("turn 1", float(at), **more) for at in range(n)]


def test_chats_within_the_objectives_pass() -> None:
    check(slo, run("chat_online", chats(80)), "pass")
    assert "80 of 80 requests met every objective" in shown(slo, run("chat_online", chats(80)))


def test_too_few_chats_are_inconclusive_and_say_how_many_they_need() -> None:
    check(slo, run("chat_online", chats(20)), "inconclusive", "needs 59 samples")


def test_what_a_run_lacks_is_said_in_its_own_options() -> None:
    few = [answer("turn 1", float(at)) for at in range(30)]
    judged = msgspec.structs.replace
    data = run("chat_online", few)
    bounded = judged(data, info=judged(data.info, duration=30.0))
    told = " ".join(slo.judge(bounded).reasons)
    wanted = re.search(r"TTFT p95 within .*?: --duration (\d+)s brings them", told)
    assert wanted is not None
    assert 59 <= int(wanted[1]) <= 66, "59 samples a second apart, and a tenth more"
    near = [answer("turn 1", float(at), ttft=9.0 if at % 20 == 0 else 0.1) for at in range(200)]
    assert "move the bound" in " ".join(
        slo.judge(judged(run("chat_online", near), info=bounded.info)).reasons
    )


def test_a_pass_tells_what_was_met() -> None:
    many = run("chat_online", [answer("turn 1", float(at)) for at in range(200)])
    met = check(slo, many, "pass").met
    assert met[0].startswith("TTFT p95 within 2.00 s: shown")
    assert met[-1] == "0 % of the requests failed, 1.0 % may"


def test_slow_chats_fail_by_the_measure_that_is_slow() -> None:
    slow = [*chats(50), *[answer("turn 1", 60.0 + at, ttft=4.0) for at in range(30)]]
    verdict = check(slo, run("chat_online", slow), "fail", "TTFT p95 within 2.00 s: refuted")
    assert not any("ITL" in reason for reason in verdict.reasons)
    check(slo, run("chat_online", chats(80, itl=0.5)), "fail", "ITL p95 within 300 ms: refuted")


def test_the_time_a_request_waited_to_be_sent_counts() -> None:
    late = [answer("turn 1", float(at), t_intended=at - 3.0, connect=2.9) for at in range(80)]
    check(slo, run("chat_online", late), "fail", "TTFT")
    late = [answer("turn 1", float(at), t_intended=at - 3.0) for at in range(80)]
    found = check(slo, run("chat_online", late), "inconclusive", "TTFT p95 within 2.00 s: refuted")
    assert "sent 3.00 s late" in " ".join(found.reasons), "by the client, not by the node"


def test_the_time_to_connect_counts_in_a_closed_loop_too() -> None:
    check(slo, run("chat_online", chats(80, connect=4.0)), "fail", "TTFT p95 within 2.00 s")
    whole = run("chat_online", chats(80, connect=4.0), slo_ttft=None, slo_e2e=2.0)
    check(slo, whole, "fail", "E2E p95 within 2.00 s")
    check(slo, run("chat_online", chats(80, connect=0.1)), "pass")
    assert "with connect" in printed(summary.render(run("chat_online", chats(80, connect=4.0))))
    assert "with connect" not in printed(summary.render(run("chat_online", chats(80))))


def test_failed_chats_fail_whatever_the_others_did() -> None:
    records = [
        *chats(80),
        *[lost("turn 2", 90.0 + at, ErrorClass.HTTP_5XX_OTHER) for at in range(4)],
    ]
    check(slo, run("chat_online", records), "fail", "4.8 % of the requests failed")
    check(slo, run("chat_online", records, max_errors=0.1, slo_ttft=None, slo_itl=None), "pass")


def test_a_busy_client_makes_slow_and_fast_inconclusive_and_no_failure_good() -> None:
    check(slo, run("chat_online", chats(80), client=busy_client(9)), "inconclusive", "bottleneck")
    slow = run("chat_online", chats(80, ttft=9.0), client=busy_client(9))
    found = check(
        slo, slow, "inconclusive", "refuted with 95% confidence (80 of 80 over it); it may"
    )
    assert "or add --processes" in " ".join(found.reasons)
    broken = [*chats(80), *(lost("turn 2", 90.0 + at, ErrorClass.HTTP_503) for at in range(9))]
    check(slo, run("chat_online", broken, client=busy_client(9)), "fail", "requests failed")


def slow_runs() -> list[tuple[Any, str, list[RequestRecord], dict[str, Any]]]:
    """A run of each kind whose report judges speed, too slow by nothing but times."""
    at_last = [ServerSample(at=float(at), running=3 * (at < 15), waiting=0) for at in range(20)]
    return [
        (slo, "chat_online", chats(80, ttft=9.0), {}),
        (batch, "batch_offline", listed(10), {"requests": 10, "min_tokens_per_second": 50.0}),
        (lengths, "long_document", documents({256: 0.2, 512: 0.4, 1024: 8.0}), {"lengths": [256, 512, 1024]}),
        (fairness, "whale_and_minnows", sides("minnow", "whale", 0.1, 5.0), {}),
        (fairness, "whale_and_minnows", sides("minnow", "whale", 0.1, 0.4), {"max_ratio": 3.0}),
        (soak, "soak", steady(grows=1.0), {"server": beats()}),
        (recovery, "burst_and_recover", burst(after=0.5), {}),
        (knee, "ramp_to_knee", climbed((1, 9.0), (1, 9.0)), {}),
        (disconnect, "disconnect_storm", storm(), {"before": snapshot(), "after": snapshot(), "server": at_last}),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(9))
def test_what_a_doubtful_client_or_a_crowd_saw_slow_is_no_failure(number: int) -> None:
    report, scenario, records, given = slow_runs()[number]
    seconds = range(int(max(one.t_send for one in records)) + 20)
    crowded = [ClientSample(float(at), 1, 1, 0.1, 0.0, 0.0, 0, 0.95, 0.1, 0.2) for at in seconds]
    check(report, run(scenario, records, **given), "fail")
    check(
        report,
        run(scenario, records, client=busy_client(len(seconds)), **given),
        "inconclusive",
        "bottleneck",
    )
    check(
        report,
        run(scenario, records, client=crowded, **given),
        "inconclusive",
        "other processes used 65 %",
    )
    wrong = [
        *records,
        lost(
            records[-1].name, records[-1].t_send, ErrorClass.HTTP_5XX_OTHER, group=records[-1].group
        ),
    ]
    if report is not knee and report is not slo:
        busy = run(scenario, wrong, client=busy_client(len(seconds)), **given)
        check(report, busy, "fail", "http_5xx_other" if report is not soak else "")


def test_one_full_worker_of_several_is_a_bottleneck() -> None:
    def workers(full: set[int]) -> list[ClientSample]:
        return [
            ClientSample(float(at), 1, 1, 0.99 if n in full else 0.1, 0.4 if n in full else 0.0, worker=n)
            for at in range(80)
            for n in range(6)
        ]  # fmt: skip

    check(slo, run("chat_online", chats(80), client=workers(set())), "pass")
    one = check(slo, run("chat_online", chats(80), client=workers({4})), "inconclusive")
    assert "worker 4 of 6: the client's timers were over 100 ms late in 100 % of" in one.reasons[0]
    two = check(slo, run("chat_online", chats(80), client=workers({1, 4})), "inconclusive")
    assert "worker 1 of 6" in two.reasons[0]
    assert "1 more like it" in two.reasons[0]


def test_what_the_client_had_no_room_for_is_no_failure_and_excuses_nothing() -> None:
    left = [lost("not sent", 90.0 + at, ErrorClass.CLIENT_SATURATED) for at in range(20)]
    found = summary.judge(run("chat_online", [*chats(80), *left]))
    assert found.outcome == "inconclusive"
    assert found.reasons == (
        "the client was the bottleneck: 20 requests of 100 had no room at the client and had to be left out: raise "
        "--max-in-flight, or lower the load",
    )
    slow = summary.judge(run("chat_online", [*chats(80, ttft=9.0), *left]))
    assert slow.outcome == "fail", (
        "those that were sent were too slow, under less load than was wanted"
    )
    assert summary.judge(run("ramp", [answer("1 user", 1.0), *left])).outcome == "inconclusive"


def test_a_run_whose_ledger_does_not_add_up_never_passes() -> None:
    def counted(tokens: int) -> snap.NodeSnapshot:
        known = dict.fromkeys(snap.Traffic.__struct_fields__, 0) | {
            "requests_by_outcome": {}, "prompt_tokens": tokens, "generation_tokens": 80,
        }  # fmt: skip
        return msgspec.structs.replace(snapshot(), traffic=snap.Known(snap.Traffic(**known), 0.0))

    start = msgspec.structs.replace(counted(0).traffic.value, generation_tokens=0)  # type: ignore[union-attr]
    before = msgspec.structs.replace(snapshot(), traffic=snap.Known(start, 0.0))
    given = {"requests": 10, "before": before}
    assert (
        summary.judge(run("batch_offline", listed(10), after=counted(1000), **given)).outcome
        == "pass"
    )
    found = summary.judge(run("batch_offline", listed(10), after=counted(900), **given))
    assert found.outcome == "inconclusive"
    assert "the client counts 1 000, the node 900" in found.reasons[0]
    assert "kvops verify --only load.ledger" in found.reasons[0]
    broken = [*listed(9), lost("request", 9.0, ErrorClass.HTTP_429)]
    assert (
        summary.judge(run("batch_offline", broken, after=counted(800), **given)).outcome == "fail"
    )


def test_a_cache_that_answered_for_the_model_is_told() -> None:
    later = chats(80, cached_tokens=90, asked_input=None)
    assert slo.judge(run("chat_online", later)).notes == (), "later turns bring their own context"
    (note,) = slo.judge(run("chat_online", chats(80, cached_tokens=90))).notes
    assert "90 % of the prompt tokens came from the prefix cache" in note


# Batch


def listed(n: int, **more: Any) -> list[RequestRecord]:
    return [answer("request", float(at), **more) for at in range(n)]


def test_a_whole_list_passes_and_its_rate_is_over_its_whole_time() -> None:
    data = run("batch_offline", listed(11), requests=11)
    check(batch, data, "pass")
    assert batch.facts(data)["output_tokens_per_second"] == pytest.approx(88 / 10.24)


def test_refusals_that_were_waited_out_are_no_loss_and_no_tokens() -> None:
    data = run("batch_offline", [*listed(10), refused("request", 20.0)], requests=10)
    check(batch, data, "pass")
    assert (batch.facts(data)["put_off"], batch.facts(data)["answered"]) == (1, 10)


def test_a_lost_request_fails_a_missing_one_does_not_pass_a_slow_list_fails() -> None:
    check(batch, run("batch_offline", [*listed(9), lost("request", 9.0, ErrorClass.HTTP_429)], requests=10),
          "fail", "1 of 10 were not answered")  # fmt: skip
    check(batch, run("batch_offline", listed(9), requests=10), "inconclusive", "1 of 10")
    check(batch, run("batch_offline", listed(10), requests=10, min_tokens_per_second=50.0), "fail",
          "under the wanted 50")  # fmt: skip
    unknown = run("batch_offline", listed(10, completion_tokens=None), requests=10)
    check(batch, unknown, "inconclusive", "without usage")


# Lengths


def documents(times: dict[int, float], n: int = 5) -> list[RequestRecord]:
    return [
        answer(f"{length} tokens", repeat * 100.0 + place, ttft=seconds, prompt_tokens=length)
        for repeat in range(n)
        for place, (length, seconds) in enumerate(times.items())
    ]


def read(times: dict[int, float], n: int = 5, **given: Any) -> RunData:
    return run("long_document", documents(times, n), lengths=list(times), **given)


def test_linear_and_quadratic_growth_pass() -> None:
    check(lengths, read({256: 0.2, 512: 0.4, 1024: 0.8}), "pass")
    check(lengths, read({256: 0.2, 512: 0.8, 1024: 3.2}), "pass")


def test_a_jump_between_two_lengths_fails_and_names_them() -> None:
    check(
        lengths,
        read({256: 0.2, 512: 0.4, 1024: 8.0}),
        "fail",
        "from 512 to 1024 tokens the first token takes 20.0",
    )


def test_an_objective_holds_for_every_length() -> None:
    check(lengths, read({256: 0.2, 512: 0.8}, slo_ttft=0.5), "fail", "512 tokens: the median")


def test_few_documents_of_a_length_are_inconclusive() -> None:
    check(
        lengths,
        read({256: 0.2, 512: 0.4}, n=4),
        "inconclusive",
        "256 tokens: 4 answers, a median needs 5",
    )


# Fairness


def sides(
    watched: str, pressing: str, alone: float, beside: float, n: int = 80
) -> list[RequestRecord]:
    return [
        *(answer(f"{watched} alone", float(at), ttft=alone) for at in range(n)),
        *(answer(f"{watched} beside", 100.0 + at, ttft=beside) for at in range(n)),
        *(answer(pressing, 100.5 + at, ttft=3.0) for at in range(5)),
    ]


def test_a_whale_that_hurts_nobody_passes_and_the_ratio_is_told() -> None:
    data = run("whale_and_minnows", sides("minnow", "whale", 0.1, 0.4))
    check(fairness, data, "pass")
    assert fairness.facts(data)["ttft_ratio"] == pytest.approx(4)
    assert "4.0x" in shown(fairness, data)
    check(
        fairness,
        run("whale_and_minnows", sides("minnow", "whale", 0.1, 0.4), max_ratio=3.0),
        "fail",
        "4.0 times",
    )


def test_a_whale_that_makes_everyone_wait_fails() -> None:
    check(
        fairness,
        run("whale_and_minnows", sides("minnow", "whale", 0.1, 5.0)),
        "fail",
        "beside a whale, TTFT p95",
    )


def test_a_node_too_slow_for_minnows_alone_says_nothing_of_fairness() -> None:
    data = run("whale_and_minnows", sides("minnow", "whale", 8.0, 9.0))
    check(fairness, data, "inconclusive", "alone, TTFT p95")


def test_few_minnows_or_no_whale_are_inconclusive() -> None:
    few = run("whale_and_minnows", sides("minnow", "whale", 0.1, 0.2, n=12))
    check(fairness, few, "inconclusive", "--phase-seconds 163s brings them at this pace")
    alone = [one for one in sides("minnow", "whale", 0.1, 0.2) if one.name != "whale"]
    check(
        fairness, run("whale_and_minnows", alone), "inconclusive", "no whale request was answered"
    )


def test_noise_that_is_refused_is_right_and_a_quiet_one_that_is_refused_is_not() -> None:
    noise = [*sides("quiet", "noisy", 0.1, 0.2), *(refused("noisy", 150.0 + at) for at in range(9))]
    data = run("noisy_tenant", noise, tenant_keys="/keys")
    assert check(fairness, data, "pass").notes == ()
    assert fairness.side(data, "noisy").refused == 9
    hurt = [*noise, lost("quiet beside", 190.0, ErrorClass.HTTP_429)]
    check(
        fairness, run("noisy_tenant", hurt, tenant_keys="/keys"), "fail", "quiet beside: http_429"
    )


def test_noise_without_keys_is_said_to_be_without() -> None:
    verdict = check(fairness, run("noisy_tenant", sides("quiet", "noisy", 0.1, 0.2)), "pass")
    assert "no --tenant-keys" in verdict.notes[0]


# Recall


def needles(found: int, lost: int = 0, **given: Any) -> RunData:
    """Two lengths and two depths; a quarter of the needles in each."""
    repeats = (found + lost) // 4
    cells = needle.plan(1, [128, 256], [0.0, 100.0], repeats)
    missed = [number for number, cell in enumerate(cells) if cell.depth is not None][:lost]
    records = [
        answer(cell.name, float(number), expected=number not in missed, prompt_tokens=cell.length,
               error_class=ErrorClass.WRONG_ANSWER if number in missed else None,
               needle=NeedleScore(found=number not in missed, length=cell.length, depth=cell.depth,
                                  counted_tokens=cell.length, exact=True))
        for number, cell in enumerate(cells)
    ]  # fmt: skip
    options = {"lengths": [128, 256], "depths": [0.0, 100.0], "repeats": repeats}
    return run("needle_recall", records, **(options | given))


def test_recall_passes_when_the_answers_show_it() -> None:
    assert check(recall, needles(36), "pass").notes == ()
    (note,) = check(recall, needles(4), "pass").notes
    assert "a spot check: it shows a recall of at least 51 %" in note
    assert "90 % takes 35 prompts with none lost, --repeats 9" in note


def test_all_of_too_few_needles_is_no_pass_and_says_how_many_would_be() -> None:
    few = check(recall, needles(4, shown_recall=0.9), "inconclusive", "4 of 4 found shows")
    assert (
        "under the wanted 90 %: 90 % takes 35 prompts with none lost, --repeats 9" in few.reasons[0]
    )
    check(recall, needles(36, shown_recall=0.9), "pass")


def test_what_is_shown_need_not_be_over_the_recall_that_is_wanted() -> None:
    some = needles(20, lost=16, min_recall=0.3, shown_recall=0.9)
    check(recall, some, "pass")
    check(recall, needles(20, lost=16), "fail", "recall 20/36 is under the wanted")
    close = needles(20, lost=16, min_recall=0.5)
    found = check(recall, close, "inconclusive", "20 of 36 found shows a recall of 39 %")
    assert "with no more than 16 lost" in found.reasons[0]


@pytest.mark.parametrize(
    ("lost_ones", "share"), [(0, 0.5), (0, 0.9), (3, 0.9), (40, 0.3), (0, 0.0)]
)
def test_the_least_number_of_needles_is_the_least(lost_ones: int, share: float) -> None:
    needed = recall.needed_hits(lost_ones, share)
    assert (wilson_lower(needed - lost_ones, needed) or 0) >= share
    assert share == 0 or (wilson_lower(needed - 1 - lost_ones, needed - 1) or 0) < share


# Shared prefix


def grouped(hit: int | None, n: int = 6, groups: int = 5) -> list[RequestRecord]:
    return [
        answer("prompt", number * 10.0 + group, group=f"group {group}", cached_tokens=hit if number else 0,
               ttft=0.2 if number else 1.0)
        for number in range(n)
        for group in range(groups)
    ]  # fmt: skip


def test_prefixes_that_hit_pass_and_those_that_do_not_fail() -> None:
    data = run("shared_prefix", grouped(80))
    check(prefix, data, "pass")
    assert prefix.facts(data)["hit_share"] == pytest.approx(0.8)
    assert "5.0 times sooner" in shown(prefix, data)
    check(prefix, run("shared_prefix", grouped(10)), "fail", "10 % of the tokens of warm prompts")


def test_hits_that_cannot_be_seen_or_are_too_few_are_inconclusive() -> None:
    check(
        prefix, run("shared_prefix", grouped(None)), "inconclusive", "does not report cached_tokens"
    )
    few = run("shared_prefix", grouped(80, n=2, groups=4))
    found = check(prefix, few, "inconclusive", "4 requests found a prefix that was there")
    assert "--groups 5" in found.reasons[0]


def test_how_much_sooner_is_not_told_from_a_few_cold_prompts() -> None:
    data = run("shared_prefix", grouped(80, groups=4))
    check(
        prefix, data, "inconclusive", "4 requests were the first of their prefix, 5 are the least"
    )
    assert prefix.facts(data)["ttft_ratio"] is None


def test_a_prompt_is_warm_only_after_another_of_its_group_was_answered() -> None:
    records = [
        answer("prompt", 1.0, group="a", e2e=1.0),
        answer("prompt", 1.5, group="a"),
        answer("prompt", 2.0, group="a"),
        answer("prompt", 2.1, group="b"),
    ]
    assert list(prefix.states(records).values()) == ["cold", "between", "warm", "cold"]


def looked_up(asked: int, hit: int) -> snap.NodeSnapshot:
    cache = snap.PrefixCache(True, asked, hit, 16)
    return msgspec.structs.replace(snapshot(), prefix_cache=snap.Known(cache, 0.0))


def test_the_nodes_own_count_is_of_the_whole_run_and_told_where_it_differs() -> None:
    records = grouped(80)
    asked = sum(one.prompt_tokens or 0 for one in records)
    hit = sum(one.cached_tokens or 0 for one in records)
    before, alike = looked_up(1000, 900), looked_up(1000 + asked, 900 + hit)
    data = run("shared_prefix", records, before=before, after=alike)
    assert prefix.server_share(data) == pytest.approx(hit / asked)
    assert prefix.judge(data).notes == ()
    more = looked_up(1000 + 2 * asked, 900 + hit)
    (note,) = prefix.judge(run("shared_prefix", records, before=before, after=more)).notes
    assert "the node itself counts" in note
    assert "others used it meanwhile" in note
    assert prefix.server_share(run("shared_prefix", records, before=before)) is None
    again = run("shared_prefix", records, before=alike, after=before)
    assert prefix.server_share(again) is None, "started anew"


# Agents


def loops(reuse: float | None, n: int = 3, of: int = 4) -> list[RequestRecord]:
    """Contexts of 100, 200, 300 … tokens."""
    return [
        answer(f"turn {turn}", loop * 100.0 + turn, group=f"loop {loop}", prompt_tokens=100 * turn,
               cached_tokens=None if reuse is None else int(reuse * 100 * (turn - 1)))
        for loop in range(n)
        for turn in range(1, of + 1)
    ]  # fmt: skip


def test_agents_that_find_their_context_again_pass_others_fail() -> None:
    data = run("agent_loop", loops(0.9))
    check(turns, data, "pass")
    assert [one.reuse for one in turns.turns(data.records)] == [None, *[pytest.approx(0.9)] * 3]
    check(turns, run("agent_loop", loops(0.2)), "fail", "20 % of the context")


def test_agents_whose_reuse_is_not_told_or_too_few_are_inconclusive() -> None:
    check(turns, run("agent_loop", loops(None)), "inconclusive", "usage of 0 of 9 later turns")
    check(turns, run("agent_loop", loops(0.9, n=1, of=3)), "inconclusive", "2 later turns")
    seldom = [*loops(None), *loops(0.9, n=1)]
    seldom = [
        msgspec.structs.replace(one, seq=number, group=f"{one.group} {number // 4}")
        for number, one in enumerate(seldom)
    ]
    check(turns, run("agent_loop", seldom), "inconclusive", "usage of 3 of 12 later turns")


def test_a_lost_turn_fails() -> None:
    broken = [*loops(0.9), lost("turn 5", 400.0, ErrorClass.STREAM_TRUNCATED, group="loop 0")]
    check(turns, run("agent_loop", broken), "fail", "turn 5: stream_truncated")


# Soak


def steady(n: int = 400, grows: float = 0.0) -> list[RequestRecord]:
    """`grows`: by how much of itself the first token gets slower over the run."""
    return [
        answer("request", float(at), ttft=(0.1 + 0.01 * (at % 7)) * (1 + grows * at / n))
        for at in range(n)
    ]


def beats(n: int = 400, memory: float = 0.0, kv: float = 0.0) -> list[ServerSample]:
    return [
        ServerSample(at=float(at), memory_used=0.5 + memory * at / n, kv_usage=0.1 + 0.02 * (at % 5) + kv * at / n,
                     running=2, waiting=0)
        for at in range(n)
    ]  # fmt: skip


def test_a_steady_soak_passes() -> None:
    assert check(soak, run("soak", steady(), server=beats()), "pass").notes == ()


@pytest.mark.parametrize(
    ("records", "server", "words"),
    [
        (steady(grows=1.0), beats(), "time to the first token grew"),
        (steady(), beats(memory=0.2), "memory in use grew"),
        (steady(), beats(kv=0.3), "KV blocks in use grew"),
    ],
)
def test_a_drift_fails_and_is_named(records: Any, server: Any, words: str) -> None:
    check(soak, run("soak", records, server=server), "fail", words)


def test_memory_that_others_share_is_not_blamed_on_the_node() -> None:
    ledger = snap.MemoryLedger("cpu", 1000, 300, 200, 50, 50, 400, 0, 0)
    shared = msgspec.structs.replace(snapshot(), memory=snap.Known(ledger, 0.0))
    data = run("soak", steady(), server=beats(memory=0.2), before=shared)
    check(soak, data, "inconclusive", "the other processes of the machine are among it")


def test_a_soak_that_gets_faster_is_no_drift() -> None:
    check(soak, run("soak", steady(grows=-0.5), server=beats()), "pass")


def test_a_short_soak_says_nothing() -> None:
    short = run("soak", steady(100), server=beats(100))
    check(soak, short, "inconclusive", "say nothing of drift")


def test_what_the_node_does_not_show_is_said() -> None:
    (note,) = check(soak, run("soak", steady()), "pass").notes
    assert "memory in use" in note


# Recovery


def burst(
    burst_ttft: float = 3.0, after: float = 0.1, relapse: float = 0.0, n: int = 40
) -> list[RequestRecord]:
    """A second apart: ten before, ten in the burst, `n` after it; the first `relapse` seconds after it stay slow."""
    return [
        *(answer("baseline", float(at)) for at in range(10)),
        *(answer("burst", 10.0 + at, ttft=burst_ttft) for at in range(10)),
        *(answer("recovery", 20.0 + at, ttft=3.0 if at < relapse else after) for at in range(n)),
    ]


def test_a_node_that_is_itself_again_passes() -> None:
    data = run("burst_and_recover", burst(relapse=4))
    check(recovery, data, "pass")
    back, share = recovery.recovered(data)
    assert back == pytest.approx(5.0), (
        "from the last request of the burst to the first that was fast"
    )
    assert share == pytest.approx(1.0, rel=0.1)


def test_refusals_with_a_time_to_come_back_are_right_in_the_burst() -> None:
    refusals = [refused("burst", 11.0 + at / 10) for at in range(30)]
    data = run("burst_and_recover", [*burst(burst_ttft=0.1), *refusals])
    check(recovery, data, "pass")
    assert "30" in shown(recovery, data)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (burst(after=0.5), "never back near its baseline"),
        (burst(relapse=38, n=60), "only after"),
        (
            [*burst(), lost("burst", 15.5, ErrorClass.FIRST_TOKEN_TIMEOUT)],
            "burst: first_token_timeout",
        ),
        ([*burst(), lost("burst", 15.5, ErrorClass.HTTP_5XX_OTHER)], "burst: http_5xx_other"),
        ([*burst(), lost("baseline", 5.5, ErrorClass.HTTP_429)], "baseline: http_429"),
        ([*burst(), *[refused("recovery", 55.0 + at) for at in range(9)]], "never back"),
    ],
)
def test_a_node_that_is_not_itself_again_fails(records: list[RequestRecord], words: str) -> None:
    check(recovery, run("burst_and_recover", records), "fail", words)


def test_a_node_that_answers_fewer_than_before_fails() -> None:
    slow = [one for one in burst(n=60) if one.name != "recovery" or round(one.t_send) % 3 == 0]
    check(recovery, run("burst_and_recover", slow), "fail", "recovered to fewer answers")


def test_a_burst_that_was_none_is_inconclusive() -> None:
    check(
        recovery, run("burst_and_recover", burst(burst_ttft=0.1)), "inconclusive", "raise --users"
    )
    check(recovery, run("burst_and_recover", burst(n=3)), "inconclusive", "recovery: 3 answers")


def test_the_rate_of_a_verdict_is_one_of_its_table() -> None:
    data = run("burst_and_recover", burst(relapse=4, n=60))
    (_, told) = check(recovery, data, "pass").met
    after = {one["name"]: one for one in recovery.facts(data)["phases"]}[recovery.SETTLED]
    assert f"{after['per_second']:.2f} of" in told
    assert f"n {after['answered']} and 10" in told
    assert f"{after['per_second']:.2f}" in shown(recovery, data)


def test_few_answers_of_uneven_pace_show_no_throughput() -> None:
    at = [55.0, 55.2, 55.4, 60.0, 61.0, 61.2]
    uneven = [one for one in burst() if one.name != "recovery"]
    uneven += [answer("recovery", one) for one in at]
    data = run("burst_and_recover", uneven, recover_within=60.0)
    check(recovery, data, "inconclusive", "by so few answers it may be")
    low, high = recovery.share_interval(data) or (1.0, 0.0)
    assert low < 0.6 < high


def test_settled_wants_every_run_of_five_to_the_end() -> None:
    assert recovery.settled([9, 9, 9, 1, 1, 1, 1, 1], 2) == 3
    assert recovery.settled([1, 9, 1, 1, 9, 1, 1, 1, 1], 2) == 0, "one slow answer is no relapse"
    assert recovery.settled([1] * 8 + [9] * 5, 2) is None
    assert recovery.settled([1] * 4, 2) is None


# Disconnects


def snapshot(running: int = 0, used: int = 0) -> snap.NodeSnapshot:
    none = snap.NotExposed("made")
    kv = snap.KvUsage(16, 100, used, 0, 100 - used, 1, 0.0, 0, 0)
    queue = snap.QueueState(running, 0, None, 32, 64, {})
    return snap.NodeSnapshot(
        node="made", engine="kvops", engine_version="1", url="http://127.0.0.1:1", taken_at=0.0, state="ready",
        state_reason="", uptime_seconds=none, model=none, config_hash=none, memory=none, kv=snap.Known(kv, 0.0),
        prefix_cache=none, queue=snap.Known(queue, 0.0), latency=none, traffic=none, progress=none, gpus=none,
        tenants=none, requests=none,
    )  # fmt: skip


def storm(n: int = 20) -> list[RequestRecord]:
    hung_up = {"expected": False, "error_class": ErrorClass.CLIENT_CANCEL, "error": "hung up"}
    return [
        answer("canary before", 0.0),
        *(answer("storm", 1.0 + at / 10, **hung_up) for at in range(n)),
        answer("storm", 5.5),
        *(answer("canary after", 9.0 + at) for at in range(3)),
    ]


def test_a_node_that_frees_all_passes_and_says_how_soon() -> None:
    server = [ServerSample(at=float(at), running=3 if at < 5 else 0, waiting=0) for at in range(12)]
    data = run("disconnect_storm", storm(), before=snapshot(), after=snapshot(), server=server)
    check(disconnect, data, "pass")
    assert disconnect.facts(data)["hung_up"] == 20
    assert disconnect.facts(data)["freed_within"] == pytest.approx(5.0 - 3.14)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (snapshot(running=2), "2 requests still run after the storm, 0 before it"),
        (snapshot(used=7), "7 blocks are still used after the storm, 1 before it"),
    ],
)
def test_what_is_left_over_fails(after: snap.NodeSnapshot, words: str) -> None:
    data = run("disconnect_storm", storm(), before=snapshot(used=1), after=after)
    check(disconnect, data, "fail", words)


def test_what_is_held_for_long_fails_although_it_is_free_at_last() -> None:
    server = [
        ServerSample(at=float(at), running=3 if at < 15 else 0, waiting=0) for at in range(20)
    ]
    data = run("disconnect_storm", storm(), before=snapshot(), after=snapshot(), server=server)
    check(disconnect, data, "fail", "5.00 s are allowed")


@pytest.mark.parametrize(
    "server",
    [
        [],
        [ServerSample(at=float(at), running=2, waiting=0) for at in range(20)],
        [ServerSample(at=float(at), running=0, waiting=0, kv_used=9) for at in range(20)],
        [ServerSample(at=2.0, running=0, waiting=0)],
    ],
)
def test_blocks_that_nobody_saw_come_back_are_no_pass(server: list[ServerSample]) -> None:
    data = run("disconnect_storm", storm(), before=snapshot(), after=snapshot(), server=server)
    check(disconnect, data, "inconclusive", "when it was given back is not known")


def test_hanging_up_as_planned_is_not_told_as_cut_off() -> None:
    data = run("disconnect_storm", storm(), before=snapshot(), after=snapshot())
    told = printed(summary.render(data))
    assert "hung up on as planned" in told
    assert "cut off" not in told


def test_a_canary_that_is_wrong_fails() -> None:
    wrong = [*storm(), lost("canary after", 20.0, ErrorClass.WRONG_ANSWER)]
    data = run("disconnect_storm", wrong, before=snapshot(), after=snapshot())
    check(disconnect, data, "fail", "canary after: wrong_answer")


def test_a_storm_that_cannot_be_seen_into_or_was_none_is_inconclusive() -> None:
    check(disconnect, run("disconnect_storm", storm()), "inconclusive", "shows no snapshot")
    calm = run("disconnect_storm", storm(3), before=snapshot(), after=snapshot())
    check(disconnect, calm, "inconclusive", "3 requests were hung up on")
    mute = [one for one in storm() if one.name != "canary after"]
    data = run("disconnect_storm", mute, before=snapshot(), after=snapshot())
    check(disconnect, data, "inconclusive", "no canary was answered")


# Knee


def climbed(*steps: tuple[float, float], n: int = 40) -> list[RequestRecord]:
    """Steps of a load and its first-token time, in order."""
    return [
        answer(f"{load:g} users", number * 100.0 + at / 10, ttft=ttft, group=str(number))
        for number, (load, ttft) in enumerate(steps, 1)
        for at in range(n)
    ]


FOUND = ((1, 0.1), (2, 0.3), (4, 5.0), (4, 5.0), (3, 0.9), (3, 0.9))


def test_a_knee_that_was_found_passes_and_says_what_bound_it() -> None:
    data = run("ramp_to_knee", climbed(*FOUND))
    assert check(knee, data, "pass").notes == ()
    found = knee.facts(data)
    assert (found["knee"], found["first_bad"], found["limits"]) == (3, 4, ["ttft"])
    assert "3 users meet the objectives; at 4 the limit is the time to the first token" in shown(
        knee, data
    )
    assert "4 users, again" in shown(knee, data)
    assert "1 to 64 users, seed" in printed(summary.render(data))
    assert [plot.title for plot in knee.plots(data)] == [
        "Latency over load",
        "Throughput over load",
    ]


def test_a_full_cache_is_named_as_what_is_behind() -> None:
    full = [
        ServerSample(at=float(at), kv_usage=0.99 if 300 <= at < 500 else 0.1, preemptions=0)
        for at in range(600)
    ]
    found = knee.facts(run("ramp_to_knee", climbed(*FOUND), server=full))
    assert found["limits"] == ["kv", "ttft"]
    assert "KV cache in use 99 %" in found["bound"]


def test_a_wanted_load_decides() -> None:
    check(knee, run("ramp_to_knee", climbed(*FOUND), wanted=3.0), "pass")
    check(knee, run("ramp_to_knee", climbed(*FOUND), wanted=4.0), "fail", "4 users were wanted")
    top = run("ramp_to_knee", climbed((1, 0.1), (2, 0.1), (2, 0.1)), most=2.0, wanted=2.0)
    check(knee, top, "pass")


def test_a_node_that_bears_nothing_fails_and_one_that_bears_all_is_not_found_out() -> None:
    check(
        knee, run("ramp_to_knee", climbed((1, 9.0), (1, 9.0))), "fail", "even 1 user did not meet"
    )
    high = run("ramp_to_knee", climbed((8, 9.0), (8, 9.0)), start=8.0)
    check(knee, high, "inconclusive", "before 4 users could be tried")
    top = run("ramp_to_knee", climbed((1, 0.1), (2, 0.1), (2, 0.1)), most=2.0)
    check(knee, top, "inconclusive", "no load up to 2 users missed an objective: raise --most")


def test_a_search_cut_short_few_samples_or_a_busy_client_are_inconclusive() -> None:
    check(
        knee,
        run("ramp_to_knee", climbed(*FOUND[:3])),
        "inconclusive",
        "before 4 users could be tried",
    )
    check(
        knee,
        run("ramp_to_knee", climbed((1, 0.1), n=5)),
        "inconclusive",
        "5 requests decide nothing, 36 are the least",
    )
    busy = run("ramp_to_knee", climbed(*FOUND), client=busy_client(900))
    check(knee, busy, "inconclusive", "the client was the bottleneck")


def test_an_unsteady_node_is_said_to_be_so() -> None:
    once = climbed((1, 0.1), (2, 5.0), (2, 0.1), (2, 5.0), (1, 0.1))
    (note,) = check(knee, run("ramp_to_knee", once), "pass").notes
    assert "2 was bad once and good once" in note
    steps = ((1, 0.1), (2, 0.1), (4, 5.0), (4, 0.1), (4, 0.1), (3, 5.0), (2, 0.1))
    check(
        knee,
        run("ramp_to_knee", climbed(*steps)),
        "inconclusive",
        "not monotone: 3 was bad and 4 was good",
    )
