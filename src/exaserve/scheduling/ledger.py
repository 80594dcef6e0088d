# compiled
"""One replica as this gateway knows it: what was placed there, what it reported, and what it has learned of its speed.

The ledger is charged in the same call as the choice and credited once, at release. Between two reports it is the only
thing that moves, which is what keeps everything that arrives in one interval from going to one replica (A1b).

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
from exaserve.scheduling.config import SchedulerConfig
from exaserve.scheduling.idle import IdleSet
from exaserve.scheduling.learning import PrefillModel, Speed
from exaserve.scheduling.placement import Placement

__all__ = ["ReplicaState"]

_FAILURES_MAX = 6
_HEAD_SHARE = 0.9
"""Share of its predicted prefill that a prompt without a first token can have behind it: one that overstays its
prediction is not nearly done, it was predicted wrong."""


class ReplicaState:
    """Mutable state of one replica. Only :class:`~exaserve.scheduling.scheduler.Scheduler` changes it.

    Attributes are read by policies in a tight loop, so derived figures are kept up to date by events
    (:meth:`charge`, :meth:`first_token`, :meth:`release`, :meth:`report`) and never computed on reading:

        inflight: own placements not yet released, count.
        told: likewise, of other gateways that tell us theirs.
        pending: known placements without a first token, oldest first; pending_s: their prefill, seconds.
        head_s: upper bound of what may have drained of them since ``drain_at``, seconds.
        per_token_s / per_pair_s: seconds of prefill for T tokens are ``T (per_token_s + per_pair_s T)``.
        depth: requests believed to wait for their first token, own and foreign (E2).
        running: requests believed to be decoding, own and foreign.
        decode_s: cost of joining that batch, seconds.
        stall: multiplies the request's own prefill, for the batch that stands still meanwhile, for prompts that share
            its steps, and on other gateways' homes.
        kv_predicted / kv_limit / kv_max: KV tokens in use, at the watermark, in all (0 where the size is unknown).
        penalty: multiplies the cost: 1 / (weight x slow-start share), raised while suspect.
        failure_cost_s: added while the replica has failed recently, seconds.
        away_s: added while the replica is another gateway's home, seconds (X2).
        toll: share of the toll of another gateway's home that is due here: 0 at home, 0.5 to 1.5 elsewhere.
        lean: this gateway's own leaning, 0..1 by chance, for when others are seen that do not tell their work.
        reported_at / reported_seq: until when the last report's figures are known to hold, and its newest number.
        extra_s: what does not depend on the request: ``decode_s x penalty + failure_cost_s + away_s``.
        room: whether depth and KV use let it take anything now (E2).
        need_free: largest ``prompt + output`` in tokens that raises no question of memory, context or a special term;
            larger ones are priced by :func:`exaserve.scheduling.entropy.cost`.
        prompt_max: longest prompt the context window takes, tokens (infinite where unknown).
        special: whether something rare applies (a forced score, a network term), priced apart.
        idle_set / idle_at: where it stands while it may take requests and nothing waits there, and at which place
            (-1 while it is not idle).
    """

    __slots__ = (
        "_away_weight", "_depth_max", "_join_weight", "_rate_version", "_seq_s", "_stall_weight", "asleep",
        "available", "away_s", "config", "decode_s", "decoding", "depth", "drain_at", "draining", "eligible",
        "extra_s", "failure_cost_s", "failures", "forced", "foreign_running", "foreign_s", "foreign_waiting",
        "head_s", "health_reason", "home", "id", "idle_at", "idle_set", "index", "inflight", "kv_delta", "kv_limit",
        "kv_max", "kv_own", "kv_predicted", "kv_reported", "last_report", "lean", "need_free", "penalty", "pending",
        "pending_s", "per_pair_s", "per_token_s", "placed_since", "placed_total", "progressed_since", "prompt_max",
        "ramp", "removed", "report_fresh", "reported_at", "reported_seq", "room", "running", "spec", "special",
        "speed", "stall", "suspicion", "told", "toll", "url", "waiting_reported", "weight",
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
    reported_at: float
    index: int
    id: ReplicaId
    pending: list[Placement]
    inflight: int
    told: int
    decoding: int
    kv_own: int
    kv_delta: int
    placed_since: int
    progressed_since: int
    kv_reported: float
    kv_predicted: float
    waiting_reported: int
    foreign_waiting: int
    foreign_running: int
    depth: int
    running: int
    decode_s: float

    def __init__(self, spec: ReplicaSpec, config: SchedulerConfig, now: float, index: int, peers: PrefillModel) -> None:
        self.config = config
        self._depth_max = config.queue_depth_max
        self._seq_s = config.decode_seq_s * config.decode_weight
        self._stall_weight = config.stall_weight
        self._join_weight = config.join_weight
        self._away_weight = config.away_weight
        self.id = spec.id
        self.index = index
        self.available = False
        self.health_reason = "not probed yet"
        self.ramp = 1.0
        self.draining = False
        self.forced: float | None = None
        self.suspicion = 1.0
        self.removed = False
        self.failures = 0
        self.failure_cost_s = 0.0
        self.home = True
        self.toll = 0.0
        self.idle_set: IdleSet | None = None
        self.idle_at = -1
        self.lean = 0.0
        self.asleep = False
        self.away_s = 0.0
        self.inflight = 0
        self.told = 0
        self.placed_total = 0
        self.pending = []
        self.pending_s = 0.0
        self.head_s = 0.0
        self.drain_at = now
        self.decoding = 0
        self.kv_own = 0
        self.kv_delta = 0
        self.placed_since = 0
        self.progressed_since = 0
        self.last_report: Report | None = None
        self.reported_seq, self.reported_at = -1, -math.inf
        self.report_fresh = False
        self.waiting_reported = -1
        self.kv_reported = -math.inf
        self.foreign_waiting = 0
        self.foreign_running = 0
        self.foreign_s = 0.0
        self.depth = 0
        self.running = 0
        self.decode_s = 0.0
        self.kv_predicted = 0.0
        self.set_spec(spec, peers)

    def set_spec(self, spec: ReplicaSpec, peers: PrefillModel) -> None:
        """Take a new description; what was learned of its speed restarts only where it gets other peers."""
        old: ReplicaSpec | None = getattr(self, "spec", None)
        self.spec = spec
        self.url = spec.url
        if old is None or peers is not self.speed.model:
            config = self.config
            self.speed: Speed = Speed(peers, config.prior_busy_s, config.learn_window_s)
            self._set_rate()
        if old is None or old.weight != spec.weight:
            self.weight = spec.weight
        self._set_kv_max()
        self.set_penalty()

    # -- operator, health ------------------------------------------------------------------------------------------

    def set_penalty(self) -> None:
        share = self.weight * self.ramp
        self.special = self.forced is not None or self.spec.net_mb_s_max > 0
        self.prompt_max = float(self.spec.max_model_len or math.inf)
        self.penalty = self.suspicion / share if share > 0 else math.inf
        self.eligible = (
            self.available
            and not self.draining
            and not self.asleep
            and self.weight > 0
            and self.forced != math.inf
            and not self.removed
        )
        self.refresh()

    def why_not_eligible(self) -> str | None:
        """The reason this replica may take no request at all, or None."""
        if self.removed:
            return "removed"
        if self.forced == math.inf:
            return "score forced to infinity by the operator"
        if self.draining:
            return "draining"
        if not self.weight > 0:
            return "weight 0"
        if self.asleep:
            return "the engine sleeps"
        if not self.available:
            return f"not available: {self.health_reason}"
        return None

    # -- requests --------------------------------------------------------------------------------------------------

    def charge(self, placement: Placement, now: float) -> None:
        if self.pending:
            self._advance(now)
        if not self.pending:
            self.drain_at = now
        self.pending.append(placement)
        self.pending_s += placement.work_s
        if placement.foreign:
            self.told += 1
        else:
            self.inflight += 1
            self.placed_total += 1
        self.kv_own += placement.kv_tokens
        self.kv_delta += placement.kv_tokens
        self.placed_since += 1
        self.refresh()

    def first_token(self, placement: Placement, now: float) -> None:
        """The first byte of a streamed answer: its prefill is done now."""
        if placement.phase != Placement.PENDING:
            return
        self._advance(now)
        if placement.phase == Placement.PENDING:
            self._observe_prefill(placement, now)
            self._leave_pending(placement)
            self.drain_at = now
        self.refresh()

    def release(self, placement: Placement, now: float, outcome: Outcome) -> None:
        assert placement.phase != Placement.RELEASED, f"released twice: {placement!r}"
        if placement.phase == Placement.PENDING:
            if outcome is Outcome.COMPLETED:
                self._observe_whole(placement, now)
            self._leave_pending(placement)
            self.drain_at = now
        self.decoding -= 1
        placement.phase = Placement.RELEASED
        if placement.foreign:
            self.told -= 1
        else:
            self.inflight -= 1
        self.kv_own -= placement.kv_tokens
        self.kv_delta -= placement.kv_tokens
        if outcome is Outcome.REPLICA_FAILED or outcome is Outcome.REPLICA_ERROR:
            self.failures = min(self.failures + 1, _FAILURES_MAX)
            self.failure_cost_s = self.failures * self.config.failure_s
        elif self.failures and outcome is Outcome.COMPLETED:
            self.failures -= 1
            self.failure_cost_s = self.failures * self.config.failure_s
        self.refresh()

    def _leave_pending(self, placement: Placement) -> None:
        pending = self.pending
        if pending[0] is placement:
            pending.pop(0)
        else:
            pending.remove(placement)
        self.pending_s = self.pending_s - placement.work_s if pending else 0.0
        self.progressed_since += 1
        placement.phase = Placement.DECODING
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
            self._leave_pending(head)
            self.drain_at = done_at

    def _observe_prefill(self, placement: Placement, now: float) -> None:
        """Learn the prefill rate from a first byte: its tokens, over the time since the one before or its placement.

        Where other gateways place work here too, that time holds their prefill as well and the rate comes out as the
        share that is left for us. That is wanted: in the simulator, correcting for it made eight gateways worse.
        """
        self._observe(placement.tokens, now - max(placement.placed_at, self.drain_at))

    def _observe_whole(self, placement: Placement, now: float) -> None:
        """A plain answer took prefill *and* decode, so it can only show that prefill is faster than believed."""
        took = now - max(placement.placed_at, self.drain_at)
        if took < placement.work_s:
            self._observe(placement.tokens, took)

    def _observe(self, tokens: int, took_s: float) -> None:
        if self.speed.observe(tokens, took_s):
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
        taken_at = report.taken_at
        if report.seq <= self.reported_seq or taken_at < self.reported_at:
            return False
        last = self.last_report
        self.last_report = report
        self.reported_seq = report.seq
        self.reported_at = taken_at
        self.report_fresh = True
        waiting = report.waiting
        if waiting is None:
            self.waiting_reported = -1
            waiting = 0
        else:
            self.waiting_reported = waiting
        newer = newer_kv = 0
        pending = self.pending
        if pending:
            for placement in reversed(pending):
                if placement.placed_at <= taken_at:
                    break
                newer += 1
                newer_kv += placement.kv_tokens
        self.placed_since = newer
        self.progressed_since = 0
        self.kv_delta = newer_kv
        foreign = waiting + (report.running or 0) - (self.inflight + self.told - newer)
        foreign_waiting = 0
        foreign_s = 0.0
        if foreign > 0:
            unknown = waiting - (len(pending) - newer)
            if unknown > 0:
                foreign_waiting = unknown if unknown < foreign else foreign  # noqa: FURB136  # min() is a call
                foreign_s = foreign_waiting * self.prefill_s(mean_prompt_tokens)
            self.foreign_running = foreign - foreign_waiting
        else:
            self.foreign_running = 0
        self.foreign_waiting = foreign_waiting
        self.foreign_s = foreign_s
        if last is None or last.kv_tokens_max != report.kv_tokens_max:
            self._set_kv_max()
        kv_use = report.kv_use
        self.kv_reported = -math.inf if kv_use is None or not self.kv_max else kv_use * self.kv_max
        if self._rate_version != self.speed.version:
            self._set_rate()
        self.refresh()
        return True

    def confirm(self, seq: int, taken_at: float) -> bool:
        """The last report's figures hold at ``taken_at`` too. False where that moves more than their age.

        It does where the ledger has moved since, or where the report is not believed: then it is to be taken in full.
        """
        if not self.report_fresh or self.placed_since or self.progressed_since or self.kv_delta:
            return False
        if seq > self.reported_seq and taken_at > self.reported_at:
            self.reported_seq = seq
            self.reported_at = taken_at
            if self._rate_version != self.speed.version:
                self._set_rate()
        return True

    def expire_report(self, now: float) -> None:
        """Stop believing a report that is too old: the ledger alone judges from here on."""
        if self.report_fresh and now - self.reported_at > self.config.report_stale_s:
            self._disbelieve()

    def forget_report(self) -> None:
        """The engine restarted: neither its report nor its counters mean anything now."""
        self.last_report = None
        self.reported_seq, self.reported_at = -1, -math.inf
        self._disbelieve()

    def _disbelieve(self) -> None:
        self.report_fresh = False
        self.waiting_reported = -1
        self.kv_reported = -math.inf
        self.foreign_waiting = self.foreign_running = 0
        self.foreign_s = 0.0
        self.refresh()

    def report_age(self, now: float) -> float | None:
        """Seconds since the report's figures were true, None without one."""
        return None if self.last_report is None else now - self.reported_at

    def _set_kv_max(self) -> None:
        reported = self.last_report.kv_tokens_max if self.last_report else None
        self.kv_max = float(reported or self.spec.kv_tokens_max or 0)
        self.kv_limit = self.kv_max * self.config.kv_watermark if self.kv_max else math.inf

    # -- derived figures -------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Recompute what policies read. Constant time; called once per event."""
        pending = self.pending
        own = depth = len(pending)
        if own:
            head = pending[0]
            self.head_s = head.work_s * _HEAD_SHARE if head.stream else self.pending_s
        else:
            self.head_s = 0.0
        if self.waiting_reported >= 0:
            # Nobody can be waiting but our own without a first token, and what others had waiting.
            depth = self.waiting_reported + self.placed_since - self.progressed_since
            most = own + self.foreign_waiting
            depth = most if depth > most else depth  # noqa: FURB136  # min() and max() are calls
            depth = 0 if depth < 0 else depth  # noqa: FURB136
        self.depth = depth
        # What waits has taken no KV yet, so the ledger may know of more than the report.
        kv = self.kv_reported + self.kv_delta if self.kv_delta else self.kv_reported
        if self.kv_own > kv:
            kv = float(self.kv_own)
        self.kv_predicted = kv
        self.running = running = self.decoding + self.foreign_running
        self.decode_s = decode_s = running * self._seq_s
        stall = 1.0 + running * self._stall_weight
        if own:
            stall += self._join_weight
        if not self.home:
            stall += self._away_weight * self.toll
        self.stall = stall
        self.extra_s = decode_s * self.penalty + self.failure_cost_s + self.away_s
        self.room = depth < self._depth_max and (kv < self.kv_limit or not (self.inflight or self.told))
        if self.special:
            self.need_free = -1.0
        else:
            free = self.kv_limit - kv
            self.need_free = free if free < self.prompt_max else self.prompt_max  # noqa: FURB136  # min() is a call
        idle = self.eligible and not own and not self.foreign_waiting
        if idle != (self.idle_at >= 0) and self.idle_set is not None:
            if idle:
                self.idle_set.add(self)
            else:
                self.idle_set.discard(self)

    def set_rank(self, rank: float) -> None:
        """How many gateways come before this one here, as a share of the others: 0 makes it this gateway's home."""
        self.home = rank == 0.0
        self.toll = 0.0 if self.home else 0.5 + rank

    def stand_in(self, idle_set: IdleSet | None) -> None:
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
        if foreign and self.last_report is not None:
            foreign = max(0.0, foreign - (now - self.reported_at))
        return max(own, 0.0) + foreign

    def validate(self) -> None:
        """Assert the ledger's invariants."""
        known = self.inflight + self.told
        assert self.inflight >= 0
        assert self.told >= 0
        assert self.decoding == known - len(self.pending) >= 0, (self.decoding, known, len(self.pending))
        assert abs(self.pending_s - sum(p.work_s for p in self.pending)) < 1e-6 * (1 + self.pending_s)
        assert self.pending or self.pending_s == 0.0
        assert self.kv_own >= 0
        assert known > 0 or self.kv_own == 0
        assert all(p.phase == Placement.PENDING for p in self.pending)
        assert self.per_token_s > 0
        assert self.per_pair_s >= 0
        assert self.depth >= 0
        assert self.running >= 0
        assert self.idle_set is None or (self.idle_at >= 0) == (
            self.eligible and not self.pending and not self.foreign_waiting
        )
