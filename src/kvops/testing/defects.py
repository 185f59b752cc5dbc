"""What can be wrong with a node, by name: what it breaks, and which check of the gate must fail for it.

The matrix in docs/gate.md is this table, and a test holds each row to be true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvops.errors import UsageError


@dataclass(frozen=True)
class Defect:
    name: str
    breaks: str
    """What a node with it does, in words."""
    check: str
    """The id of the check that must fail."""
    says: str = ""
    """Words of what the check then observes."""
    outside: bool = False
    """A proxy before any node can have it too."""
    keys: bool = False
    """It only shows on a node with API keys."""


DEFECTS: tuple[Defect, ...] = (
    Defect("hangs", "takes requests and computes nothing; its liveness says so after a while",
           "reach.health", "no answer"),
    Defect("not_ready", "never says that it is ready", "reach.health", "503", outside=True),
    Defect("stalled", "says that it makes no progress", "reach.health", "/livez", outside=True),
    Defect("healthy_while_hung", "health says 200 while no token comes", "health.truth", outside=True),
    Defect("empty", "answers without a word", "resp.short", "empty text", outside=True),
    Defect("odd_finish", "gives a finish_reason of its own", "resp.short", "gave_up", outside=True),
    Defect("wrong_usage", "total_tokens is not prompt + completion", "resp.short", "total", outside=True),
    Defect("miscounted_usage", "usage adds up and counts other tokens than there are", "resp.usage", outside=True),
    Defect("no_done", "streams end without [DONE]", "resp.stream", "no [DONE]", outside=True),
    Defect("no_usage_chunk", "streams bring no usage though it was asked for",
           "resp.stream", "no usage chunk", outside=True),
    Defect("stream_differs", "streams another text than it answers without streaming",
           "resp.stream", "differs", outside=True),
    Defect("endless_stream", "streams that do not end at max_tokens, or at all", "resp.stream", outside=True),
    Defect("drops_turns", "reads only the last message of a chat",
           "resp.multi_turn", "prompt tokens in turn two", outside=True),
    Defect("overstated_limit", "lists a longer limit than it accepts", "resp.near_limit", outside=True),
    Defect("silent_truncation", "cuts what is too long and answers without a mark",
           "resp.over_length", "without a mark", outside=True),
    Defect("accepts_over_length", "answers what is too long, as if read whole",
           "resp.over_length", "without a mark", outside=True),
    Defect("no_numbers", "refuses what is too long without saying by how much",
           "resp.over_length", "limit None", outside=True),
    Defect("dies_of_over_length", "its engine dies of a prompt that is too long", "resp.over_length", "restarts"),
    Defect("server_error_for_bad_json", "answers 500 to malformed JSON",
           "resp.errors", "malformed JSON: status 500", outside=True),
    Defect("any_model", "answers whatever model is asked for",
           "resp.errors", "unknown model: status 200", outside=True),
    Defect("any_field", "passes over fields that it does not know",
           "resp.errors", "unknown field: status 200", outside=True),
    Defect("dies_of_malformed", "its engine dies of malformed input", "resp.malformed"),
    Defect("no_metrics", "has no /metrics", "metrics.contract", "404", outside=True),
    Defect("missing_family", "lacks a metric that was promised",
           "metrics.contract", "kvops_kv_blocks is missing", outside=True),
    Defect("wrong_type", "says of a counter that it is a gauge",
           "metrics.contract", "kvops_preemptions_total", outside=True),
    Defect("duplicate_series", "states a series twice",
           "metrics.contract", "kvops_engine_up is stated twice", outside=True),
    Defect("frozen_counters", "counters that do not move", "metrics.contract", "grew by 0", outside=True),
    Defect("no_rejections", "does not count what it refuses", "metrics.contract",
           "kvops_request_rejections_total grew by 0", outside=True),
    Defect("ledger_off", "memory accounts that do not sum to the total", "memory.adds_up", "accounts sum to"),
    Defect("lost_block", "a block that is neither used nor cached nor free", "memory.adds_up", "blocks, the pool has"),
    Defect("holds_blocks", "holds blocks though nothing runs",
           "memory.adds_up", "2 blocks are held though nothing runs"),
    Defect("broken_invariant", "found its block pool broken", "memory.adds_up", "1 invariant violations"),
    Defect("thrashes", "throws cached blocks out all the time", "memory.evictions"),
    Defect("memory_full", "fills the device's memory to 97 %", "resources.memory_peak"),
    Defect("eats_memory", "keeps 64 KiB of memory of every request",
           "resources.growth", "daemon memory +"),
    Defect("leaks_block_per_request", "keeps a block of each request for ever", "kv.empty_after", "KV in use is"),
    Defect("leaks_after_disconnect", "works on for clients that have hung up", "disconnect.frees", "stream: running"),
    Defect("prompts_in_logs", "writes prompts into its log", "logs.no_prompts"),
    Defect("allocation_errors", "logs blocks that could not be allocated", "logs.clean"),
    Defect("retry_storm", "tries again and again, by its log", "logs.clean"),
    Defect("unbounded_queue", "takes more waiting requests than it says", "claims.queue_bound"),
    Defect("no_retry_after", "refuses without saying when to come back",
           "claims.retry_after", "without a usable Retry-After", outside=True),
    Defect("ignores_deadline", "lets requests wait and run past their deadlines", "claims.deadline"),
    Defect("ignores_quota", "a tenant gets more than its quota", "claims.tenant_quota", keys=True),
    Defect("cross_tenant_hits", "a tenant meets another's prompts",
           "claims.prefix_isolation", "another tenant found", outside=True, keys=True),
    Defect("open_control", "its control plane takes anybody for the operator", "auth.control"),
    Defect("open_invocations", "answers at /invocations without a key", "auth.default_deny", "/invocations", keys=True),
    Defect("open_tokenize", "counts tokens at /tokenize without a key", "auth.routes", "/tokenize", keys=True),
    Defect("open_server_info", "shows its settings at /get_server_info without a key",
           "auth.routes", "/get_server_info", keys=True),
    Defect("alert_not_delivered", "says that an alert was delivered, and nobody was told", "alerts.drill"),
    Defect("wrong_beyond_length", "finds nothing in long prompts", "recall.grid", outside=True),
    Defect("answers_of_others", "answers with a number of another request", "recall.control"),
    Defect("wrong_under_load", "finds nothing while it is busy", "recall.under_load"),
    Defect("ttft_cliff", "takes far longer for the first token above a length",
           "perf.ttft_by_length", "first token", outside=True),
    Defect("slow_when_long", "generates far slower above a length", "perf.rate_by_length", "token"),
    Defect("role_first_token", "counts a role without a word as the first token", "perf.ttft_truth"),
    Defect("serves_one_by_one", "serves requests one after the other", "load.concurrency"),
    Defect("no_recovery", "stays slow after an overload", "load.recovers"),
    Defect("loses_counts", "forgets to count one request in ten", "load.ledger", "/metrics counts"),
    Defect("slows_down", "gets slower with every request", "load.soak"),
    Defect("dies_under_injection", "its engine dies of every fourth wrong request", "stability.injection"),
)  # fmt: skip

BY_NAME = {defect.name: defect for defect in DEFECTS}


def check_names(names: Iterable[str], known: Iterable[str] = BY_NAME) -> frozenset[str]:
    """Raises UsageError for a name that is no defect."""
    found, there = frozenset(names), frozenset(known)
    if unknown := found - there:
        raise UsageError(
            f"no defect {sorted(unknown)[0]!r}", hint=f"there are: {', '.join(sorted(there))}"
        )
    return found
