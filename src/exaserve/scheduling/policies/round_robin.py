# compiled
"""Round robin: each allowed replica in turn, whatever it is doing."""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.policies.base import Choice, PolicyContext
from exaserve.scheduling.pool import Pool

__all__ = ["RoundRobin"]


class RoundRobin:
    __slots__ = ("_turns",)

    def __init__(self, context: PolicyContext) -> None:
        self._turns: dict[str, int] = {}

    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        eligible = pool.eligible
        turn = self._turns.get(pool.model, 0)
        for k in range(len(eligible)):
            state = eligible[(turn + k) % len(eligible)]
            if state.id not in exclude and may_take(state, facts):
                self._turns[pool.model] = (turn + k + 1) % len(eligible)
                return Choice(state, 0.0, 0)
        return None
