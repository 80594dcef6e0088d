# compiled
"""What a placement would be now, and why: every candidate with its price, or the reason why it is out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.entropy import cost, terms
from exaserve.scheduling.filters import why_not
from exaserve.scheduling.pool import ModelPool
from exaserve.scheduling.prefix import PrefixIndex

__all__ = ["Candidate", "Explanation", "candidates"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica: ``out`` says why it may not take the request, else ``terms`` price it."""

    replica: ReplicaId
    out: str | None
    cost_s: float | None
    terms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What :meth:`Scheduler.place` would do now. Cheapest by entropy first, then those that are out.

    ``chosen`` is what the policy in force picks, which need not be the cheapest: another policy does not look at the
    price, and of a large pool it sees a sample.
    """

    model: str
    policy: str
    chosen: ReplicaId | None
    refusal: str | None
    candidates: tuple[Candidate, ...]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-able form; infinite costs become the string ``"inf"``."""
        return {
            "model": self.model,
            "policy": self.policy,
            "chosen": self.chosen,
            "refusal": self.refusal,
            "candidates": [
                {
                    "replica": c.replica,
                    "out": c.out,
                    "cost_s": "inf" if c.cost_s == float("inf") else c.cost_s,
                    "terms": c.terms,
                }
                for c in self.candidates
            ],
        }


def candidates(pool: ModelPool, prefix: PrefixIndex, facts: RequestFacts, now: float) -> tuple[Candidate, ...]:
    """Every member of ``pool``, priced by entropy or out."""
    levels = prefix.match(facts.prefix)
    tokens_per_byte = pool.stats.cache_trust / pool.stats.bytes_per_token
    shunned = pool.rejections.shunned.get(facts.route, {})
    rows = []
    for ledger in pool.members.values():
        held = next((size for size, bits in levels if bits >> ledger.index & 1), 0)
        cached = min(held * tokens_per_byte, max(facts.prompt_tokens - 1.0, 0.0))
        out = why_not(ledger, facts)
        if out is None and ledger.id in shunned:
            out = f"answers {facts.route} with 4xx, its peers do not"
        parts = terms(ledger, facts, cached, now) | {"cached_tokens": cached}
        rows.append(Candidate(ledger.id, out, None if out else cost(ledger, facts, cached, now), parts))
    rows.sort(key=lambda c: (c.out is not None, c.cost_s if c.cost_s is not None else math.inf))
    return tuple(rows)
