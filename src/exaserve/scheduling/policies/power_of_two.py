# compiled
"""Power of two choices: of two allowed replicas drawn at random, the one with fewer requests in flight."""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.policies.base import Pick, PolicyContext, allowed
from exaserve.scheduling.pool import ModelPool

__all__ = ["PowerOfTwo"]


def _load(ledger: ReplicaLedger) -> float:
    return (ledger.inflight + ledger.seen.foreign_running + ledger.seen.foreign_waiting + 1) * ledger.penalty


class PowerOfTwo:
    __slots__ = ("_rng",)

    def __init__(self, context: PolicyContext) -> None:
        self._rng = context.rng

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        eligible = pool.eligible
        if not eligible:
            return None
        rng = self._rng
        a, b = eligible[int(rng.random() * len(eligible))], eligible[int(rng.random() * len(eligible))]
        drawn = [s for s in (a, b) if s.id not in exclude and may_take(s, facts)]
        if not drawn:
            drawn = allowed(pool, facts, exclude)
            if not drawn:
                return None
            drawn = [rng.choice(drawn), rng.choice(drawn)]
        return Pick(min(drawn, key=_load), 0.0, 0)
