"""Planning: what a model needs of machines, what they carry, what it costs, and what an engine would say at start-up.

Pure: everything is computed from arguments. The command line reads files and writes them.
"""

from __future__ import annotations

from exaserve.planning.certainty import Band, Certainty, Predicted
from exaserve.planning.cost import Prices
from exaserve.planning.demand import REFERENCE_CLASSES, RequestClass, Targets, TrafficDemand, reference_demand
from exaserve.planning.deploy import cluster_file
from exaserve.planning.engine import EngineVersion, named_engine, parse_engine
from exaserve.planning.explain import Term, explain
from exaserve.planning.fleet import Machines, PlanRequest
from exaserve.planning.logs import Comparison, LogFacts, compare, read_log
from exaserve.planning.memory import MemoryPlan, MemoryRequest, plan_memory
from exaserve.planning.network import LINKS, find_link
from exaserve.planning.options import MeasuredMemory
from exaserve.planning.planner import ClusterPlan, SweepRow, make_plan, sweep
from exaserve.planning.report import memory_dict, plan_dict, sweep_dicts
from exaserve.planning.weights import Parallelism

__all__ = [
    "LINKS",
    "REFERENCE_CLASSES",
    "Band",
    "Certainty",
    "ClusterPlan",
    "Comparison",
    "EngineVersion",
    "LogFacts",
    "Machines",
    "MeasuredMemory",
    "MemoryPlan",
    "MemoryRequest",
    "Parallelism",
    "PlanRequest",
    "Predicted",
    "Prices",
    "RequestClass",
    "SweepRow",
    "Targets",
    "Term",
    "TrafficDemand",
    "cluster_file",
    "compare",
    "explain",
    "find_link",
    "make_plan",
    "memory_dict",
    "named_engine",
    "parse_engine",
    "plan_dict",
    "plan_memory",
    "read_log",
    "reference_demand",
    "sweep",
    "sweep_dicts",
]
