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
from exaserve.scheduling.filters import fits
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.policies.base import Choice, PolicyContext
from exaserve.scheduling.pool import Pool

__all__ = ["Entropy"]

_CACHED_HOLDERS_MAX = 4
"""Prefix holders added to a sample; a prefix held by more than that is met by the sample itself."""


class Entropy:
    __slots__ = (
        "_context", "_full_scan_max", "_keep", "_memory", "_memory_size", "_runner_up", "_sample_size", "_tie_s",
        "_turn",
    )  # fmt: skip

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        config = context.config
        self._full_scan_max = config.full_scan_max
        self._sample_size = config.sample_size
        self._memory_size = config.memory_size
        self._tie_s = config.tie_s
        self._keep = 1.0 - config.tie_share
        self._turn = 0
        self._runner_up: ReplicaState | None = None
        self._memory: dict[str, tuple[int, deque[ReplicaState]]] = {}

    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        context = self._context
        eligible: Sequence[ReplicaState] = pool.eligible
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
        self._turn = turn = self._turn + 1
        start = turn % n
        states = [*eligible[start:], *eligible[:start]]
        return self._scan(states, facts, now, exclude, held)

    def _scan(
        self,
        states: Sequence[ReplicaState],
        facts: RequestFacts,
        now: float,
        exclude: Collection[ReplicaId],
        held: Sequence[tuple[int, float]],
    ) -> Choice | None:
        """The cheapest of ``states`` that passes the filters; of equals, the first. One pass, nothing allocated.

        Args:
            held: ``(bits, tokens)``, deepest first: the replicas in ``bits`` need to compute only that many tokens.
        """
        tie_s, keep = self._tie_s, self._keep
        tokens = chosen = prompt = float(facts.prompt_tokens) or 1.0
        need = facts.prompt_tokens + facts.output_tokens
        best: ReplicaState | None = None
        second: ReplicaState | None = None
        least = below = math.inf
        for state in states:
            if not state.room or (exclude and state.id in exclude):
                continue
            if held:
                tokens = prompt
                for bits, left in held:
                    if bits >> state.index & 1:
                        tokens = left
                        break
            work = tokens * (state.per_token_s + state.per_pair_s * tokens) * state.stall
            queued = state.pending_s
            if queued:
                drained, head = now - state.drain_at, state.head_s
                work += queued - (drained if drained < head else head)  # noqa: FURB136  # min() is a call per replica
            if state.foreign_s:
                work += max(0.0, state.foreign_s - (now - state.reported_at))
            work = work * state.penalty + state.extra_s
            if need > state.need_free:
                if not fits(state, facts):
                    continue
                work = cost(state, facts, prompt - tokens, now)
            if work < below:
                second = best
                best, least, chosen = state, work, tokens
                below = work * keep - tie_s
        self._runner_up = second
        return None if best is None else Choice(best, least, int(prompt - chosen))

    def _sample(self, pool: Pool, levels: list[tuple[int, int]]) -> list[ReplicaState]:
        """Idle and random replicas, the last decisions' runners-up, and prefix holders (where a session's KV is)."""
        rng, size = self._context.rng, self._sample_size
        eligible = pool.eligible
        n = len(eligible)
        states: list[ReplicaState] = []
        wanted = size >> 1
        for idle in pool.idle:
            if wanted > 0:
                wanted -= idle.draw(wanted, rng, states)
        random = rng.random
        # Where enough are idle, the others are only looked at for one that is much faster or holds the prompt.
        count = size >> 2 if wanted <= 0 else size - len(states)
        states += [eligible[int(random() * n)] for _ in range(count)]
        version, memory = self._memory.get(pool.model, (-1, ()))
        if version == pool.version:
            states.extend(memory)
        if levels:
            deepest = levels[0][1]
            for _ in range(_CACHED_HOLDERS_MAX):
                bit = deepest & -deepest
                if not bit:
                    break
                deepest ^= bit
                holder = pool.by_index.get(bit.bit_length() - 1)
                if holder is not None and holder.eligible:
                    states.append(holder)
        return states

    def _remember(self, pool: Pool) -> None:
        """Keep this decision's runner-up for the next ones."""
        runner_up = self._runner_up
        if runner_up is None:
            return
        version, memory = self._memory.get(pool.model, (-1, deque()))
        if version != pool.version:
            memory = deque(maxlen=self._memory_size)
            self._memory[pool.model] = (pool.version, memory)
        if runner_up not in memory:
            memory.append(runner_up)
