# compiled
"""Random: any allowed replica, equally likely."""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.policies.base import Choice, PolicyContext, drawn
from exaserve.scheduling.pool import Pool

__all__ = ["RandomChoice"]


class RandomChoice:
    __slots__ = ("_context",)

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        states = drawn(self._context, pool, facts, exclude)
        return Choice(self._context.rng.choice(states), 0.0, 0) if states else None
