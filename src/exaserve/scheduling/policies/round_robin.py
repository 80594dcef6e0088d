# compiled
"""Round robin: each allowed replica in turn, whatever it is doing; one with half a share in every second round."""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.policies.base import Pick, PolicyContext
from exaserve.scheduling.pool import ModelPool

__all__ = ["RoundRobin"]

_GOLDEN = 0.618
"""Shifts each place's rounds against its neighbours'."""


class RoundRobin:
    __slots__ = ("_context",)

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        eligible = pool.eligible
        n = len(eligible)
        turns = self._context.turns
        turn = turns.get(pool.model, 0)
        passed: ReplicaLedger | None = None
        for k in range(turn, turn + n):
            ledger = eligible[k % n]
            if ledger.id in exclude or not may_take(ledger, facts):
                continue
            if pool.uneven and not _has_turn(k // n, k % n, pool.penalty_min / ledger.penalty):
                passed = passed or ledger
                continue
            turns[pool.model] = k + 1
            return Pick(ledger, 0.0, 0)
        if passed is None:
            return None
        turns[pool.model] = turn + n
        return Pick(passed, 0.0, 0)


def _has_turn(round_: int, place: int, share: float) -> bool:
    """Whether a replica with that share of a full turn (0..1] is due; those with the same share not all at once."""
    at = round_ + place * _GOLDEN
    return int((at + 1.0) * share) > int(at * share)
