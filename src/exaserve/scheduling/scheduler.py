# compiled
"""The scheduler: filter → cost → pick → charge. Pure: time and chance are arguments, and it performs no I/O.

It owns the replicas' states and the pools by model. The gateway and the simulator drive the same object.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType

import msgspec

from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.entropy import cost, literal_score, terms
from exaserve.scheduling.filters import why_not
from exaserve.scheduling.idle import IdleSet
from exaserve.scheduling.learning import ModelStats, PrefillModel
from exaserve.scheduling.ledger import ReplicaState
from exaserve.scheduling.peers import Peers
from exaserve.scheduling.placement import Candidate, Explanation, Placement, Refusal, RefusalReason
from exaserve.scheduling.policies import POLICIES, Policy, PolicyContext, PolicyFactory
from exaserve.scheduling.pool import Pool
from exaserve.scheduling.prefix import PrefixIndex

__all__ = ["Scheduler"]

_FOREIGN_STEP = 0.02
"""Weight of one report in the running share of foreign requests: about the last 50 reports count."""

_DEAL_HASHES = 256
"""Pairs of gateway and replica that are weighed in one piece, 2 to 4 µs each."""
_IDLE_SETS_MAX = 64
"""Sets of idle replicas above which those that nobody stands in any more are forgotten when another one is made."""


class Scheduler:
    """Places requests on replicas and keeps account of them.

    Args:
        policies: those that :meth:`set_policy` knows, by name; a simulator adds ones that no gateway could have.

    Attributes:
        config: as given.
        policy_name: key of the policy in use.
        foreign_share: running share of the replicas' requests that this gateway did not place, 0..1.
    """

    def __init__(self, config: SchedulerConfig, rng: Random, policies: Mapping[str, PolicyFactory] = POLICIES) -> None:
        self.config = config
        self._policies = policies
        self.foreign_share = 0.0
        self._states: dict[ReplicaId, ReplicaState] = {}
        self._pools: dict[str, Pool] = {}
        self._idle: dict[tuple[tuple[str, ...], bool], IdleSet] = {}
        self._prefix = PrefixIndex(config.prefix_entries_max)
        self._next_index = 0
        self._peers = Peers()
        self._speeds: dict[tuple[str, tuple[str, ...], float], PrefillModel] = {}
        self._context = PolicyContext(config=config, rng=rng, prefix=self._prefix)
        self._policy: Policy
        self.set_policy(config.policy)

    # -- membership ------------------------------------------------------------------------------------------------

    def add(self, spec: ReplicaSpec, now: float) -> None:
        """Add a replica; it takes requests once :meth:`set_health` says so. ValueError where its id is taken."""
        if spec.id in self._states:
            raise ValueError(f"replica {spec.id!r} is already known")
        state = ReplicaState(spec, self.config, now, self._take_index(), self._speed_of(spec))
        state.set_rank(self._peers.rank(spec.id))
        state.lean = self._context.rng.random()
        self._states[spec.id] = state
        state.stand_in(self._idle_set(state))
        state.refresh()
        for model in spec.models:
            self._join(model, state)

    def update(self, spec: ReplicaSpec) -> None:
        """Take a replica's new description (models, weight, limits); its ledger and learned speed stay."""
        state = self._states[spec.id]
        before = set(state.spec.models)
        state.set_spec(spec, self._speed_of(spec))
        for model in before - set(spec.models):
            self._leave(model, state)
        for model in spec.models:
            if model not in before:
                self._join(model, state)
        state.stand_in(self._idle_set(state))
        self._changed(state)

    def remove(self, replica: ReplicaId) -> None:
        """Forget a replica. Its placements in flight can still be released."""
        state = self._states.pop(replica)
        state.removed = True
        state.set_penalty()
        state.stand_in(None)
        for model in state.spec.models:
            self._leave(model, state)
        if not self._states:
            self._idle.clear()

    def states(self) -> Mapping[ReplicaId, ReplicaState]:
        return MappingProxyType(self._states)

    def models(self) -> tuple[str, ...]:
        """Names served by any known replica, also one that is down; sorted."""
        return tuple(sorted(self._pools))

    def ready_models(self) -> tuple[str, ...]:
        """Names that at least one replica may take requests for; sorted."""
        return tuple(sorted(name for name, pool in self._pools.items() if pool.eligible))

    def _speed_of(self, spec: ReplicaSpec) -> PrefillModel:
        """The shared rate of replicas that serve the same models with the same engine."""
        key = (spec.engine, spec.models, spec.prefill_tokens_per_s)
        if key not in self._speeds:
            config = self.config
            rate = spec.prefill_tokens_per_s or config.prefill_tokens_per_s
            self._speeds[key] = PrefillModel(rate, config.prior_busy_s, config.learn_window_s)
        return self._speeds[key]

    def _idle_set(self, state: ReplicaState) -> IdleSet:
        """Where ``state`` stands while it is idle: with those that serve the same models, home and away apart."""
        key = (state.spec.models, state.home)
        idle = self._idle.get(key)
        if idle is None:
            if len(self._idle) >= _IDLE_SETS_MAX:
                used = {id(each.idle_set) for each in self._states.values()}
                self._idle = {k: each for k, each in self._idle.items() if id(each) in used}
            idle = self._idle[key] = IdleSet(home=state.home)
        return idle

    def _take_index(self) -> int:
        """A bit of its own in the prefix index; never reused while the index may still hold the old owner's bits."""
        if self._next_index > 4 * len(self._states) + 64:
            self._prefix.clear()
            for index, state in enumerate(self._states.values()):
                state.index = index
            for pool in self._pools.values():
                pool.by_index = {s.index: s for s in pool.members.values()}
            self._next_index = len(self._states)
        self._next_index += 1
        return self._next_index - 1

    def _join(self, model: str, state: ReplicaState) -> None:
        pool = self._pools.get(model)
        if pool is None:
            pool = self._pools[model] = Pool(model, self.config.ring_vnodes)
        pool.add(state)

    def _leave(self, model: str, state: ReplicaState) -> None:
        pool = self._pools[model]
        pool.remove(state.id)
        if not pool.members:
            del self._pools[model]

    def _changed(self, state: ReplicaState) -> None:
        state.set_penalty()
        for model in state.spec.models:
            self._pools[model].changed()

    # -- operator, health, telemetry -------------------------------------------------------------------------------

    def set_policy(self, name: str) -> None:
        """Switch policy; the ledger stays. ConfigError for an unknown name."""
        factory = self._policies.get(name)
        if factory is None:
            raise ConfigError(
                f"unknown policy {name!r}; choose one of {', '.join(sorted(self._policies))}",
                param="scheduling.strategy",
            )
        self.policy_name = name
        self._policy = factory(self._context)

    def set_health(self, replica: ReplicaId, available: bool, reason: str, ramp: float = 1.0) -> None:
        """What health says: whether the replica may take requests, why, and its slow-start share (0..1]."""
        state = self._states.get(replica)
        if state is None:
            return
        if not 0.0 < ramp <= 1.0:
            raise ValueError(f"ramp must be in (0, 1], not {ramp}")
        came_back = available and not state.available
        state.available, state.health_reason, state.ramp = available, reason, ramp
        if came_back:
            state.failures, state.failure_cost_s = 0, 0.0
        self._changed(state)

    def restarted(self, replica: ReplicaId) -> None:
        """The engine behind ``replica`` is a new process: its report and its prefix cache are gone."""
        state = self._states.get(replica)
        if state is None:
            return
        state.forget_report()
        for pool in self._pools.values():
            pool.by_index.pop(state.index, None)
        state.index = self._take_index()
        for model in state.spec.models:
            self._pools[model].by_index[state.index] = state

    def drain(self, replica: ReplicaId) -> None:
        """No new requests; those in flight go on. KeyError for an unknown replica."""
        self._states[replica].draining = True
        self._changed(self._states[replica])

    def undrain(self, replica: ReplicaId) -> None:
        self._states[replica].draining = False
        self._changed(self._states[replica])

    def set_weight(self, replica: ReplicaId, weight: float) -> None:
        """Share of traffic relative to equals; 0 takes it out. ValueError below 0 or not finite."""
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"weight must be a finite number of at least 0, not {weight}")
        self._states[replica].weight = weight
        self._changed(self._states[replica])

    def force_score(self, replica: ReplicaId, score: float | None) -> None:
        """Replace the replica's cost by ``score`` seconds (A3); infinity means nothing at all, None undoes it."""
        if score is not None and not score >= 0:
            raise ValueError(f"score must be at least 0, infinity, or None, not {score}")
        self._states[replica].forced = score
        self._changed(self._states[replica])

    def set_suspicion(self, replica: ReplicaId, factor: float) -> None:
        """Multiply the replica's cost by ``factor`` ≥ 1 while the anomaly guard distrusts it (A4)."""
        state = self._states.get(replica)
        if state is not None:
            state.suspicion = max(factor, 1.0)
            state.set_penalty()

    def report(self, report: Report, now: float) -> None:
        """Take a replica's telemetry. Stale, older than the one held, or of an unknown replica: ignored."""
        state = self._states.get(report.replica)
        config = self.config
        if state is None or now - report.taken_at > config.report_stale_s:
            return
        models = state.spec.models
        pool = self._pools.get(models[0]) if models else None
        prompt_tokens = 512.0
        if pool is not None:
            stats = pool.stats
            prompt_tokens = stats.prompt_tokens
            away = self._away(state)
            state.away_s = away * stats.work_s if away else 0.0
        if not state.report(report, prompt_tokens):
            return
        if bool(report.asleep) is not state.asleep:
            state.asleep = not state.asleep
            self._changed(state)
        foreign = state.foreign_running + state.foreign_waiting
        total = state.inflight + foreign
        if total:
            self.foreign_share += _FOREIGN_STEP * (foreign / total - self.foreign_share)

    def last_report(self, replica: ReplicaId) -> Report | None:
        """What it last reported, None where it has not, or has been restarted since."""
        state = self._states.get(replica)
        return None if state is None else state.last_report

    def confirm(self, replicas: Iterable[ReplicaId], seq: int, taken_at: float, now: float) -> None:
        """These replicas' last reports still hold at ``taken_at``: as if they had been sent again with a new time."""
        if now - taken_at > self.config.report_stale_s:
            return
        states = self._states
        for replica in replicas:
            state = states.get(replica)
            if state is not None and state.last_report is not None and not state.confirm(seq, taken_at):
                self.report(msgspec.structs.replace(state.last_report, seq=seq, taken_at=taken_at), now)

    def tick(self, now: float) -> None:
        """Stop believing reports that are too old. Call about as often as reports should come."""
        oldest = now - self.config.report_stale_s
        for state in self._states.values():
            if state.reported_at < oldest:
                state.expire_report(now)

    def report_scores(self) -> dict[ReplicaId, float]:
        """The text's score of each replica with a fresh and complete report, for the anomaly guard (A4)."""
        scores = {}
        for replica, state in self._states.items():
            score, known = literal_score(state)
            if known:
                scores[replica] = score
        return scores

    def signal_missing(self) -> Mapping[str, int]:
        """Decisions taken without a signal that the policy wanted, by signal."""
        return MappingProxyType(self._context.signal_missing)

    # -- other gateways --------------------------------------------------------------------------------------------

    def set_gateways(self, own: str, gateways: Sequence[str], *, untold: bool = False) -> None:
        """Name the gateways that place work on these replicas, this one (``own``) among them; see ``peers``.

        Args:
            untold: others place work here too that do not tell us theirs, or too late: lean as if there were no peers.
        """
        for _ in self.dealing(own, gateways, untold=untold):
            pass

    def dealing(self, own: str, gateways: Sequence[str], *, untold: bool = False) -> Iterator[None]:
        """As :meth:`set_gateways` in pieces of about a millisecond, between which anything else may be done: with
        thousands of replicas the whole takes long enough to delay tokens."""
        self._peers.own = own
        self._peers.gateways = tuple(sorted({own, *gateways}))
        self._peers.untold = untold
        states = list(self._states.values())
        piece = max(1, _DEAL_HASHES // len(self._peers.gateways))
        for start in range(0, len(states), piece):
            for state in states[start : start + piece]:
                if not state.removed:
                    state.set_rank(self._peers.rank(state.id))
                    state.away_s = 0.0
                    state.stand_in(self._idle_set(state))
                    state.refresh()
            for pool in self._pools.values():
                pool.changed()
            yield

    def _away(self, state: ReplicaState) -> float:
        """The toll on ``state`` in mean prefill times: on a peer's home; or by chance, always the same, where reports
        show work of gateways that do not tell us theirs."""
        if not state.home:
            return self.config.away_share * state.toll
        told = self._peers.gateways and not self._peers.untold
        if told or self.foreign_share < self.config.foreign_share:
            return 0.0
        return state.lean * self.config.lean_share

    def told_placed(
        self, peer: str, ref: int, replica: ReplicaId, tokens: int, kv_tokens: int, stream: bool, placed_at: float
    ) -> None:
        """``peer`` placed a request of ``tokens`` uncached prompt tokens on ``replica``. Unknown replicas: ignored."""
        state = self._states.get(replica)
        if state is not None:
            self._peers.placed(peer, ref, state, tokens, kv_tokens, stream, placed_at)

    def told_first_token(self, peer: str, ref: int, now: float) -> None:
        self._peers.first_token(peer, ref, now)

    def told_done(self, peer: str, ref: int, now: float) -> None:
        self._peers.done(peer, ref, now)

    def peer_lost(self, peer: str, now: float) -> None:
        """Forget everything that ``peer`` told."""
        self._peers.lost(peer, now)

    def told(self, peer: str | None = None) -> int:
        """Other gateways' placements now charged here, or those of one of them."""
        return len(self._peers) if peer is None else self._peers.count(peer)

    # -- requests --------------------------------------------------------------------------------------------------

    def place(self, facts: RequestFacts, now: float, exclude: Collection[ReplicaId] = ()) -> Placement | Refusal:
        """Choose a replica and charge its ledger, in one step. ``exclude``: replicas already tried."""
        pool = self._pools.get(facts.model)
        if pool is None:
            if not self._pools:
                return Refusal(RefusalReason.NOT_READY, "no replica has said yet which models it serves")
            return Refusal(RefusalReason.MODEL_UNKNOWN, f"no replica serves model {facts.model!r}")
        choice = self._policy.pick(pool, facts, now, exclude)
        if choice is None and (cut := _cut_to_fit(pool, facts)) is not None:
            facts = cut
            choice = self._policy.pick(pool, facts, now, exclude)
        if choice is None:
            return self._refusal(pool, exclude)
        state, cost_s, cached = choice.state, choice.cost_s, choice.cached_tokens
        tokens = max(facts.prompt_tokens - cached, 1)
        placement = Placement(
            state,
            facts.model,
            now,
            cost_s,
            tokens,
            state.prefill_s(tokens),
            cached,
            facts.prompt_tokens + facts.output_tokens,
            facts.stream,
            facts.prompt_bytes,
        )
        state.charge(placement, now)
        pool.inflight += 1
        pool.stats.placed(facts.prompt_tokens, placement.work_s)
        if facts.prefix:
            self._prefix.insert(facts.prefix, 1 << state.index)
        return placement

    def first_token(self, placement: Placement, now: float) -> None:
        """The first body byte of a streamed answer arrived."""
        placement.state.first_token(placement, now)

    def release(self, placement: Placement, now: float, outcome: Outcome, usage: Usage | None = None) -> None:
        """Give back what ``placement`` holds. Exactly once; AssertionError on a second call."""
        placement.state.release(placement, now, outcome)
        pool = self._pools.get(placement.model)
        if pool is None:
            return
        pool.inflight = max(pool.inflight - 1, 0)
        if usage is not None:
            pool.stats.observe(placement.facts_prompt_bytes, usage.prompt_tokens, usage.completion_tokens)
            if placement.cached_tokens > 0:
                pool.stats.observe_cache(placement.cached_tokens, usage.cached_tokens)

    def _refusal(self, pool: Pool, exclude: Collection[ReplicaId]) -> Refusal:
        if not pool.eligible:
            reasons = {s.why_not_eligible() or "" for s in pool.members.values()}
            return Refusal(
                RefusalReason.NOT_READY,
                f"no replica of model {pool.model!r} is ready ({'; '.join(sorted(reasons)[:3])})",
            )
        if exclude and all(s.id in exclude for s in pool.eligible):
            return Refusal(RefusalReason.ALL_TRIED, f"every ready replica of model {pool.model!r} was tried")
        return Refusal(RefusalReason.SATURATED, f"all {len(pool.eligible)} ready replicas of {pool.model!r} are full")

    def stats(self, model: str) -> ModelStats | None:
        pool = self._pools.get(model)
        return pool.stats if pool else None

    def bytes_per_token(self, model: str) -> float:
        """Prompt bytes per token, learned from answers' usage; 4.0 at the start."""
        pool = self._pools.get(model)
        return pool.stats.bytes_per_token if pool else 4.0

    def expected_output(self, model: str, max_tokens: int | None) -> int:
        """Tokens an answer is expected to have: the learned mean, cut to the client's own bound."""
        pool = self._pools.get(model)
        mean = int(pool.stats.output_tokens) if pool else 200
        return mean if max_tokens is None else max(min(mean, max_tokens), 0)

    def explain(self, facts: RequestFacts, now: float) -> Explanation:
        """What :meth:`place` would do now, and why. Charges nothing."""
        pool = self._pools.get(facts.model)
        if pool is None:
            reason = RefusalReason.MODEL_UNKNOWN if self._pools else RefusalReason.NOT_READY
            return Explanation(facts.model, self.policy_name, None, reason.value, ())
        levels = self._prefix.match(facts.prefix)
        tokens_per_byte = pool.stats.cache_trust / pool.stats.bytes_per_token
        rows = []
        for state in pool.members.values():
            held = next((size for size, bits in levels if bits >> state.index & 1), 0)
            cached = min(held * tokens_per_byte, max(facts.prompt_tokens - 1.0, 0.0))
            out = why_not(state, facts)
            parts = terms(state, facts, cached, now) | {"cached_tokens": cached}
            rows.append(Candidate(state.id, out, None if out else cost(state, facts, cached, now), parts))
        rows.sort(key=lambda c: (c.out is not None, c.cost_s if c.cost_s is not None else math.inf))
        chosen = rows[0].replica if rows and rows[0].out is None else None
        refusal = None if chosen else self._refusal(pool, ()).reason.value
        return Explanation(facts.model, self.policy_name, chosen, refusal, tuple(rows))

    def validate(self) -> None:
        """Assert the invariants of every part."""
        for state in self._states.values():
            state.validate()
        for model, pool in self._pools.items():
            assert pool.members, model
            assert pool.inflight >= 0
            assert pool.eligible == [s for s in pool.members.values() if s.eligible]
        for idle in self._idle.values():
            idle.validate()
        self._prefix.validate()
        self._peers.validate()
        told = {id(s): 0 for s in self._states.values()}
        for placement in self._peers.placements():
            if id(placement.state) in told:
                told[id(placement.state)] += 1
        assert all(s.told == told[id(s)] for s in self._states.values())


def _cut_to_fit(pool: Pool, facts: RequestFacts) -> RequestFacts | None:
    """The request as the roomiest ready replica could hold it, or None where some replica can hold it as it is.

    No waiting helps what fits nowhere. Its length is an estimate, and the engine knows better: it gets the request, and
    the client the engine's own answer, instead of a wait and 503.
    """
    room = max((min(s.prompt_max - 1, s.kv_max or math.inf) for s in pool.eligible), default=math.inf)
    need = facts.prompt_tokens + facts.output_tokens
    if facts.prompt_tokens <= room and not all(s.kv_max and need > s.kv_max for s in pool.eligible):
        return None
    if math.isinf(room):
        return None
    prompt = int(min(facts.prompt_tokens, room))
    return replace(facts, prompt_tokens=prompt, output_tokens=int(max(0, min(facts.output_tokens, room - prompt))))
