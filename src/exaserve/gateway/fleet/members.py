"""The door through which replicas come, change and go: the fleet, their pollers and their connections in one step."""

from __future__ import annotations

from collections.abc import Callable

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.gateway.http.pool import UpstreamPool
from exaserve.serving.fleet import Fleet

__all__ = ["Members"]


class Members:
    """For the cluster file, agents and registries alike.

    Args:
        pool: connections to replicas.
        clock: monotonic seconds.
    """

    def __init__(self, fleet: Fleet, telemetry: Telemetry, pool: UpstreamPool, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._telemetry = telemetry
        self._pool = pool
        self._clock = clock
        self.on_join: Callable[[ReplicaId], object] = str
        """Told of each replica that has come, or is back in rotation: what operators decided of it holds again."""

    def joined(self, spec: ReplicaSpec) -> None:
        """It takes requests once a probe has gone well. ValueError where its id is taken."""
        self._fleet.add(spec, self._clock())
        self._telemetry.add(spec)
        self.on_join(spec.id)

    def back(self, replica: ReplicaId) -> None:
        """It was out of rotation at its agent's word, and is so no longer."""
        self._fleet.scheduler.undrain(replica)
        self.on_join(replica)

    def left(self, replica: ReplicaId) -> None:
        """Nothing is kept of it; what is in flight there ends in peace. KeyError for an unknown replica."""
        self._fleet.remove(replica)
        self._telemetry.remove(replica)
        self._pool.forget(replica)

    def changed(self, old: ReplicaSpec, new: ReplicaSpec) -> None:
        """Another address or engine is another replica under the old name; all else is only a new description."""
        if (old.url, old.engine) != (new.url, new.engine):
            self.left(old.id)
            self.joined(new)
        else:
            self._fleet.update(new)
