# compiled
"""The scheduler: filter → cost → pick → charge. Pure: time and chance are arguments, and it performs no I/O.

It joins the parts: members and their ledgers, the policy, the prefix index, and other gateways. The gateway and the
simulator drive the same object.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType

import msgspec

from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.explanation import Explanation, candidates
from exaserve.scheduling.filters import fits, reach
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.membership import Membership
from exaserve.scheduling.peers import Peers
from exaserve.scheduling.placement import Placement, Refusal, RefusalReason
from exaserve.scheduling.policies import POLICIES, Pick, Policy, PolicyContext, PolicyFactory
from exaserve.scheduling.pool import ModelPool

__all__ = ["Scheduler"]


class Scheduler:
    """Places requests on replicas and keeps account of them.

    Args:
        policies: those that :meth:`set_policy` knows, by name; a simulator adds ones that no gateway could have.

    Attributes:
        config: as given.
        policy_name: key of the policy in use.
        peers: other gateways that place work on the same replicas.
    """

    def __init__(self, config: SchedulerConfig, rng: Random, policies: Mapping[str, PolicyFactory] = POLICIES) -> None:
        self.config = config
        self._policies = policies
        self._rng = rng
        self._members = Membership(config)
        self._ledgers = self._members.ledgers
        self._pools = self._members.pools
        self._prefix = self._members.prefix
        self.peers = Peers(config, self._members)
        self._context = PolicyContext(config=config, rng=rng, prefix=self._prefix)
        self._policy: Policy
        self.set_policy(config.policy)

    # -- membership ------------------------------------------------------------------------------------------------

    def add(self, spec: ReplicaSpec, now: float) -> None:
        """Add a replica; it takes requests once :meth:`set_health` says so. ValueError where its id is taken."""
        self._members.add(spec, now, self.peers.rank(spec.id), self._rng.random())

    def update(self, spec: ReplicaSpec) -> None:
        """Take a replica's new description (models, weight, limits); its ledger and learned speed stay."""
        self._members.update(spec)

    def remove(self, replica: ReplicaId) -> None:
        """Forget a replica. Its placements in flight can still be released."""
        self._members.remove(replica)

    def states(self) -> Mapping[ReplicaId, ReplicaLedger]:
        return MappingProxyType(self._ledgers)

    def models(self) -> tuple[str, ...]:
        """Names served by any known replica, also one that is down; sorted."""
        return tuple(sorted(self._pools))

    def ready_models(self) -> tuple[str, ...]:
        """Names that at least one replica may take requests for; sorted."""
        return tuple(sorted(name for name, pool in self._pools.items() if pool.eligible))

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
        ledger = self._ledgers.get(replica)
        if ledger is None:
            return
        if not 0.0 < ramp <= 1.0:
            raise ValueError(f"ramp must be in (0, 1], not {ramp}")
        standing = ledger.standing
        if available and not standing.available:
            ledger.set_failures(0)
        standing.available, standing.reason, standing.ramp = available, reason, ramp
        self._members.changed(ledger)

    def restarted(self, replica: ReplicaId) -> None:
        """The engine behind ``replica`` is a new process: its report and its prefix cache are gone."""
        ledger = self._ledgers.get(replica)
        if ledger is not None:
            self._members.restarted(ledger)

    def drain(self, replica: ReplicaId, *, returning: bool = False) -> None:
        """No new requests; those in flight go on. KeyError for an unknown replica.

        Args:
            returning: it will be back by itself, so requests that find no other replica wait for it.
        """
        ledger = self._ledgers[replica]
        standing = ledger.standing
        standing.returning = returning and (standing.returning or not standing.draining)
        standing.draining = True
        self._members.changed(ledger)

    def undrain(self, replica: ReplicaId) -> None:
        ledger = self._ledgers[replica]
        ledger.standing.draining = False
        self._members.changed(ledger)

    def set_weight(self, replica: ReplicaId, weight: float) -> None:
        """Share of traffic relative to equals; 0 takes it out. ValueError below 0 or not finite."""
        if not (weight >= 0 and math.isfinite(weight)):
            raise ValueError(f"weight must be a finite number of at least 0, not {weight}")
        ledger = self._ledgers[replica]
        ledger.standing.weight = weight
        self._members.changed(ledger)

    def force_score(self, replica: ReplicaId, score: float | None) -> None:
        """Replace the replica's cost by ``score`` seconds; infinity means nothing at all, None undoes it."""
        if score is not None and not score >= 0:
            raise ValueError(f"score must be at least 0, infinity, or None, not {score}")
        ledger = self._ledgers[replica]
        ledger.standing.forced = score
        self._members.changed(ledger)

    def set_suspicion(self, replica: ReplicaId, factor: float) -> None:
        """Multiply the replica's cost by ``factor`` ≥ 1 while the anomaly guard distrusts it."""
        ledger = self._ledgers.get(replica)
        if ledger is not None:
            ledger.standing.suspicion = max(factor, 1.0)
            self._members.changed(ledger)

    def shunned(self) -> dict[tuple[str, str], tuple[ReplicaId, ...]]:
        """Replicas that reject what their peers accept, by model and route of such requests (see ``rejections``)."""
        return {
            (model, route): tuple(replicas)
            for model, pool in self._pools.items()
            for route, replicas in pool.rejections.shunned.items()
        }

    def forgive(self, replica: ReplicaId, model: str, route: str) -> None:
        """The replica has answered a probe of that model and route well: it gets such requests again."""
        pool = self._pools.get(model)
        if pool is not None:
            pool.rejections.forgive(replica, route)

    def postpone(self, replica: ReplicaId, model: str, route: str, until: float) -> None:
        """A probe of that model and route was rejected: no client's request tries the replica before ``until``."""
        pool = self._pools.get(model)
        if pool is not None:
            pool.rejections.postpone(replica, route, until)

    def report(self, report: Report, now: float) -> None:
        """Take a replica's telemetry. Stale, older than the one held, or of an unknown replica: ignored."""
        ledger = self._ledgers.get(report.replica)
        config = self.config
        if ledger is None or now - report.taken_at > config.report_stale_s:
            return
        models = ledger.spec.models
        pool = self._pools.get(models[0]) if models else None
        prompt_tokens = 512.0
        if pool is not None:
            stats = pool.stats
            prompt_tokens = stats.prompt_tokens
            away = self.peers.away(ledger.turf)
            ledger.turf.away_s = away * stats.work_s if away else 0.0
        if not ledger.report(report, prompt_tokens):
            return
        standing, seen = ledger.standing, ledger.seen
        if bool(report.asleep) is not standing.asleep:
            standing.asleep = not standing.asleep
            self._members.changed(ledger)
        self.peers.saw(seen.foreign_running + seen.foreign_waiting, ledger.inflight)

    def confirm(self, replicas: Iterable[ReplicaId], seq: int, taken_at: float, now: float) -> None:
        """These replicas' last reports still hold at ``taken_at``: as if they had been sent again with a new time."""
        if now - taken_at > self.config.report_stale_s:
            return
        ledgers = self._ledgers
        for replica in replicas:
            ledger = ledgers.get(replica)
            if ledger is None:
                continue
            last = ledger.seen.report
            if last is not None and not ledger.confirm(seq, taken_at):
                self.report(msgspec.structs.replace(last, seq=seq, taken_at=taken_at), now)

    def tick(self, now: float) -> None:
        """Stop believing reports, and speeds, that are too old. Call about as often as reports should come."""
        oldest = now - self.config.report_stale_s
        unseen = now - self.config.learn_window_s
        for ledger in self._ledgers.values():
            if ledger.seen.at < oldest:
                ledger.expire_report(now)
            if ledger.observed_at < unseen:
                ledger.fade(now)

    def signal_missing(self) -> Mapping[str, int]:
        """Decisions taken without a signal that the policy wanted, by signal."""
        return MappingProxyType(self._context.signal_missing)

    # -- requests --------------------------------------------------------------------------------------------------

    def place(self, facts: RequestFacts, now: float, exclude: Collection[ReplicaId] = ()) -> Placement | Refusal:
        """Choose a replica and charge its ledger, in one step. ``exclude``: replicas already tried."""
        pool = self._pools.get(facts.model)
        if pool is None:
            if not self._pools:
                return Refusal(RefusalReason.NOT_READY, "no replica has said yet which models it serves")
            return Refusal(RefusalReason.MODEL_UNKNOWN, f"no replica serves model {facts.model!r}")
        pick, facts = self._pick(self._policy, pool, facts, now, exclude)
        if pick is None:
            return self._refusal(pool, exclude)
        ledger, cost_s, cached = pick.ledger, pick.cost_s, pick.cached_tokens
        tokens = max(facts.prompt_tokens - cached, 1)
        placement = Placement(
            ledger,
            facts.model,
            now,
            cost_s,
            tokens,
            ledger.prefill_s(tokens),
            cached,
            facts.prompt_tokens + facts.output_tokens,
            facts.stream,
            facts.prompt_bytes,
            facts.route,
        )
        ledger.charge(placement, now)
        pool.inflight += 1
        pool.stats.placed(facts.prompt_tokens, placement.work_s)
        if facts.prefix:
            self._prefix.insert(facts.prefix, 1 << ledger.index)
        return placement

    @staticmethod
    def _pick(
        policy: Policy, pool: ModelPool, facts: RequestFacts, now: float, exclude: Collection[ReplicaId]
    ) -> tuple[Pick | None, RequestFacts]:
        """The policy's choice, and the request as it was chosen for."""
        kept_by = facts.kept_by
        if kept_by is not None and kept_by not in exclude:
            others = {each.id for each in pool.eligible if each.id != kept_by}
            if len(others) < len(pool.eligible):
                exclude = others  # where it is gone or out of service, another one says that it does not know of it
        if pool.rejections.shunned and (shunned := pool.rejections.avoid(facts.route, now)):
            avoid = {*exclude, *shunned}
            if any(each.id not in avoid for each in pool.eligible):
                exclude = avoid  # where the others are full it waits for one of them
        pick = policy.pick(pool, facts, now, exclude)
        if pick is None and (cut := _cut_to_fit(pool, facts)) is not None:
            return policy.pick(pool, cut, now, exclude), cut
        return pick, facts

    def first_token(self, placement: Placement, now: float) -> None:
        """The first body byte of a streamed answer arrived."""
        placement.ledger.first_token(placement, now)

    def release(self, placement: Placement, now: float, outcome: Outcome, usage: Usage | None = None) -> None:
        """Give back what ``placement`` holds. Exactly once; AssertionError on a second call."""
        placement.ledger.release(placement, now, outcome)
        pool = self._pools.get(placement.model)
        if pool is None:
            return
        pool.inflight = max(pool.inflight - 1, 0)
        rejected = outcome is Outcome.REJECTED
        if rejected or (outcome is Outcome.COMPLETED and pool.rejections):
            members = len(pool.eligible)
            pool.rejections.answered(placement.route, placement.replica_id, now, rejected, members)
        if usage is not None:
            pool.stats.observe(placement.prompt_bytes, usage.prompt_tokens, usage.completion_tokens)
            if placement.cached_tokens > 0:
                pool.stats.observe_cache(placement.cached_tokens, usage.cached_tokens)

    def _refusal(self, pool: ModelPool, exclude: Collection[ReplicaId]) -> Refusal:
        if not pool.eligible:
            reasons = {s.standing.why_not() or "" for s in pool.members.values()}
            out = all(each.standing.withdrawn for each in pool.members.values())
            return Refusal(
                RefusalReason.WITHDRAWN if out else RefusalReason.NOT_READY,
                f"no replica of model {pool.model!r} is ready ({'; '.join(sorted(reasons)[:3])})",
            )
        if exclude and all(s.id in exclude for s in pool.eligible):
            return Refusal(RefusalReason.ALL_TRIED, f"every ready replica of model {pool.model!r} was tried")
        return Refusal(RefusalReason.SATURATED, f"all {len(pool.eligible)} ready replicas of {pool.model!r} are full")

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
        """What :meth:`place` would do now, and why. Charges nothing, and takes nobody's turn."""
        pool = self._pools.get(facts.model)
        if pool is None:
            reason = RefusalReason.MODEL_UNKNOWN if self._pools else RefusalReason.NOT_READY
            return Explanation(facts.model, self.policy_name, None, reason.value, ())
        policy = self._policies[self.policy_name](self._context.fork())
        pick, facts = self._pick(policy, pool, facts, now, ())
        chosen = None if pick is None else pick.ledger.id
        refusal = None if chosen else self._refusal(pool, ()).reason.value
        rows = candidates(pool, self._prefix, facts, now)
        return Explanation(facts.model, self.policy_name, chosen, refusal, rows)

    def validate(self) -> None:
        """Assert the invariants of every part."""
        self._members.validate()
        self.peers.validate()


def _cut_to_fit(pool: ModelPool, facts: RequestFacts) -> RequestFacts | None:
    """The request as the roomiest ready replica could hold it, or None where some replica can hold it as it is.

    No waiting helps what fits nowhere. Its length is an estimate, and the engine knows better: it gets the request, and
    the client the engine's own answer, instead of a wait and 503.
    """
    need = facts.prompt_tokens + facts.output_tokens
    if any(reach(facts) <= s.context and fits(s, need) for s in pool.eligible):
        return None
    room = max((min(s.context, s.kv.max or math.inf) for s in pool.eligible), default=math.inf)
    if math.isinf(room):
        return None
    most = int(room)
    prompt = min(facts.prompt_tokens, most - 1)
    output = min(facts.output_tokens, most - prompt)
    return replace(facts, prompt_tokens=prompt, output_tokens=output, total_tokens_max=min(reach(facts), most))
