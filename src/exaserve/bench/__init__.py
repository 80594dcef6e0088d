"""Black-box load: workloads, an open-loop client and the statistics of its records."""

from exaserve.bench.client import LoadClient
from exaserve.bench.load import LoadConfig, LoadResult, Progress
from exaserve.bench.record import Ending, Record
from exaserve.bench.stats import ScenarioStats, Summary, WindowStats, summarise
from exaserve.workload import (
    REFERENCE_MIX,
    Arrivals,
    BodyRenderer,
    Distribution,
    LoadPlan,
    Mix,
    OutputLengths,
    PlannedRequest,
    Scenario,
    Sessions,
    distribution,
    make_plan,
    percentile,
)

__all__ = [
    "REFERENCE_MIX",
    "Arrivals",
    "BodyRenderer",
    "Distribution",
    "Ending",
    "LoadClient",
    "LoadConfig",
    "LoadPlan",
    "LoadResult",
    "Mix",
    "OutputLengths",
    "PlannedRequest",
    "Progress",
    "Record",
    "Scenario",
    "ScenarioStats",
    "Sessions",
    "Summary",
    "WindowStats",
    "distribution",
    "make_plan",
    "percentile",
    "summarise",
]
