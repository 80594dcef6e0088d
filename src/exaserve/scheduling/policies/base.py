# compiled
"""What a policy is: given the replicas that may take a request in principle, pick one. It decides; the scheduler
charges the ledger."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from random import Random
from typing import Protocol

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.pool import ModelPool
from exaserve.scheduling.prefix import PrefixIndex

__all__ = ["Pick", "Policy", "PolicyContext", "PolicyFactory", "allowed", "drawn"]


class Pick:
    """The replica, what the policy thinks it costs (seconds, 0 where it prices nothing), prompt tokens cached there."""

    __slots__ = ("cached_tokens", "cost_s", "ledger")

    def __init__(self, ledger: ReplicaLedger, cost_s: float, cached_tokens: int) -> None:
        self.ledger = ledger
        self.cost_s = cost_s
        self.cached_tokens = cached_tokens


class PolicyContext:
    """What policies work with, and everything they remember: a policy keeps nothing of its own between decisions.

    Attributes:
        config, rng, prefix: configuration, chance, and which replicas hold which prompts' beginnings.
        turn: decisions so far, for ties to take turns.
        turns: whose turn is next, by model, for policies that go round.
        memory: per model the pool's version and the best of the last samples, for the ``entropy`` policy.
        signal_missing: decisions taken without the named signal: never a silent fallback.
    """

    __slots__ = ("config", "memory", "prefix", "rng", "signal_missing", "turn", "turns")

    def __init__(self, config: SchedulerConfig, rng: Random, prefix: PrefixIndex) -> None:
        self.config = config
        self.rng = rng
        self.prefix = prefix
        self.turn = 0
        self.turns: dict[str, int] = {}
        self.memory: dict[str, tuple[int, deque[ReplicaLedger]]] = {}
        self.signal_missing: dict[str, int] = {}

    def missing(self, signal: str) -> None:
        self.signal_missing[signal] = self.signal_missing.get(signal, 0) + 1

    def fork(self) -> PolicyContext:
        """As it is now, to decide with what nobody else shall notice: chance, turns and memory are copies."""
        rng = Random()
        rng.setstate(self.rng.getstate())
        fork = PolicyContext(self.config, rng, self.prefix)
        fork.turn = self.turn
        fork.turns = dict(self.turns)
        fork.memory = {model: (version, deque(kept, kept.maxlen)) for model, (version, kept) in self.memory.items()}
        return fork


class Policy(Protocol):
    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        """One of ``pool.eligible`` that passes the filters and is not in ``exclude``, or None where there is none."""
        ...


PolicyFactory = Callable[[PolicyContext], Policy]


def allowed(pool: ModelPool, facts: RequestFacts, exclude: Collection[ReplicaId]) -> list[ReplicaLedger]:
    """The replicas that pass the filters now, in the pool's order."""
    if exclude:
        return [s for s in pool.eligible if s.id not in exclude and may_take(s, facts)]
    return [s for s in pool.eligible if may_take(s, facts)]


def drawn(
    context: PolicyContext, pool: ModelPool, facts: RequestFacts, exclude: Collection[ReplicaId]
) -> list[ReplicaLedger]:
    """The replicas a policy compares: all allowed ones up to ``full_scan_max``, above it a random sample of them.

    The power of d choices: a sample is within a few per cent of the whole and costs the same at 3,072 as at 64.
    """
    eligible, config = pool.eligible, context.config
    n = len(eligible)
    if n > config.full_scan_max:
        random = context.rng.random
        sample = (eligible[int(random() * n)] for _ in range(config.sample_size))
        ledgers = [s for s in sample if s.id not in exclude and may_take(s, facts)]
        if ledgers:
            return ledgers
    return allowed(pool, facts, exclude)
