"""Small clusters and loads for simulations that take a fraction of a second."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from exaserve.config import Cluster
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.perfmodel import EngineProfile
from exaserve.scheduling import SchedulerConfig
from exaserve.simulate.demand import SimDemand, demand
from exaserve.simulate.record import RunStats
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import Simulation
from exaserve.simulate.units import SimUnit
from exaserve.workload import REFERENCE_MIX, Mix, OutputLengths, Scenario

MODEL = "m"
PROFILE = EngineProfile(
    prefill_tokens_per_s=20_000.0,
    decode_fixed_s=0.01,
    decode_per_seq_s=1e-5,
    decode_per_kv_token_s=1e-8,
    kv_tokens_max=400_000,
    kv_bytes_per_token=1e5,
    max_model_len=32_768,
    overhead_s=0.001,
)
SHORT = Mix(((Scenario("S", 64, OutputLengths("fixed", 16.0)), 1.0),))


def units(count: int, profile: EngineProfile = PROFILE, **spec: Any) -> list[SimUnit]:
    return [
        SimUnit(ReplicaSpec(ReplicaId(f"node{k // 4}/r{k % 4}"), f"http://10.0.0.{k}", (MODEL,), **spec), profile)
        for k in range(count)
    ]


def cluster(**scheduling: Any) -> Cluster:
    return Cluster(scheduling=dataclasses.replace(SchedulerConfig(), **scheduling))


def with_telemetry(made: Cluster, interval_s: float) -> Cluster:
    return msgspec.structs.replace(made, telemetry=msgspec.structs.replace(made.telemetry, interval_s=interval_s))


def build(
    count: int = 8,
    rate: float = 30.0,
    seconds: float = 6.0,
    policy: str = "entropy",
    mix: Mix = REFERENCE_MIX,
    seed: int = 1,
    made: Cluster | None = None,
    **settings: Any,
) -> Simulation:
    settings.setdefault("warmup_s", 0.0)
    settings.setdefault("window_s", 1.0)
    wanted: SimDemand = demand(mix, rate, seconds, seed)
    return Simulation(made or cluster(), units(count), wanted, SimSettings(seed=seed, **settings), policy)


def run(*args: Any, **kwargs: Any) -> tuple[Simulation, RunStats]:
    simulation = build(*args, **kwargs)
    return simulation, simulation.run()
