"""Exact statistics of a run's records. A percentile from too few samples is not given; a failure is never fast."""

from kvops.load.statistics.arrivals import pooled_gaps, token_rates, tokens_between
from kvops.load.statistics.client_health import (
    CPU_BOUND,
    LAG_BOUND,
    SATURATED_SHARE,
    ClientHealth,
    client_health,
    crowd,
    saturation,
)
from kvops.load.statistics.confidence import (
    Claim,
    claim,
    claim_of,
    minimum_samples,
    wilson,
    wilson_lower,
)
from kvops.load.statistics.goodput import (
    Goodput,
    goodput,
    marks,
    objectives,
    unsent,
    value_of,
)
from kvops.load.statistics.ledger import Ledger, TokenCheck, ledger, token_check
from kvops.load.statistics.percentiles import LEAST_SAMPLES, Quantile, Series, quantile, series
from kvops.load.statistics.sequential import first_samples, looks, sequential
from kvops.load.statistics.steadiness import (
    Steadiness,
    WarmUp,
    after_warm_up,
    steadiness,
    warm_up,
)
from kvops.load.statistics.tally import Tally
from kvops.load.statistics.totals import Summary, summarize, tpot, window_seconds
from kvops.load.statistics.trend import Trend, trend

__all__ = [
    "CPU_BOUND",
    "LAG_BOUND",
    "LEAST_SAMPLES",
    "SATURATED_SHARE",
    "Claim",
    "ClientHealth",
    "Goodput",
    "Ledger",
    "Quantile",
    "Series",
    "Steadiness",
    "Summary",
    "Tally",
    "TokenCheck",
    "Trend",
    "WarmUp",
    "after_warm_up",
    "claim",
    "claim_of",
    "client_health",
    "crowd",
    "first_samples",
    "goodput",
    "ledger",
    "looks",
    "marks",
    "minimum_samples",
    "objectives",
    "pooled_gaps",
    "quantile",
    "saturation",
    "sequential",
    "series",
    "steadiness",
    "summarize",
    "token_check",
    "token_rates",
    "tokens_between",
    "tpot",
    "trend",
    "unsent",
    "value_of",
    "warm_up",
    "wilson",
    "wilson_lower",
    "window_seconds",
]
