"""Black-box load: workloads, an open-loop client and the statistics of its records."""

from exaserve.bench.client import LoadClient, LoadConfig, LoadResult, Progress
from exaserve.bench.record import Record, Verdict
from exaserve.bench.stats import Distribution, ScenarioStats, Summary, WindowStats, distribution, percentile, summarise
from exaserve.bench.workload import (
    A9_MIX,
    Arrivals,
    BodyRenderer,
    Mix,
    OutputLengths,
    Plan,
    PlannedRequest,
    Scenario,
    Sessions,
    make_plan,
)

__all__ = [
    "A9_MIX",
    "Arrivals",
    "BodyRenderer",
    "Distribution",
    "LoadClient",
    "LoadConfig",
    "LoadResult",
    "Mix",
    "OutputLengths",
    "Plan",
    "PlannedRequest",
    "Progress",
    "Record",
    "Scenario",
    "ScenarioStats",
    "Sessions",
    "Summary",
    "Verdict",
    "WindowStats",
    "distribution",
    "make_plan",
    "percentile",
    "summarise",
]
