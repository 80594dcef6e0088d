# compiled
"""Random: any allowed replica, as likely as its share of traffic says."""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.policies.base import Pick, PolicyContext, drawn
from exaserve.scheduling.pool import ModelPool

__all__ = ["RandomChoice"]


class RandomChoice:
    __slots__ = ("_context",)

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        ledgers = drawn(self._context, pool, facts, exclude)
        if not ledgers:
            return None
        rng = self._context.rng
        if pool.uneven:
            return Pick(rng.choices(ledgers, [1.0 / each.penalty for each in ledgers])[0], 0.0, 0)
        return Pick(rng.choice(ledgers), 0.0, 0)
