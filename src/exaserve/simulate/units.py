"""What a cluster file's replicas can do, by the same performance model as the emulator's."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from exaserve.config import Cluster, NodeEntry, Pool, pool_engine_profile
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaSpec
from exaserve.perfmodel import EngineProfile
from exaserve.perfmodel.engine import EngineRequest
from exaserve.perfmodel.runs import RunEngine
from exaserve.workload import Mix

__all__ = ["SimUnit", "profile_of", "replica_capacity_per_s", "units_of"]

_REQUESTS = 600
_IN_REPLICA = (4, 8, 12, 16, 24, 32, 64)
"""Requests a saturated replica holds. Too few leave its batch inefficient, too many make its KV cache thrash."""


@dataclass(frozen=True, slots=True)
class SimUnit:
    """One replica to simulate: how the scheduler knows it, and what it can do.

    Attributes:
        speed: the engine's clock runs this many times faster than the hardware.
        prefix_caching: whether it keeps leading blocks for later prompts.
    """

    spec: ReplicaSpec
    profile: EngineProfile
    speed: float = 1.0
    prefix_caching: bool = True


def profile_of(pool: Pool) -> EngineProfile:
    """The profile of one replica of a pool: measured where it has one. ConfigError where its model does not fit."""
    return pool_engine_profile(pool)


def units_of(cluster: Cluster, replicas: int | None = None) -> list[SimUnit]:
    """The replicas that serve the cluster's first model, of every version.

    Args:
        replicas: so many instead of the file's, on as many nodes as they need.

    Raises:
        ConfigError: there are none, or nothing says what they run.
    """
    if not cluster.pools:
        raise ConfigError("the cluster file names no replicas to simulate; give it a model and its hardware")
    name = cluster.pools[0].served_name
    pools = [pool for pool in cluster.pools if pool.served_name == name]
    units = []
    for pool in pools:
        if not pool.model:
            raise ConfigError("a simulation needs the model of each pool, to know how fast it is", param="model")
        one = _sized(cluster, pool, replicas) if replicas is not None else cluster
        specs = msgspec.structs.replace(one, pools=(pool,)).replicas()[:replicas]
        made = profile_of(pool)
        units += [SimUnit(spec, made, pool.emulator.speed, pool.emulator.prefix_caching) for spec in specs]
        if replicas is not None:
            break
    if not units:
        raise ConfigError("the cluster file names no replicas to simulate")
    return units


def _sized(cluster: Cluster, pool: Pool, replicas: int) -> Cluster:
    """As many nodes as ``replicas`` of the pool need."""
    if not pool.starts_replicas:
        raise ConfigError("--replicas: this cluster's replicas are named one by one; leave the flag out")
    nodes = tuple(
        NodeEntry(name=f"node{k}", address=f"127.{k >> 8}.{k & 255}.1")
        for k in range(1, math.ceil(replicas / pool.num_replicas_per_node) + 1)
    )
    return msgspec.structs.replace(cluster, nodes=nodes)


def replica_capacity_per_s(
    unit: EngineProfile, work: Mix | Sequence[tuple[int, int]], seed: int = 0, speed: float = 1.0
) -> float:
    """Requests per second that one replica completes at most, over how many it may hold at once.

    Args:
        work: a mix, or the (prompt, output) tokens of recorded requests, of which some are drawn.

    It runs without a clock, so that "80 % load" means the same on every machine.
    """
    return max(_throughput_per_s(unit, work, held, seed, speed) for held in _IN_REPLICA)


def _throughput_per_s(
    unit: EngineProfile, work: Mix | Sequence[tuple[int, int]], held: int, seed: int, speed: float
) -> float:
    engine = RunEngine(unit, speed=speed)
    rng = random.Random(seed)
    now, submitted, finished = 0.0, 0, 0
    while finished < _REQUESTS:
        while submitted - finished < held:
            if isinstance(work, Mix):
                scenario = rng.choices(work.scenarios, work.shares())[0]
                prompt, output = scenario.draw_prompt(rng), scenario.output.draw(rng)
            else:
                prompt, output = rng.choice(work)
            engine.submit(EngineRequest(prompt, output), now)
            submitted += 1
        ends_at = engine.begin_run(now)
        assert ends_at is not None, "there is work"
        now = ends_at
        finished += len(engine.end_step(now).finished)
    return finished / now
