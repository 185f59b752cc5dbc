"""The client's tokens against the node's counters, to the token; and usage against the text."""

from __future__ import annotations

import msgspec
import pytest

from kvops.load.records import ErrorClass, RequestRecord
from kvops.load.statistics import TokenCheck, ledger, token_check
from kvops.telemetry.snapshot import Known, NodeSnapshot, NotExposed
from tests.load.made import answer, lost, refused
from tests.telemetry.samples import make_snapshot

change = msgspec.structs.replace
RECORDS = [answer("a", at) for at in range(3)]
"""300 prompt tokens and 24 of output."""


def node(prompt: int, output: int, requests: int, uptime: float = 100.0) -> NodeSnapshot:
    snapshot = make_snapshot(at=0.0)
    assert isinstance(snapshot.traffic, Known)
    traffic = change(
        snapshot.traffic.value, prompt_tokens=prompt, generation_tokens=output,
        requests_by_outcome={"stop": requests},
    )  # fmt: skip
    return change(snapshot, traffic=Known(traffic, 0.0), uptime_seconds=Known(uptime, 0.0))


BEFORE = node(1000, 500, 7)


def test_equal_to_the_token() -> None:
    found = ledger(BEFORE, node(1300, 524, 10, 160.0), RECORDS)
    assert found.outcome == "equal"
    assert found.statement == "client and node agree: 300 prompt tokens, 24 output tokens"


@pytest.mark.parametrize(("prompt", "output"), [(1301, 524), (1299, 524), (1300, 525), (1300, 523)])
def test_one_token_off_is_named_with_both_numbers(prompt: int, output: int) -> None:
    found = ledger(BEFORE, node(prompt, output, 10), RECORDS)
    assert found.outcome == "differs"
    which, client, told = (
        ("prompt", 300, prompt - 1000) if prompt != 1300 else ("output", 24, output - 500)
    )
    assert found.statement == f"{which} tokens: the client counts {client}, the node {told}"


def test_counters_that_do_not_move_differ() -> None:
    assert ledger(BEFORE, BEFORE, RECORDS).outcome == "differs"


def test_others_on_the_node_make_more_tokens_no_fault() -> None:
    found = ledger(BEFORE, node(1900, 900, 14), RECORDS)
    assert found.outcome == "not comparable"
    assert "it ended 4 requests more than the client sent" in found.statement


def test_fewer_tokens_than_the_client_saw_are_a_fault_whoever_used_the_node() -> None:
    found = ledger(BEFORE, node(1900, 510, 14), RECORDS)
    assert (found.outcome, found.statement) == (
        "differs", "output tokens: the client counts 24, the node 10",
    )  # fmt: skip


@pytest.mark.parametrize(
    "blind",
    [
        answer("a", 4, prompt_tokens=None, completion_tokens=None),
        lost("a", 4, ErrorClass.STALL_TIMEOUT, prompt_tokens=None, completion_tokens=None),
        lost("a", 4, ErrorClass.CLIENT_CANCEL, prompt_tokens=None, completion_tokens=None),
        lost("a", 4, ErrorClass.HTTP_408, prompt_tokens=None, completion_tokens=None),
    ],
)
def test_tokens_nobody_told_the_client_are_not_missing(blind: RequestRecord) -> None:
    found = ledger(BEFORE, node(1400, 530, 11), [*RECORDS, blind])
    assert found.outcome == "not comparable"
    assert found.statement.startswith("1 requests ended without usage")


@pytest.mark.parametrize(
    "untouched",
    [
        refused("a", 4),
        lost("a", 4, ErrorClass.CONNECT_REFUSED, prompt_tokens=None, completion_tokens=None),
        lost("a", 4, ErrorClass.HTTP_413, prompt_tokens=None, completion_tokens=None),
        lost("a", 4, ErrorClass.CLIENT_SATURATED, prompt_tokens=None, completion_tokens=None),
    ],
)
def test_what_was_turned_away_has_no_tokens(untouched: RequestRecord) -> None:
    assert ledger(BEFORE, node(1300, 524, 10), [*RECORDS, untouched]).outcome == "equal"


def test_what_cannot_be_set_against_each_other_says_why() -> None:
    hidden = change(BEFORE, traffic=NotExposed("vllm tells no such thing"))
    for before, after, why in [
        (None, BEFORE, "no snapshot before"),
        (BEFORE, None, "no snapshot after"),
        (BEFORE, hidden, "vllm tells no such thing"),
        (hidden, BEFORE, "vllm tells no such thing"),
        (BEFORE, node(300, 24, 3, uptime=20.0), "started anew"),
    ]:
        found = ledger(before, after, RECORDS)
        assert found.outcome == "not comparable"
        assert why in found.statement


def test_usage_and_text_may_differ_by_the_end_token_alone() -> None:
    counted = [answer("a", 0, counted_tokens=count) for count in (8, 7, 6, 20)]
    found = token_check(
        [*counted, answer("a", 1), answer("a", 2, completion_tokens=None, counted_tokens=1)]
    )
    assert (found.compared, found.differ, found.share, found.worst) == (4, 2, 0.5, 12)
    assert token_check([answer("a", 0)]).share is None


def test_text_read_as_other_tokens_is_no_wrong_usage_a_bias_is() -> None:
    def told(counts: list[int]) -> TokenCheck:
        records = [answer("a", at, counted_tokens=one, tokens=20) for at, one in enumerate(counts)]
        return token_check(records)

    mixed = told([20, 24, 17, 20, 23, 16])
    assert mixed.differ == 4
    assert not mixed.biased
    short = told([14, 15, 14, 15, 20, 14])
    assert short.bias is not None
    assert short.bias < -0.2
    assert short.biased
    assert not told([19] * 6).biased, "the token that ends an answer"
    assert told([]).bias is None
