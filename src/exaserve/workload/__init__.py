"""What is asked, of what size and when, and how results are condensed: shared by bench and simulator. Pure."""

from exaserve.workload.arrivals import DAY, ArrivalKind, Arrivals
from exaserve.workload.mixes import MIXES, parse_mix
from exaserve.workload.plan import (
    HEAD_TOKENS,
    LONG,
    REFERENCE_MIX,
    SHORT,
    VERY_LONG,
    Conversations,
    LoadPlan,
    Mix,
    OutputLengths,
    PlannedRequest,
    Scenario,
    Sessions,
    make_plan,
    prefix_parts,
)
from exaserve.workload.prompts import BYTES_PER_TOKEN, BodyRenderer, Words, prompt_text
from exaserve.workload.quantiles import Distribution, distribution, percentile
from exaserve.workload.traces import TraceRow, detect_format, plan_from_rows, read_rows

__all__ = [
    "BYTES_PER_TOKEN",
    "DAY",
    "HEAD_TOKENS",
    "LONG",
    "MIXES",
    "REFERENCE_MIX",
    "SHORT",
    "VERY_LONG",
    "ArrivalKind",
    "Arrivals",
    "BodyRenderer",
    "Conversations",
    "Distribution",
    "LoadPlan",
    "Mix",
    "OutputLengths",
    "PlannedRequest",
    "Scenario",
    "Sessions",
    "TraceRow",
    "Words",
    "detect_format",
    "distribution",
    "make_plan",
    "parse_mix",
    "percentile",
    "plan_from_rows",
    "prefix_parts",
    "prompt_text",
    "read_rows",
]
