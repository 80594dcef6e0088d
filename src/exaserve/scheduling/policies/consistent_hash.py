# compiled
"""Session affinity: consistent hashing with bounded load, and its hybrid with power of two.

A session's requests go to its home on the ring, so that the conversation's KV is there. A home that already carries
``bounded_load`` times the mean passes the request to the next on the ring. A request without a session has no home:
its prompt's first block stands in, so that conversations without a key still stick; without that, power of two.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.policies.base import Pick, PolicyContext
from exaserve.scheduling.policies.power_of_two import PowerOfTwo
from exaserve.scheduling.pool import ModelPool, session_hash

__all__ = ["ConsistentHash", "Hybrid"]

_MIX = 0x9E37_79B9_7F4A_7C15
"""Odd 64-bit constant of Fibonacci hashing."""


def _key_hash(facts: RequestFacts) -> int | None:
    if facts.session is not None:
        return session_hash(facts.session)
    return facts.prefix[0] & 0xFFFF_FFFF_FFFF_FFFF if facts.prefix else None


def _is_home(key: int, ledger: ReplicaLedger, pool: ModelPool) -> bool:
    """A replica with a share of its equals' traffic keeps that share of its sessions, always the same ones."""
    if not pool.uneven:
        return True
    place = (key ^ session_hash(ledger.id)) * _MIX & 0xFFFF_FFFF_FFFF_FFFF
    return place * ledger.penalty <= pool.penalty_min * 2.0**64


class ConsistentHash:
    """Home on the ring, then the next ones with room; any allowed replica when all are over the bound."""

    __slots__ = ("_bound", "_context", "_fallback")

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        self._bound = context.config.bounded_load
        self._fallback = PowerOfTwo(context)

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        key = _key_hash(facts)
        if key is None:
            self._context.missing("session")
            return self._fallback.pick(pool, facts, now, exclude)
        mean = (pool.inflight + 1) / max(len(pool.eligible), 1)
        bound = math.ceil(self._bound * mean)
        for replica in pool.ring.walk(key):
            ledger = pool.members[replica]
            if not _is_home(key, ledger, pool):
                continue
            if ledger.eligible and replica not in exclude and ledger.inflight < bound and may_take(ledger, facts):
                return Pick(ledger, 0.0, 0)
        return self._fallback.pick(pool, facts, now, exclude)


class Hybrid:
    """Home on the ring while it is at most the bound busier than the better of two random ones; else that one."""

    __slots__ = ("_bound", "_context", "_two")

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        self._bound = context.config.bounded_load
        self._two = PowerOfTwo(context)

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        other = self._two.pick(pool, facts, now, exclude)
        key = _key_hash(facts)
        if key is None or other is None:
            return other
        for replica in pool.ring.walk(key):
            home = pool.members[replica]
            if not _is_home(key, home, pool):
                continue
            if not home.eligible or replica in exclude or not may_take(home, facts):
                continue
            if home.inflight <= self._bound * (other.ledger.inflight + 1):
                return Pick(home, 0.0, 0)
            break
        return other
