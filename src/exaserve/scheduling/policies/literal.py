# compiled
"""The text's own recipe (A1): the lowest score of the last report, nothing added for what was placed since.

Kept to compare with: everything that arrives within one report interval goes to one replica.
"""

from __future__ import annotations

from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.entropy import literal_score
from exaserve.scheduling.policies.base import Choice, PolicyContext, allowed
from exaserve.scheduling.pool import Pool

__all__ = ["Literal"]


class Literal:
    __slots__ = ("_context",)

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        best = None
        least = float("inf")
        for state in allowed(pool, facts, exclude):
            score, known = literal_score(state)
            if not known:
                self._context.missing("literal_score")
            if state.forced is not None:
                score = state.forced
            if best is None or score < least:
                best, least = state, score
        return None if best is None else Choice(best, 0.0, 0)
