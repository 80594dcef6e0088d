# compiled
"""The default policy: least entropy, priced by :mod:`exaserve.scheduling.entropy` and inlined here for speed.

Few replicas are all priced. Of many a sample is: some that are idle, some drawn from all ("power of d choices with
memory"), and those that hold the prompt's prefix.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.entropy import cost
from exaserve.scheduling.filters import fits, reach
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.policies.base import Pick, PolicyContext
from exaserve.scheduling.pool import ModelPool

__all__ = ["Entropy"]

_CACHED_HOLDERS_MAX = 4
"""Prefix holders added to a sample; a prefix held by more than that is met by the sample itself."""


class Entropy:
    __slots__ = (
        "_context", "_full_scan_max", "_keep", "_keep_idle", "_memory_size", "_runner_up", "_sample_size", "_tie_s",
    )  # fmt: skip

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        config = context.config
        self._full_scan_max = config.full_scan_max
        self._sample_size = config.sample_size
        self._memory_size = config.memory_size
        self._tie_s = config.tie_s
        self._keep = 1.0 - config.tie_share
        self._keep_idle = 1.0 - max(config.tie_share, config.tie_idle_share)
        self._runner_up: ReplicaLedger | None = None

    def pick(self, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Pick | None:
        context = self._context
        eligible: Sequence[ReplicaLedger] = pool.eligible
        n = len(eligible)
        if not n:
            return None
        levels = context.prefix.match(facts.prefix) if facts.prefix else []
        held: list[tuple[int, float]] = []
        if levels:
            tokens_per_byte = pool.stats.cache_trust / pool.stats.bytes_per_token
            prompt = float(facts.prompt_tokens)
            held = [(bits, max(prompt - size * tokens_per_byte, 1.0)) for size, bits in levels]
        if n > self._full_scan_max:
            choice = self._scan(self._sample(pool, levels), facts, now, exclude, held)
            if choice is not None:
                self._remember(pool)
                return choice
            # The whole sample was full: look at everybody before refusing.
        context.turn = turn = context.turn + 1
        start = turn % n
        ledgers = [*eligible[start:], *eligible[:start]]
        return self._scan(ledgers, facts, now, exclude, held)

    def _scan(
        self,
        ledgers: Sequence[ReplicaLedger],
        facts: RequestFacts,
        now: float,
        exclude: Collection[ReplicaId],
        held: Sequence[tuple[int, float]],
    ) -> Pick | None:
        """The cheapest of ``ledgers`` that passes the filters; of equals, the first. One pass, nothing allocated.

        Args:
            held: ``(bits, tokens)``, deepest first: the replicas in ``bits`` need to compute only that many tokens.
        """
        tie_s, keep, keep_idle = self._tie_s, self._keep, self._keep_idle
        tokens = chosen = prompt = float(facts.prompt_tokens) or 1.0
        need = facts.prompt_tokens + facts.output_tokens
        reached = reach(facts)
        best: ReplicaLedger | None = None
        second: ReplicaLedger | None = None
        least = below = math.inf
        for ledger in ledgers:
            if not ledger.room or reached > ledger.context or (exclude and ledger.id in exclude):
                continue
            if held:
                tokens = prompt
                for bits, left in held:
                    if bits >> ledger.index & 1:
                        tokens = left
                        break
            work = tokens * (ledger.per_token_s + ledger.per_pair_s * tokens) * ledger.stall
            queued = ledger.pending_s
            if queued:
                drained, head = now - ledger.drain_at, ledger.head_s
                work += queued - (drained if drained < head else head)  # noqa: FURB136  # min() is a call per replica
            if ledger.foreign_s:
                work += max(0.0, ledger.foreign_s - (now - ledger.seen.at))
            work = work * ledger.penalty + ledger.extra_s
            if need > ledger.need_free:
                if not fits(ledger, need):
                    continue
                work = cost(ledger, facts, prompt - tokens, now)
            if work < below:
                second = best
                best, least, chosen = ledger, work, tokens
                below = work * (keep if queued or ledger.extra_s else keep_idle) - tie_s
        self._runner_up = second
        return None if best is None else Pick(best, least, int(prompt - chosen))

    def _sample(self, pool: ModelPool, levels: list[tuple[int, int]]) -> list[ReplicaLedger]:
        """Idle and random replicas, the last decisions' runners-up, and prefix holders (where a session's KV is)."""
        rng, size = self._context.rng, self._sample_size
        eligible = pool.eligible
        n = len(eligible)
        ledgers: list[ReplicaLedger] = []
        wanted = size >> 1
        for idle in pool.idle:
            if wanted > 0:
                wanted -= idle.draw(wanted, rng, ledgers)
        random = rng.random
        # Where enough are idle, the others are only looked at for one that is much faster or holds the prompt.
        count = size >> 2 if wanted <= 0 else size - len(ledgers)
        ledgers += [eligible[int(random() * n)] for _ in range(count)]
        version, memory = self._context.memory.get(pool.model, (-1, ()))
        if version == pool.version:
            ledgers.extend(memory)
        if levels:
            deepest = levels[0][1]
            for _ in range(_CACHED_HOLDERS_MAX):
                bit = deepest & -deepest
                if not bit:
                    break
                deepest ^= bit
                holder = pool.by_index.get(bit.bit_length() - 1)
                if holder is not None and holder.eligible:
                    ledgers.append(holder)
        return ledgers

    def _remember(self, pool: ModelPool) -> None:
        """Keep this decision's runner-up for the next ones."""
        runner_up = self._runner_up
        if runner_up is None:
            return
        version, memory = self._context.memory.get(pool.model, (-1, deque()))
        if version != pool.version:
            memory = deque(maxlen=self._memory_size)
            self._context.memory[pool.model] = (pool.version, memory)
        if runner_up not in memory:
            memory.append(runner_up)
