# compiled
"""What a policy is: given the replicas that may take a request in principle, pick one. It decides and changes nothing
but its own turn; the scheduler charges the ledger."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.pool import Pool
from exaserve.scheduling.prefix import PrefixIndex

__all__ = ["Choice", "Policy", "PolicyContext", "PolicyFactory", "allowed", "drawn"]


class Choice:
    """The replica, what the policy thinks it costs (seconds, 0 where it prices nothing), prompt tokens cached there."""

    __slots__ = ("cached_tokens", "cost_s", "state")

    def __init__(self, state: ReplicaState, cost_s: float, cached_tokens: int) -> None:
        self.state = state
        self.cost_s = cost_s
        self.cached_tokens = cached_tokens


@dataclass(slots=True)
class PolicyContext:
    """What policies share: configuration, chance, the prefix index, and where they say that a signal was missing.

    ``signal_missing`` counts decisions taken without the named signal: never a silent fallback.
    """

    config: SchedulerConfig
    rng: Random
    prefix: PrefixIndex
    signal_missing: dict[str, int] = field(default_factory=dict)

    def missing(self, signal: str) -> None:
        self.signal_missing[signal] = self.signal_missing.get(signal, 0) + 1


class Policy(Protocol):
    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        """One of ``pool.eligible`` that passes the filters and is not in ``exclude``, or None where there is none."""
        ...


PolicyFactory = Callable[[PolicyContext], Policy]


def allowed(pool: Pool, facts: RequestFacts, exclude: Collection[ReplicaId]) -> list[ReplicaState]:
    """The replicas that pass the filters now, in the pool's order."""
    if exclude:
        return [s for s in pool.eligible if s.id not in exclude and may_take(s, facts)]
    return [s for s in pool.eligible if may_take(s, facts)]


def drawn(
    context: PolicyContext, pool: Pool, facts: RequestFacts, exclude: Collection[ReplicaId]
) -> list[ReplicaState]:
    """The replicas a policy compares: all allowed ones up to ``full_scan_max``, above it a random sample of them.

    The power of d choices: a sample is within a few per cent of the whole and costs the same at 3,072 as at 64.
    """
    eligible, config = pool.eligible, context.config
    n = len(eligible)
    if n > config.full_scan_max:
        random = context.rng.random
        sample = (eligible[int(random() * n)] for _ in range(config.sample_size))
        states = [s for s in sample if s.id not in exclude and may_take(s, facts)]
        if states:
            return states
    return allowed(pool, facts, exclude)
