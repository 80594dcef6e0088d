"""Black-box load: workloads, an open-loop client and the statistics of its records."""

from exaserve.bench.client import LoadClient
from exaserve.bench.load import LoadConfig, LoadResult, Progress
from exaserve.bench.record import Record, Verdict
from exaserve.bench.stats import ScenarioStats, Summary, WindowStats, summarise
from exaserve.workload import (
    A9_MIX,
    Arrivals,
    BodyRenderer,
    Distribution,
    Mix,
    OutputLengths,
    Plan,
    PlannedRequest,
    Scenario,
    Sessions,
    distribution,
    make_plan,
    percentile,
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
