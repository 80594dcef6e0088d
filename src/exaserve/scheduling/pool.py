# compiled
"""The replicas that can answer for one model, with the consistent-hashing ring over them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from exaserve.domain.replica import ReplicaId
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.idle import IdleSet
from exaserve.scheduling.learning import ModelStats
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.rejections import Rejections

__all__ = ["HashRing", "ModelPool", "session_hash"]


def session_hash(key: str) -> int:
    """64-bit hash of an affinity key, the same in every gateway and every run."""
    return int.from_bytes(blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


_REPLICA_BITS = 20
"""Low bits of a point on the ring that number its replica; the others are its place, 44 bits of a hash."""


class HashRing:
    """Consistent hashing with virtual nodes. Adding or removing one of N replicas moves 1/N of the keys.

    A point is one integer, place and number of its replica, so that hundreds of thousands are sorted in no time.
    """

    __slots__ = ("_names", "_numbers", "_points", "_vnodes")

    def __init__(self, vnodes: int) -> None:
        self._vnodes = vnodes
        self._points: list[int] = []
        self._names: list[ReplicaId] = []
        self._numbers: dict[ReplicaId, int] = {}

    def add(self, replica: ReplicaId) -> None:
        self.fill([replica])

    def fill(self, replicas: Iterable[ReplicaId]) -> None:
        """Add many at once: sorted once, not inserted one by one."""
        for replica in replicas:
            number = self._numbers.get(replica)
            if number is None:
                number = self._numbers[replica] = len(self._names)
                self._names.append(replica)
            self._points += self._of(replica, number)
        self._points.sort()

    def _of(self, replica: ReplicaId, number: int) -> list[int]:
        """One hash gives eight points."""
        points: list[int] = []
        for k in range(0, self._vnodes, 8):
            digest = blake2b(f"{replica}#{k}".encode("utf-8", "surrogatepass"), digest_size=64).digest()
            for at in range(0, 8 * min(8, self._vnodes - k), 8):
                place = int.from_bytes(digest[at : at + 8], "big")
                points.append(place >> _REPLICA_BITS << _REPLICA_BITS | number)
        return points

    def remove(self, replica: ReplicaId) -> None:
        number = self._numbers.pop(replica)
        mask = (1 << _REPLICA_BITS) - 1
        self._points = [p for p in self._points if p & mask != number]
        if len(self._names) > 2 * len(self._numbers) + 64:
            kept = list(self._numbers)
            self._points, self._names, self._numbers = [], [], {}
            self.fill(kept)

    def walk(self, key_hash: int) -> Iterator[ReplicaId]:
        """Every replica once, in ring order from the key's place."""
        points, names = self._points, self._names
        mask = (1 << _REPLICA_BITS) - 1
        start = bisect_left(points, key_hash)
        seen: set[int] = set()
        for k in range(len(points)):
            number = points[(start + k) % len(points)] & mask
            if number not in seen:
                seen.add(number)
                yield names[number]


class ModelPool:
    """Members of one model's pool.

    Attributes:
        members: every replica that serves the model, up or down, in order of joining.
        eligible: those that may take requests in principle, read by policies; rebuilt at the first look after a
            change, so that thousands of replicas that join at once cost one rebuild and not one each.
        penalty_min: the least penalty of those, whose share of traffic is the largest.
        uneven: not all of them have the same share.
        rejections: which of them reject what their peers accept.
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
        "penalty_min",
        "rejections",
        "stats",
        "uneven",
        "version",
    )

    def __init__(self, model: str, config: SchedulerConfig) -> None:
        self.model = model
        self.rejections = Rejections(config.reject_shun_s, config.reject_shun_max_s)
        self.members: dict[ReplicaId, ReplicaLedger] = {}
        self.by_index: dict[int, ReplicaLedger] = {}
        self._eligible: list[ReplicaLedger] | None = []
        self.idle: list[IdleSet[ReplicaLedger]] = []
        self.inflight = 0
        self.penalty_min = 1.0
        self.uneven = False
        self.stats = ModelStats()
        self.version = 0
        self._ring_vnodes = config.ring_vnodes
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
        self.rejections.forgive(replica)
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
            penalties = [s.penalty for s in eligible]
            self.penalty_min = min(penalties, default=1.0)
            self.uneven = self.penalty_min < max(penalties, default=1.0)
            self.version += 1
        return eligible


def _away(idle: IdleSet[ReplicaLedger]) -> bool:
    return not idle.home
