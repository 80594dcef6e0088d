"""The default policy: least entropy, priced by :mod:`exaserve.scheduling.entropy` and inlined here for speed.

Few replicas are all priced. Many are sampled ("power of d choices with memory"), as they are when reports show work
of other gateways: gateways that see the same picture would otherwise all choose the same minimum.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.entropy import cost
from exaserve.scheduling.filters import may_take
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.policies.base import Choice, PolicyContext
from exaserve.scheduling.pool import Pool, session_hash
from exaserve.scheduling.prefix import BLOCK_BYTES

__all__ = ["Entropy"]

_CACHED_HOLDERS_MAX = 4
"""Prefix holders added to a sample; a prefix held by more than that is met by the sample itself."""


class Entropy:
    __slots__ = ("_context", "_memory", "_turn")

    def __init__(self, context: PolicyContext) -> None:
        self._context = context
        self._turn = 0
        self._memory: dict[str, tuple[int, list[ReplicaState]]] = {}

    def pick(self, pool: Pool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]) -> Choice | None:
        context, config = self._context, self._context.config
        eligible: Sequence[ReplicaState] = pool.eligible
        n = len(eligible)
        if not n:
            return None
        levels = context.prefix.match(facts.prefix) if facts.prefix else []
        self._turn = turn = self._turn + 1
        sampled = n > config.full_scan_max or (context.sample and n > config.sample_size)
        if sampled:
            states = self._sample(pool, facts, levels)
        else:
            start = turn % n
            states = [*eligible[start:], *eligible[:start]]
        if levels:
            choice = self._scan_cached(states, facts, now, exclude, levels, pool)
        else:
            choice = self._scan(states, facts, now, exclude)
        if choice is None and sampled:
            # The whole sample was full: look at everybody before refusing.
            choice = self._scan(eligible, facts, now, exclude)
        if sampled:
            self._remember(pool, states, choice)
        return choice

    def _scan(
        self, states: Sequence[ReplicaState], facts: RequestFacts, now: float, exclude: Collection[ReplicaId]
    ) -> Choice | None:
        """The cheapest of ``states`` that passes the filters; of equals, the first. One pass, nothing allocated."""
        config = self._context.config
        tie_s, depth_max, steep_s = config.tie_s, config.queue_depth_max, config.memory_steep_s
        keep = 1.0 - config.tie_share
        below = math.inf
        tokens = float(facts.prompt_tokens) or 1.0
        need = facts.prompt_tokens + facts.output_tokens
        best: ReplicaState | None = None
        least = math.inf
        for state in states:
            kv = state.kv_predicted
            if state.depth >= depth_max or (kv >= state.kv_limit and state.inflight) or tokens >= state.prompt_max:
                continue
            if exclude and state.id in exclude:
                continue
            work = tokens * (state.per_token_s + state.per_pair_s * tokens) + state.decode_s
            queued = state.pending_s
            if queued:
                drained = now - state.drain_at
                head = state.head_s
                work += queued - (drained if drained < head else head)  # noqa: FURB136  # min() is a call, per replica
            if state.foreign_s:
                work += max(0.0, state.foreign_s - (now - state.last_report.taken_at))  # type: ignore[union-attr]  # foreign tokens come from a report
            work = work * state.penalty + state.failure_cost_s
            if kv + need > state.kv_limit:
                if need > state.kv_max:
                    continue
                over = (kv + need - state.kv_limit) / (state.kv_max - state.kv_limit)
                work += steep_s * over * over
            if state.special:
                work = cost(state, facts, 0.0, now)
            if work < below:
                best, least = state, work
                below = work * keep - tie_s
        return None if best is None else Choice(best, least, 0)

    def _scan_cached(
        self,
        states: Sequence[ReplicaState],
        facts: RequestFacts,
        now: float,
        exclude: Collection[ReplicaId],
        levels: list[tuple[int, int]],
        pool: Pool,
    ) -> Choice | None:
        """Like :meth:`_scan` where some replicas hold a part of the prompt."""
        per_block = BLOCK_BYTES / pool.stats.bytes_per_token * pool.stats.cache_trust
        best: Choice | None = None
        holders = levels[-1][1]
        plain = [s for s in states if not holders >> s.index & 1]
        found = self._scan(plain, facts, now, exclude)
        least = math.inf if found is None else found.cost_s
        for state in states:
            if not holders >> state.index & 1 or (exclude and state.id in exclude) or not may_take(state, facts):
                continue
            depth = next(blocks for blocks, bits in levels if bits >> state.index & 1)
            cached = min(depth * per_block, facts.prompt_tokens - 1.0)
            work = cost(state, facts, cached, now)
            if work < least - self._context.config.tie_s:
                best, least = Choice(state, work, int(cached)), work
        return best or found

    def _sample(self, pool: Pool, facts: RequestFacts, levels: list[tuple[int, int]]) -> list[ReplicaState]:
        """Random replicas, the last decision's runners-up, prefix holders, and the session's home."""
        config, random = self._context.config, self._context.rng.random
        eligible = pool.eligible
        n = len(eligible)
        states = [eligible[int(random() * n)] for _ in range(config.sample_size)]
        version, memory = self._memory.get(pool.model, (0, []))
        if version == pool.version:
            states += memory
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
        if facts.session is not None:
            for replica in pool.ring.walk(session_hash(facts.session)):
                home = pool.members[replica]
                if home.eligible:
                    states.append(home)
                    break
        return states

    def _remember(
        self,
        pool: Pool,
        states: Sequence[ReplicaState],
        choice: Choice | None,
    ) -> None:
        """Keep the least backlogged that were not chosen for the next decision."""
        chosen = choice.state if choice else None
        seen = {id(s): s for s in states if s is not chosen}
        ranked = sorted(seen.values(), key=lambda s: s.pending_s + s.foreign_s + s.decode_s)
        self._memory[pool.model] = (pool.version, ranked[: self._context.config.memory_size])
