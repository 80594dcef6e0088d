# compiled
"""The limit that policies are compared with: perfect, instantaneous knowledge of every engine, in one place."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling import ModelPool, Pick, PolicyContext, PolicyFactory
from exaserve.simulate.replica import SimReplica

__all__ = ["ORACLE", "Oracle", "oracle"]

ORACLE = "oracle"
DECODE_S = 0.005
"""Toll for each sequence decoding there, seconds: it slows this request, and this one's prefill stalls it."""


class Oracle:
    """Looks into the engines themselves, not at reports or a ledger."""

    def __init__(self, replicas: Mapping[ReplicaId, SimReplica]) -> None:
        self._replicas = replicas

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        need = facts.prompt_tokens + facts.output_tokens
        replicas = self._replicas
        best, least = None, math.inf
        for state in pool.eligible:
            if exclude and state.id in exclude:
                continue
            replica = replicas[state.id]
            engine = replica.engine
            cost = DECODE_S * len(engine.decoding)
            if cost < least:
                cost += replica.wait_s(now)
                if engine.kv_tokens + need > 0.95 * engine.profile.kv_tokens_max:
                    cost += 10.0
                if cost < least:
                    best, least = state, cost
        return None if best is None else Pick(best, least, 0)


def oracle(replicas: Mapping[ReplicaId, SimReplica]) -> PolicyFactory:
    """The policy over these replicas, whatever its context."""

    def factory(_context: PolicyContext) -> Oracle:
        return Oracle(replicas)

    return factory
