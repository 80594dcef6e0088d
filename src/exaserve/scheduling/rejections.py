# compiled
"""Replicas that answer 4xx where their peers do not.

A replica without a chat template answers every chat with 400, at once, so that it is always the least loaded and gets
nearly all of them. A 4xx says nothing of a replica by itself: it is the client's error as long as all peers say it
too. So answers are counted per kind of request, and a replica is *shunned* for a kind where it rejects most of what it
gets, several at least, and its peers have rejected none, or far less (it is three standard deviations beyond their
share). It may be that the peers have not been asked yet: then good answers of theirs confirm it, however few they are,
and only rejections of theirs end it. For other kinds of requests it stays as good as any.

Shunned replicas are tried again: by a probe of that kind (:meth:`Rejections.forgive`), or by a client's request once
their time is over. That time doubles while they go on rejecting, and is put off while probes are rejected too
(:meth:`Rejections.postpone`).
"""

from __future__ import annotations

import math
from collections.abc import Collection

from exaserve.domain.replica import ReplicaId

__all__ = ["Rejections"]

_REJECTED_MIN = 3
_PEERS_MIN = 3
"""Answers of peers below which nothing is known of their share."""
_WINDOW = 256
"""Answers of one kind after which earlier ones have lost half their weight."""
_KINDS_MAX = 64


class _Count:
    """One replica's answers of one kind. ``shun_s``: for how long it was last shunned for it, 0 where it is cleared."""

    __slots__ = ("answered", "rejected", "shun_s")

    def __init__(self) -> None:
        self.answered = 0.0
        self.rejected = 0.0
        self.shun_s = 0.0


class _Kind:
    """All replicas' answers to one kind of request, from the first rejection on."""

    __slots__ = ("answered", "counts", "rejected")

    def __init__(self) -> None:
        self.answered = 0.0
        self.rejected = 0.0
        self.counts: dict[ReplicaId, _Count] = {}

    def differs(self, count: _Count) -> bool:
        """Whether this replica rejects what its peers do not."""
        rejected, answered = count.rejected, count.answered
        if rejected < _REJECTED_MIN or rejected < 0.5 * answered:
            return False
        peers, peers_rejected = self.answered - answered, self.rejected - rejected
        # Peers that only accept are no reason for doubt: were few good answers less than none, they would take back
        # what had been judged before them, and the next rejection would meet a client, however much later.
        if peers < _PEERS_MIN or peers_rejected < 0.5:
            return True
        share = (peers_rejected + 0.5) / (peers + 1.0)
        deviation = math.sqrt(answered * share * (1.0 - share))
        return rejected - answered * share >= 2.0 + 3.0 * deviation

    def fade(self, shunned: Collection[ReplicaId]) -> None:
        """Halve what was counted, but not of those that get nothing that could be counted."""
        for replica, count in self.counts.items():
            if replica not in shunned:
                self.answered -= 0.5 * count.answered
                self.rejected -= 0.5 * count.rejected
                count.answered *= 0.5
                count.rejected *= 0.5


class Rejections:
    """One pool's. Nothing is kept of kinds that nobody rejects.

    Attributes:
        shunned: replicas to leave alone by kind of request, until when (monotonic seconds).
    """

    __slots__ = ("_kinds", "_shun_max_s", "_shun_s", "shunned")

    def __init__(self, shun_s: float, shun_max_s: float) -> None:
        self._shun_s = shun_s
        self._shun_max_s = shun_max_s
        self._kinds: dict[str, _Kind] = {}
        self.shunned: dict[str, dict[ReplicaId, float]] = {}

    def __bool__(self) -> bool:
        """Whether answers need to be counted at all."""
        return bool(self._kinds)

    def answered(self, route: str, replica: ReplicaId, now: float, rejected: bool, members: int) -> None:
        """A replica of ``members`` has answered a request, with 4xx or not."""
        kind = self._kinds.get(route)
        if kind is None:
            if not rejected or not route or len(self._kinds) >= _KINDS_MAX:
                return
            kind = self._kinds[route] = _Kind()
        count = kind.counts.get(replica)
        if count is None:
            count = kind.counts[replica] = _Count()
        kind.answered += 1.0
        count.answered += 1.0
        if rejected:
            kind.rejected += 1.0
            count.rejected += 1.0
            self._judge(route, kind, replica, count, now, members)
        elif count.shun_s:
            count.shun_s = 0.0
            self._release(route, replica)
        if route in self.shunned:
            self._reconsider(route, kind)
        if kind.answered > _WINDOW:
            kind.fade(self.shunned.get(route, ()))
            if kind.rejected < 0.5 and route not in self.shunned:
                del self._kinds[route]

    def _judge(self, route: str, kind: _Kind, replica: ReplicaId, count: _Count, now: float, members: int) -> None:
        """Shuns the replica where it differs; never more than half of the pool."""
        shunned = self.shunned.get(route, {})
        if replica in shunned or 2 * (len(shunned) + 1) > members or not kind.differs(count):
            return
        count.shun_s = min(max(2.0 * count.shun_s, self._shun_s), self._shun_max_s)
        self.shunned[route] = shunned | {replica: now + count.shun_s}

    def _reconsider(self, route: str, kind: _Kind) -> None:
        """Takes back what peers' answers have shown to be the clients' error."""
        for replica in list(self.shunned[route]):
            count = kind.counts[replica]
            if not kind.differs(count):
                count.shun_s = 0.0
                self._release(route, replica)

    def _release(self, route: str, replica: ReplicaId) -> None:
        shunned = self.shunned.get(route)
        if shunned is not None:
            shunned.pop(replica, None)
            if not shunned:
                del self.shunned[route]

    def avoid(self, route: str, now: float) -> dict[ReplicaId, float]:
        """The replicas to leave alone for this kind of request. Those whose time is over may be tried once more."""
        shunned = self.shunned.get(route, {})
        over = [replica for replica, until in shunned.items() if until <= now]
        for replica in over:
            kind = self._kinds[route]
            count = kind.counts[replica]
            # One more rejection will shun it again, for twice as long; one good answer clears it.
            kind.answered -= count.answered
            kind.rejected -= count.rejected
            count.answered = count.rejected = _REJECTED_MIN - 1.0
            kind.answered += count.answered
            kind.rejected += count.rejected
            self._release(route, replica)
        return shunned

    def postpone(self, replica: ReplicaId, route: str, until: float) -> None:
        """Leave it alone until then at least: a probe was rejected too. Nothing where it is not shunned any more."""
        shunned = self.shunned.get(route, {})
        if replica in shunned:
            shunned[replica] = max(shunned[replica], until)

    def forgive(self, replica: ReplicaId, route: str | None = None) -> None:
        """Forget what the replica rejected, of one kind or all: it has answered a probe well, or left, or restarted."""
        for name in [route] if route is not None else list(self._kinds):
            kind = self._kinds.get(name)
            count = kind.counts.pop(replica, None) if kind is not None else None
            if kind is not None and count is not None:
                kind.answered -= count.answered
                kind.rejected -= count.rejected
                self._release(name, replica)

    def validate(self) -> None:
        assert len(self._kinds) <= _KINDS_MAX
        for route, kind in self._kinds.items():
            assert abs(kind.answered - sum(c.answered for c in kind.counts.values())) < 1e-6
            assert abs(kind.rejected - sum(c.rejected for c in kind.counts.values())) < 1e-6
            assert self.shunned.get(route, {}).keys() <= kind.counts.keys()
        assert all(self.shunned.values())
        assert self.shunned.keys() <= self._kinds.keys()
