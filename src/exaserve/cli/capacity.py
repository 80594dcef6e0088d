"""What a cluster of emulated replicas can do at most with a mix of requests, found in virtual time."""

from __future__ import annotations

from exaserve.config import Pool
from exaserve.simulate import units
from exaserve.workload import Mix

__all__ = ["replica_capacity_per_s"]


def replica_capacity_per_s(pool: Pool, mix: Mix, seed: int = 0) -> float:
    """Requests per second that one replica of the pool completes at most."""
    return units.replica_capacity_per_s(units.profile_of(pool), mix, seed, pool.emulator.speed)
