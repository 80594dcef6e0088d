# compiled
"""The text's own recipe: the lowest score of the last report, nothing added for what was placed since.

Kept to compare with: everything that arrives within one report interval goes to one replica. Equal scores take turns.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.entropy import literal_score
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.policies.base import Pick, PolicyContext, allowed
from exaserve.scheduling.pool import ModelPool

__all__ = ["Literal"]


class Literal:
    __slots__ = ("_context",)

    def __init__(self, context: PolicyContext) -> None:
        self._context = context

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        context = self._context
        best: ReplicaLedger | None = None
        passed: ReplicaLedger | None = None
        least = math.inf
        ledgers = allowed(pool, facts, exclude)
        context.turn += 1
        for k in range(len(ledgers)):
            ledger = ledgers[(k + context.turn) % len(ledgers)]
            if pool.uneven and context.rng.random() * ledger.penalty > pool.penalty_min:
                passed = passed or ledger  # a smaller share takes part in as few decisions
                continue
            score, known = literal_score(ledger)
            if not known:
                context.missing("literal_score")
            if ledger.standing.forced is not None:
                score = ledger.standing.forced
            if best is None or score < least:
                best, least = ledger, score
        best = best or passed
        return None if best is None else Pick(best, 0.0, 0)
