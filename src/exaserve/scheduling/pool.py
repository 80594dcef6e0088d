# compiled
"""The replicas that can answer for one model, with the consistent-hashing ring over them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from exaserve.domain.replica import ReplicaId
from exaserve.scheduling.idle import IdleSet
from exaserve.scheduling.learning import ModelStats
from exaserve.scheduling.ledger import ReplicaLedger

__all__ = ["HashRing", "ModelPool", "session_hash"]


def session_hash(key: str) -> int:
    """64-bit hash of an affinity key, the same in every gateway and every run."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class HashRing:
    """Consistent hashing with virtual nodes. Adding or removing one of N replicas moves 1/N of the keys."""

    __slots__ = ("_points", "_vnodes")

    def __init__(self, vnodes: int) -> None:
        self._vnodes = vnodes
        self._points: list[tuple[int, ReplicaId]] = []

    def add(self, replica: ReplicaId) -> None:
        for point in self._of(replica):
            insort(self._points, point)

    def fill(self, replicas: Iterable[ReplicaId]) -> None:
        """Add many at once: sorted once, not inserted one by one."""
        for replica in replicas:
            self._points += self._of(replica)
        self._points.sort()

    def _of(self, replica: ReplicaId) -> list[tuple[int, ReplicaId]]:
        return [(session_hash(f"{replica}#{k}"), replica) for k in range(self._vnodes)]

    def remove(self, replica: ReplicaId) -> None:
        self._points = [p for p in self._points if p[1] != replica]

    def walk(self, key_hash: int) -> Iterator[ReplicaId]:
        """Every replica once, in ring order from the key's place."""
        points = self._points
        start = bisect_left(points, (key_hash, ReplicaId("")))
        seen: set[ReplicaId] = set()
        for k in range(len(points)):
            replica = points[(start + k) % len(points)][1]
            if replica not in seen:
                seen.add(replica)
                yield replica


class ModelPool:
    """Members of one model's pool.

    Attributes:
        members: every replica that serves the model, up or down, in order of joining.
        eligible: those that may take requests in principle, read by policies; rebuilt at the first look after a
            change, so that thousands of replicas that join at once cost one rebuild and not one each.
        idle: where its idle replicas stand, home first; one or two where all serve the same models.
        inflight: this pool's placements not yet released, count.
    """

    __slots__ = (
        "_eligible",
        "_ring",
        "_ring_vnodes",
        "by_index",
        "idle",
        "inflight",
        "members",
        "model",
        "stats",
        "version",
    )

    def __init__(self, model: str, ring_vnodes: int) -> None:
        self.model = model
        self.members: dict[ReplicaId, ReplicaLedger] = {}
        self.by_index: dict[int, ReplicaLedger] = {}
        self._eligible: list[ReplicaLedger] | None = []
        self.idle: list[IdleSet[ReplicaLedger]] = []
        self.inflight = 0
        self.stats = ModelStats()
        self.version = 0
        self._ring_vnodes = ring_vnodes
        self._ring: HashRing | None = None

    @property
    def ring(self) -> HashRing:
        """Built when a policy first asks for it; members join and leave it afterwards."""
        if self._ring is None:
            self._ring = HashRing(self._ring_vnodes)
            self._ring.fill(self.members)
        return self._ring

    def add(self, ledger: ReplicaLedger) -> None:
        self.members[ledger.id] = ledger
        self.by_index[ledger.index] = ledger
        if self._ring is not None:
            self._ring.add(ledger.id)
        self.changed()

    def remove(self, replica: ReplicaId) -> None:
        ledger = self.members.pop(replica)
        self.by_index.pop(ledger.index, None)
        if self._ring is not None:
            self._ring.remove(replica)
        self.changed()

    def changed(self) -> None:
        """A member's availability, weight or drain state changed: ``eligible`` is rebuilt when it is next read.

        Thousands of replicas that come up one by one would otherwise rebuild it thousands of times.
        """
        self._eligible = None

    @property
    def eligible(self) -> list[ReplicaLedger]:
        """Members that may take requests in principle, in order of joining."""
        eligible = self._eligible
        if eligible is None:
            eligible = self._eligible = [s for s in self.members.values() if s.eligible]
            sets = {id(s.idle_set): s.idle_set for s in eligible if s.idle_set is not None}
            self.idle = sorted(sets.values(), key=_away)
            self.version += 1
        return eligible


def _away(idle: IdleSet[ReplicaLedger]) -> bool:
    return not idle.home
