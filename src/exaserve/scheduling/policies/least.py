# compiled
"""Least loaded by one number: connections, weighted connections, or outstanding tokens. Ties take turns.

Many replicas are sampled, not compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.policies.base import Choice, PolicyContext, drawn
from exaserve.scheduling.pool import Pool

__all__ = ["LeastLoaded", "connections", "outstanding_tokens", "weighted_connections"]

Load = Callable[[ReplicaState, PolicyContext], float]


def connections(state: ReplicaState, context: PolicyContext) -> float:
    """Requests in flight there that this gateway placed."""
    return state.inflight


def weighted_connections(state: ReplicaState, context: PolicyContext) -> float:
    """Connections over a capacity weight that falls with KV use and foreign load (E1)."""
    if not state.report_fresh or state.last_report is None or state.last_report.kv_use is None:
        context.missing("kv_use")
        return (state.inflight + 1) * state.penalty
    kv_free = max(1.0 - state.last_report.kv_use, 0.05)
    foreign = state.foreign_running + state.foreign_waiting
    return (state.inflight + foreign + 1) * state.penalty / kv_free


def outstanding_tokens(state: ReplicaState, context: PolicyContext) -> float:
    """Prompt and expected output tokens of what this gateway has in flight there."""
    return state.kv_own


class LeastLoaded:
    __slots__ = ("_context", "_load", "_turn")

    def __init__(self, context: PolicyContext, load: Load) -> None:
        self._context = context
        self._load = load
        self._turn = 0

    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        states = drawn(self._context, pool, facts, exclude)
        if not states:
            return None
        loads = [self._load(s, self._context) for s in states]
        least = min(loads)
        ties = [s for s, load in zip(states, loads, strict=True) if load == least]
        self._turn += 1
        return Choice(ties[self._turn % len(ties)], 0.0, 0)
