"""Every check there is, in the order of the simplest cause first. A new check is one more line here."""

from __future__ import annotations

from kvops.verify.check import Check
from kvops.verify.checks.alerts import DRILL
from kvops.verify.checks.alive import TRUTH
from kvops.verify.checks.auth import DEFAULT_DENY
from kvops.verify.checks.auth_control import CONTROL as SHUT_CONTROL
from kvops.verify.checks.auth_routes import ROUTES
from kvops.verify.checks.claims import QUEUE_BOUND, RETRY_AFTER
from kvops.verify.checks.claims_deadline import DEADLINE
from kvops.verify.checks.claims_tenants import QUOTA
from kvops.verify.checks.disconnect import FREES
from kvops.verify.checks.errors import ERRORS
from kvops.verify.checks.gateway import GATEWAY
from kvops.verify.checks.isolation import PREFIX_ISOLATION
from kvops.verify.checks.kv_cache import EMPTY_AFTER, EVICTIONS
from kvops.verify.checks.ledger import LEDGER
from kvops.verify.checks.limits import NEAR_LIMIT, OVER_LENGTH
from kvops.verify.checks.load import CONCURRENCY
from kvops.verify.checks.log_prompts import NO_PROMPTS
from kvops.verify.checks.logs import CLEAN
from kvops.verify.checks.malformed import MALFORMED
from kvops.verify.checks.memory import ADDS_UP
from kvops.verify.checks.metrics import CONTRACT
from kvops.verify.checks.performance import RATE_BY_LENGTH, TTFT_BY_LENGTH
from kvops.verify.checks.reach import HEALTH
from kvops.verify.checks.recall import CONTROL, GRID
from kvops.verify.checks.recall_load import UNDER_LOAD
from kvops.verify.checks.recovery import RECOVERS
from kvops.verify.checks.resources import GROWTH, MEMORY_PEAK
from kvops.verify.checks.responses import MULTI_TURN, SHORT
from kvops.verify.checks.stability import INJECTION, SOAK
from kvops.verify.checks.streams import STREAM
from kvops.verify.checks.truth import TTFT_TRUTH
from kvops.verify.checks.usage import USAGE

CHECKS: tuple[Check, ...] = (
    HEALTH,
    GATEWAY,
    TRUTH,
    SHORT,
    STREAM,
    USAGE,
    NEAR_LIMIT,
    MULTI_TURN,
    OVER_LENGTH,
    ERRORS,
    MALFORMED,
    CONTRACT,
    ADDS_UP,
    FREES,
    DEFAULT_DENY,
    ROUTES,
    SHUT_CONTROL,
    QUEUE_BOUND,
    RETRY_AFTER,
    DEADLINE,
    QUOTA,
    PREFIX_ISOLATION,
    DRILL,
    TTFT_BY_LENGTH,
    RATE_BY_LENGTH,
    TTFT_TRUTH,
    CONCURRENCY,
    LEDGER,
    EMPTY_AFTER,
    EVICTIONS,
    MEMORY_PEAK,
    RECOVERS,
    SOAK,
    GROWTH,
    GRID,
    CONTROL,
    UNDER_LOAD,
    INJECTION,
    NO_PROMPTS,
    CLEAN,
)
