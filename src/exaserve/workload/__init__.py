"""What is asked, of what size and when, and how results are condensed: shared by bench and simulator. Pure."""

from exaserve.workload.plan import (
    A9_MIX,
    BYTES_PER_TOKEN,
    HEAD_TOKENS,
    LONG,
    SHORT,
    VERY_LONG,
    Arrivals,
    BodyRenderer,
    Mix,
    OutputLengths,
    Plan,
    PlannedRequest,
    Scenario,
    Sessions,
    make_plan,
    prompt_text,
)
from exaserve.workload.quantiles import Distribution, distribution, percentile

__all__ = [
    "A9_MIX",
    "BYTES_PER_TOKEN",
    "HEAD_TOKENS",
    "LONG",
    "SHORT",
    "VERY_LONG",
    "Arrivals",
    "BodyRenderer",
    "Distribution",
    "Mix",
    "OutputLengths",
    "Plan",
    "PlannedRequest",
    "Scenario",
    "Sessions",
    "distribution",
    "make_plan",
    "percentile",
    "prompt_text",
]
