# compiled
"""Round robin: each allowed replica in turn, whatever it is doing."""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.policies.base import Pick, PolicyContext
from exaserve.scheduling.pool import ModelPool

__all__ = ["RoundRobin"]


class RoundRobin:
    __slots__ = ("_context",)

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        eligible = pool.eligible
        turns = self._context.turns
        turn = turns.get(pool.model, 0)
        for k in range(len(eligible)):
            ledger = eligible[(turn + k) % len(eligible)]
            if ledger.id not in exclude and may_take(ledger, facts):
                turns[pool.model] = (turn + k + 1) % len(eligible)
                return Pick(ledger, 0.0, 0)
        return None
