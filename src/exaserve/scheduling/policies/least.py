# compiled
"""Least loaded by one number: connections, weighted connections, or outstanding tokens. Ties take turns.

Many replicas are sampled, not compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.policies.base import Pick, PolicyContext, drawn
from exaserve.scheduling.pool import ModelPool

__all__ = ["LeastLoaded", "connections", "outstanding_tokens", "weighted_connections"]

Load = Callable[[ReplicaLedger, RequestFacts, PolicyContext], float]
"""Load with the request there, over the replica's share of traffic."""


def connections(ledger: ReplicaLedger, facts: RequestFacts, context: PolicyContext) -> float:
    """Requests in flight there that this gateway placed."""
    return (ledger.inflight + 1) * ledger.penalty


def weighted_connections(ledger: ReplicaLedger, facts: RequestFacts, context: PolicyContext) -> float:
    """Connections over a capacity weight that falls with KV use and foreign load."""
    seen = ledger.seen
    if not seen.fresh or seen.report is None or seen.report.kv_use is None:
        context.missing("kv_use")
        return (ledger.inflight + 1) * ledger.penalty
    kv_free = max(1.0 - seen.report.kv_use, 0.05)
    foreign = seen.foreign_running + seen.foreign_waiting
    return (ledger.inflight + foreign + 1) * ledger.penalty / kv_free


def outstanding_tokens(ledger: ReplicaLedger, facts: RequestFacts, context: PolicyContext) -> float:
    """Prompt and expected output tokens of what this gateway has in flight there."""
    return (ledger.kv.own + facts.prompt_tokens + facts.output_tokens + 1) * ledger.penalty


class LeastLoaded:
    __slots__ = ("_context", "_load")

    def __init__(self, context: PolicyContext, load: Load) -> None:
        self._context = context
        self._load = load

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        ledgers = drawn(self._context, pool, facts, exclude)
        if not ledgers:
            return None
        loads = [self._load(s, facts, self._context) for s in ledgers]
        least = min(loads)
        ties = [s for s, load in zip(ledgers, loads, strict=True) if load == least]
        self._context.turn += 1
        return Pick(ties[self._context.turn % len(ties)], 0.0, 0)
