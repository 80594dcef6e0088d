# compiled
"""One replica as this gateway knows it: what was placed there, what it reported, and what it has learned of its speed.

The ledger is charged in the same call as the choice and credited once, at release. Between two reports it is the only
thing that moves, which is what keeps everything that arrives in one interval from going to one replica.

Prefill backlog is a fluid queue, because engines prefill first come, first served in chunks: the prompt tokens of
placements without a first token, less what the replica has had time to compute since its last sign of progress. A
streamed request's first byte *is* such a sign, so a replica that shows none cannot drain more than the request at the
head of its queue: a frozen or slow replica keeps its backlog, whatever the clock says. Plain answers show no first
byte; their prefill is taken as done when its predicted time is over.

Work that other gateways placed shows in reports, as ``waiting`` and ``running`` beyond what is known here; or at once,
where they tell us (:mod:`exaserve.scheduling.peers`): then it is charged like our own.
"""

from __future__ import annotations

import math

from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import Outcome
from exaserve.scheduling.charge import Charge
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.idle import Idler, IdleSet
from exaserve.scheduling.kv import KvAccount
from exaserve.scheduling.learning import PrefillModel, Speed
from exaserve.scheduling.seen import Seen
from exaserve.scheduling.standing import Standing
from exaserve.scheduling.turf import Turf

__all__ = ["EventPrices", "ReplicaLedger"]

_FAILURES_MAX = 6
_HEAD_SHARE = 0.9
"""Share of its predicted prefill that a prompt without a first token can have behind it: one that overstays its
prediction is not nearly done, it was predicted wrong."""


class EventPrices:
    """What of the configuration each event of a ledger needs, at hand: one for all replicas of a scheduler."""

    __slots__ = ("away_weight", "config", "depth_max", "failure_s", "join_weight", "seq_s", "stall_weight")

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.depth_max = config.queue_depth_max
        self.seq_s = config.decode_seq_s * config.decode_weight
        self.stall_weight = config.stall_weight
        self.join_weight = config.join_weight
        self.away_weight = config.away_weight
        self.failure_s = config.failure_s


class ReplicaLedger(Idler):
    """Mutable account of one replica. Only :class:`~exaserve.scheduling.scheduler.Scheduler` and its parts change it.

    Attributes are read by policies in a tight loop, so derived figures are kept up to date by events
    (:meth:`charge`, :meth:`first_token`, :meth:`release`, :meth:`report`) and never computed on reading:

        standing: whether it may take requests at all; seen: its last report; kv: its cache; turf: whose home it is.
        eligible / penalty: as ``standing`` says; the penalty multiplies the cost.
        inflight: own placements not yet released, count.
        told: likewise, of other gateways that tell us theirs.
        pending: known placements without a first token, oldest first; pending_s: their prefill, seconds.
        head_s: upper bound of what may have drained of them since ``drain_at``, seconds.
        foreign_s: prefill of the prompts that others had waiting at the last report, seconds.
        per_token_s / per_pair_s: seconds of prefill for T tokens are ``T (per_token_s + per_pair_s T)``.
        depth: requests believed to wait for their first token, own and foreign.
        decoding / assumed: known ones past their prefill, and those of them that nothing has shown it of.
        running: requests believed to be decoding, own and foreign.
        decode_s: cost of joining that batch, seconds.
        stall: multiplies the request's own prefill, for the batch that stands still meanwhile, for prompts that share
            its steps, and on other gateways' homes.
        failure_cost_s: added while the replica has failed recently, seconds.
        extra_s: what does not depend on the request: ``decode_s x penalty + failure_cost_s + away_s``.
        room: whether depth and KV use let it take anything now.
        need_free: largest ``prompt + output`` in tokens that raises no question of memory or a forced score; larger
            ones are priced by :func:`exaserve.scheduling.entropy.cost`.
        context: prompt and answer that the context window takes, tokens (infinite where unknown).
        idle_set: where it stands while it may take requests and nothing waits there.
    """

    __slots__ = (
        "_rate_version", "assumed", "context", "decode_s", "decoding", "depth", "drain_at", "eligible", "extra_s",
        "failure_cost_s", "failures", "foreign_s", "head_s", "id", "idle_set", "index", "inflight", "kv", "need_free",
        "observed_at", "penalty", "pending", "pending_s", "per_pair_s", "per_token_s", "placed_total", "prices", "room",
        "running", "seen", "spec", "speed", "stall", "standing", "told", "turf", "url",
    )  # fmt: skip

    # Compiled, they lie in memory in this order: what a scan reads of each of its candidates, in two cache lines, then
    # what each event changes.
    room: bool
    eligible: bool
    stall: float
    per_token_s: float
    per_pair_s: float
    pending_s: float
    drain_at: float
    head_s: float
    foreign_s: float
    penalty: float
    extra_s: float
    need_free: float
    context: float
    index: int
    id: ReplicaId
    seen: Seen
    pending: list[Charge]
    inflight: int
    told: int
    decoding: int
    assumed: int
    depth: int
    running: int
    decode_s: float

    def __init__(
        self, spec: ReplicaSpec, prices: EventPrices, now: float, index: int, peers: PrefillModel, lean: float = 0.0
    ) -> None:
        super().__init__()
        self.prices = prices
        self.id = spec.id
        self.index = index
        self.standing = Standing(spec.weight)
        self.seen = Seen()
        self.kv = KvAccount(prices.config.kv_watermark)
        self.turf = Turf(lean)
        self.idle_set: IdleSet[ReplicaLedger] | None = None
        self.failures = 0
        self.failure_cost_s = 0.0
        self.inflight = self.told = self.decoding = self.assumed = self.placed_total = 0
        self.pending = []
        self.pending_s = self.head_s = self.foreign_s = 0.0
        self.drain_at = self.observed_at = now
        self.depth = self.running = 0
        self.decode_s = 0.0
        self.spec = spec
        self.url = spec.url
        self._learn_from(peers)
        self._size_kv()
        self.stand()

    def set_spec(self, spec: ReplicaSpec, peers: PrefillModel) -> None:
        """Take a new description; what was learned of its speed restarts only where it gets other peers."""
        if spec.weight != self.spec.weight:
            self.standing.weight = spec.weight
        self.spec = spec
        self.url = spec.url
        if peers is not self.speed.model:
            self._learn_from(peers)
        self._size_kv()
        self.stand()

    def _learn_from(self, peers: PrefillModel) -> None:
        config = self.prices.config
        self.speed = Speed(peers, config.prior_busy_s, config.learn_window_s)
        self._set_rate()

    def stand(self) -> None:
        """Bring up to date what follows from ``standing`` and the description."""
        self.context = float(self.spec.max_model_len or math.inf)
        self.penalty = self.standing.penalty
        self.eligible = self.standing.eligible
        self.refresh()

    # -- requests --------------------------------------------------------------------------------------------------

    def charge(self, charge: Charge, now: float) -> None:
        if self.pending:
            self._advance(now)
        if not self.pending:
            self.drain_at = now
        self.pending.append(charge)
        self.pending_s += charge.work_s
        if charge.foreign:
            self.told += 1
        else:
            self.inflight += 1
            self.placed_total += 1
        self.kv.charge(charge.kv_tokens)
        self.seen.placed_since += 1
        self.refresh()

    def first_token(self, charge: Charge, now: float) -> None:
        """The first byte of a streamed answer: its prefill is done now."""
        if charge.phase != Charge.PENDING:
            return
        self._advance(now)
        if charge.phase == Charge.PENDING:
            # Where other gateways place work here too, the time since the one before holds their prefill as well, and
            # the rate comes out as the share that is left for us. That is wanted: in the simulator, correcting for it
            # made eight gateways worse.
            self._observe(charge, now, now - max(charge.placed_at, self.drain_at))
            self._leave_pending(charge, Charge.DECODING)
            self.drain_at = now
        self.refresh()

    def release(self, charge: Charge, now: float, outcome: Outcome) -> None:
        assert charge.phase != Charge.RELEASED, f"released twice: {charge!r}"
        if charge.phase == Charge.PENDING:
            if outcome is Outcome.COMPLETED:
                self._observe_whole(charge, now)
            self._leave_pending(charge, Charge.DECODING)
            self.drain_at = now
        elif charge.phase == Charge.ASSUMED:
            self.assumed -= 1
            self.seen.progressed_since += 1
        self.decoding -= 1
        charge.phase = Charge.RELEASED
        if charge.foreign:
            self.told -= 1
        else:
            self.inflight -= 1
        self.kv.charge(-charge.kv_tokens)
        if outcome is Outcome.REPLICA_FAILED or outcome is Outcome.REPLICA_ERROR:
            self.set_failures(min(self.failures + 1, _FAILURES_MAX))
        elif self.failures and outcome is Outcome.COMPLETED:
            self.set_failures(self.failures - 1)
        self.refresh()

    def set_failures(self, count: int) -> None:
        """Recent failures; they count from the next :meth:`refresh` on."""
        self.failures = count
        self.failure_cost_s = count * self.prices.failure_s

    def _leave_pending(self, charge: Charge, phase: int) -> None:
        pending = self.pending
        if pending[0] is charge:
            pending.pop(0)
        else:
            pending.remove(charge)
        self.pending_s = self.pending_s - charge.work_s if pending else 0.0
        if phase == Charge.ASSUMED:
            self.assumed += 1
        else:
            self.seen.progressed_since += 1
        charge.phase = phase
        self.decoding += 1

    def _advance(self, now: float) -> None:
        """Move plain requests at the head of the queue on, whose prefill must be over by the learned rate."""
        while self.pending:
            head = self.pending[0]
            if head.stream:
                break
            done_at = self.drain_at + head.work_s
            if done_at > now:
                break
            self._leave_pending(head, Charge.ASSUMED)
            self.drain_at = done_at

    def _observe_whole(self, charge: Charge, now: float) -> None:
        """A plain answer took prefill *and* decode, so it can only show that prefill is faster than believed."""
        took = now - max(charge.placed_at, self.drain_at)
        if took < charge.work_s:
            self._observe(charge, now, took)

    def _observe(self, charge: Charge, now: float, took_s: float) -> None:
        self.observed_at = now
        if self.speed.observe(charge.tokens, took_s):
            self._set_rate()

    def fade(self, now: float) -> None:
        """Let go of what was learned of a speed that nobody sees any more: one that is thought slow gets no requests
        that could show otherwise."""
        if now - self.observed_at > self.prices.config.learn_window_s:
            self.observed_at = now
            self.speed.fade()
            self._set_rate()

    def _set_rate(self) -> None:
        speed = self.speed
        factor = speed.factor
        self.per_token_s = speed.model.a * factor
        self.per_pair_s = speed.model.b * factor
        self._rate_version = speed.version

    def prefill_s(self, tokens: float) -> float:
        """Seconds of prefill for ``tokens`` prompt tokens that are not cached."""
        return tokens * (self.per_token_s + self.per_pair_s * tokens)

    # -- telemetry -------------------------------------------------------------------------------------------------

    def report(self, report: Report, mean_prompt_tokens: float) -> bool:
        """Take a report; False where it is older than the one held.

        Credit is only for work newer than the report: what was placed before it is in its figures already.
        """
        seen = self.seen
        if not seen.is_news(report):
            return False
        last = seen.report
        taken_at = report.taken_at
        newer = newer_kv = 0
        pending = self.pending
        if pending:
            for charge in reversed(pending):
                if charge.placed_at <= taken_at:
                    break
                newer += 1
                newer_kv += charge.kv_tokens
        if self._rate_version != self.speed.version:
            self._set_rate()
        seen.take(report, len(pending), self.inflight + self.told, newer)
        waiting = seen.foreign_waiting
        self.foreign_s = waiting * self.prefill_s(mean_prompt_tokens) if waiting else 0.0
        if last is None or last.kv_tokens_max != report.kv_tokens_max:
            self._size_kv()
        self.kv.see(report.kv_use, newer_kv)
        self.refresh()
        return True

    def confirm(self, seq: int, taken_at: float) -> bool:
        """The last report's figures hold at ``taken_at`` too. False where that moves more than their age.

        It does where the ledger has moved since, where the report is not believed, or where others' work that it shows
        is to be priced at another rate: then it is to be taken in full.
        """
        seen = self.seen
        moved = seen.placed_since or seen.progressed_since or self.kv.delta
        news = self._rate_version != self.speed.version
        if not seen.fresh or moved or (news and self.foreign_s):
            return False
        if seq > seen.seq and taken_at > seen.at:
            seen.seq = seq
            seen.at = taken_at
            if news:
                self._set_rate()
        return True

    def expire_report(self, now: float) -> None:
        """Stop believing a report that is too old: the ledger alone judges from here on."""
        if self.seen.fresh and now - self.seen.at > self.prices.config.report_stale_s:
            self.seen.disbelieve()
            self._unsee()

    def forget_report(self) -> None:
        """The engine restarted: neither its report nor its counters mean anything now."""
        self.seen.forget()
        self._unsee()

    def _unsee(self) -> None:
        self.kv.unsee()
        self.foreign_s = 0.0
        self.refresh()

    def report_age(self, now: float) -> float | None:
        """Seconds since the report's figures were true, None without one."""
        return None if self.seen.report is None else now - self.seen.at

    def _size_kv(self) -> None:
        reported = self.seen.report.kv_tokens_max if self.seen.report else None
        self.kv.size(float(reported or self.spec.kv_tokens_max or 0))

    # -- derived figures -------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Recompute what policies read. Constant time; called once per event."""
        seen, prices, turf = self.seen, self.prices, self.turf
        pending = self.pending
        own = len(pending)
        if own:
            head = pending[0]
            self.head_s = head.work_s * _HEAD_SHARE if head.stream else self.pending_s
        else:
            self.head_s = 0.0
        self.depth = depth = seen.depth(own, self.assumed)
        kv = self.kv.predict()
        self.running = running = self.decoding + seen.foreign_running
        self.decode_s = decode_s = running * prices.seq_s
        stall = 1.0 + running * prices.stall_weight
        if own:
            stall += prices.join_weight
        if not turf.home:
            stall += prices.away_weight * turf.toll
        self.stall = stall
        self.extra_s = decode_s * self.penalty + self.failure_cost_s + turf.away_s
        limit = self.kv.limit
        # A request larger than the watermark would wait for ever, so who has nothing to do takes anything.
        busy = self.inflight or self.told or seen.foreign_running or seen.foreign_waiting
        self.room = depth < prices.depth_max and (kv < limit or not busy)
        if self.standing.forced is not None:
            self.need_free = -1.0
        else:
            self.need_free = limit - kv
        idle = self.eligible and not own and not seen.foreign_waiting
        if idle != (self.idle_at >= 0) and self.idle_set is not None:
            if idle:
                self.idle_set.add(self)
            else:
                self.idle_set.discard(self)

    def stand_in(self, idle_set: IdleSet[ReplicaLedger] | None) -> None:
        """From the next :meth:`refresh` on it is counted in ``idle_set`` while it is idle."""
        if self.idle_set is not idle_set:
            if self.idle_set is not None:
                self.idle_set.discard(self)
            self.idle_set = idle_set

    def backlog_s(self, now: float) -> float:
        """Seconds of prefill ahead of a request placed now: own and foreign, less what has had time to drain."""
        own = self.pending_s
        if own:
            own -= min(now - self.drain_at, self.head_s)
        foreign = self.foreign_s
        if foreign:
            foreign = max(0.0, foreign - (now - self.seen.at))
        return max(own, 0.0) + foreign

    def validate(self) -> None:
        """Assert the ledger's invariants."""
        known = self.inflight + self.told
        assert self.inflight >= 0
        assert self.told >= 0
        assert 0 <= self.assumed <= self.decoding
        assert self.decoding == known - len(self.pending) >= 0, (self.decoding, known, len(self.pending))
        assert abs(self.pending_s - sum(p.work_s for p in self.pending)) < 1e-6 * (1 + self.pending_s)
        assert self.pending or self.pending_s == 0.0
        assert self.kv.own >= 0
        assert known > 0 or self.kv.own == 0
        assert all(p.phase == Charge.PENDING for p in self.pending)
        assert self.per_token_s > 0
        assert self.per_pair_s >= 0
        assert self.depth >= 0
        assert self.running >= 0
        assert (self.eligible, self.penalty) == (self.standing.eligible, self.standing.penalty)
        assert self.idle_set is None or (self.idle_at >= 0) == (
            self.eligible and not self.pending and not self.seen.foreign_waiting
        )
