"""Runs the watches of :mod:`exaserve.agent.slow_faults` over a node's units and tells what they find."""

from __future__ import annotations

from collections.abc import Iterable

from exaserve.agent.meters import Meters
from exaserve.agent.slow_faults import Creep, IdleKv, LogGrowth, LogWrites, WatchFinding
from exaserve.agent.unit import ReplicaUnit
from exaserve.domain.replica import ReplicaId
from exaserve.observe import EventLog
from exaserve.wire import Watch

__all__ = ["Watching"]

_LOOK_S = 1.0


class _Watched:
    def __init__(self) -> None:
        self.creep = Creep()
        self.kv = IdleKv()
        self.log = LogGrowth()
        self.writes = LogWrites()
        self.pid = 0


class Watching:
    """Looks at every unit once a second.

    Attributes:
        findings: what is wrong now, by replica.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._watched: dict[ReplicaId, _Watched] = {}
        self._next = 0.0
        self.findings: dict[ReplicaId, dict[str, str]] = {}

    def look(self, units: Iterable[ReplicaUnit], meters: Meters, now: float) -> None:
        if now < self._next:
            return
        self._next = now + _LOOK_S
        for unit in units:
            engine = unit.engine
            if engine is None or not engine.pid:
                continue
            replica = unit.spec.id
            watched = self._watched.setdefault(replica, _Watched())
            if watched.pid != engine.pid:
                watched.pid = engine.pid
                watched.creep.reset()
            self._tell(replica, watched.log.sampled(engine.log_bytes, now))
            self._tell(replica, watched.writes.sampled(engine.log_problem))
            if unit.serving and (sample := unit.sampler.last) is not None:
                report = sample.report
                self._tell(replica, watched.kv.sampled(report.running, report.waiting, report.kv_use, now))
            memory = meters.memory.pop(replica, None)
            if memory is not None:
                self._tell(replica, watched.creep.sampled(memory, now))
            if watched.creep.due(now):
                meters.want_memory(replica, engine.pids())

    def forget(self, replica: ReplicaId) -> None:
        """It is no unit of this node any more."""
        self._watched.pop(replica, None)
        self.findings.pop(replica, None)

    def _tell(self, replica: ReplicaId, finding: WatchFinding | None) -> None:
        if finding is None:
            return
        level = "warning" if finding.bad else "info"
        self._log.event(level, finding.what, replica=replica, bad=finding.bad, detail=finding.detail)
        mine = self.findings.setdefault(replica, {})
        if finding.bad:
            mine[finding.what] = finding.detail
        else:
            mine.pop(finding.what, None)

    def wrong(self) -> tuple[Watch, ...]:
        """What is wrong now."""
        return tuple(
            Watch(replica, name, detail) for replica, found in self.findings.items() for name, detail in found.items()
        )

    def slopes(self) -> dict[str, float]:
        """Growth of engines' memory, MB/h, where it is known."""
        return {
            replica: round(watched.creep.slope_mb_per_h, 1)
            for replica, watched in self._watched.items()
            if watched.creep.slope_mb_per_h
        }
