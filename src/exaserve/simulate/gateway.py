# compiled
"""A simulated gateway: the real scheduler, admission queue and health book, driven as the live gateway drives them.

What the live one does by sockets and timers is done here by events of the world: placing, queueing, retrying before
the first token, evacuating a replica that health has taken out, polling reports, probing.
"""

from __future__ import annotations

from random import Random

from exaserve.domain.errors import QueueFull
from exaserve.domain.replica import ReplicaId, Report
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.health import FailureKind
from exaserve.perfmodel.engine import SequenceState
from exaserve.scheduling import Admission, Placement, PolicyFactory, Refusal, RefusalReason, Scheduler
from exaserve.serving.fleet import Fleet
from exaserve.serving.member import ChangeKind
from exaserve.simulate.call import Call
from exaserve.simulate.replica import Job, SimReplica
from exaserve.simulate.world import World

__all__ = ["SimGateway"]

TICK_S = 0.05
"""How often health, probes and deadlines are looked at."""
BACKOFF_S = (0.25, 0.5, 1.0, 2.0)
"""Waits before a request that has tried every replica starts again."""
PROBE_TOKENS = 8
_KINDS = {
    "connect": FailureKind.CONNECT,
    "reset": FailureKind.RESET,
    "timeout": FailureKind.TIMEOUT,
    "status_5xx": FailureKind.STATUS_5XX,
}


class Probe(Job):
    """A completion of one token that health asked for."""

    __slots__ = ("ended", "replica", "sent_at", "timeout_s")

    def __init__(self, gateway: SimGateway, replica: SimReplica, now: float, timeout_s: float) -> None:
        super().__init__(PROBE_TOKENS, 1)
        self.gateway = gateway
        self.replica = replica
        self.sent_at = now
        self.timeout_s = timeout_s
        self.ended = False

    def on_done(self, now: float) -> None:
        self.gateway.probed(self, 200, now)

    def on_lost(self, now: float, why: str) -> None:
        self.gateway.probed(self, 500 if why == "status_5xx" else None, now, why)

    def on_refused(self, now: float) -> None:
        self.gateway.probed(self, 400, now)


class SimGateway:
    """One gateway of the cluster.

    Attributes:
        name: as the other gateways know it.
        budget: retries it may still take, refilled by requests.
    """

    def __init__(self, world: World, name: str, policies: dict[str, PolicyFactory], policy: str, seed: str) -> None:
        self.world = world
        self.name = name
        cluster, settings = world.cluster, world.settings
        self.scheduler = Scheduler(cluster.scheduling, Random(seed), policies)
        self.scheduler.set_policy(policy)
        self.admission = Admission(cluster.admission)
        self.fleet = Fleet(self.scheduler, cluster.health, self._changes_wait)
        self.retry = cluster.gateway.retry
        self.timeouts = cluster.gateway.timeouts
        self.reports_ages = policy == "literal"
        self._hop_s = settings.hop_s
        self._told_s = settings.told_s
        self._peers: list[SimGateway] = []
        self._under_way: dict[Call, None] = {}
        self._budget = self.retry.budget_min_per_s * self.retry.budget_window_s
        self._seq = 0
        self._probes: dict[Probe, None] = {}
        self._facts: dict[tuple[int, int, int], RequestFacts] = {}
        self._usages: dict[tuple[int, int, int], Usage] = {}
        self._waiting = 0

    def meet(self, gateways: list[SimGateway], *, homes: bool) -> None:
        """Learns of the other gateways."""
        if len(gateways) > 1:
            if homes:
                self.scheduler.peers.set_gateways(self.name, [each.name for each in gateways])
            if self._told_s is not None:
                self._peers = [each for each in gateways if each is not self]

    def start(self, now: float, phase: float) -> None:
        """Begins to look at deadlines and telemetry; ``phase`` (0..1) spreads the gateways over the intervals."""
        interval_s = self.world.cluster.telemetry.interval_s
        self.world.at(now + phase * TICK_S, self._tick)
        self.world.at(now + phase * interval_s, self._look)

    # -- requests ---------------------------------------------------------------------------------------------------
    def arrive(self, call: Call, now: float) -> None:
        """A client's request."""
        self._budget += self.retry.budget_ratio
        key = (call.prompt_tokens, call.output_tokens, call.session)
        facts = self._facts.get(key) if call.session < 0 else None
        expected = self.scheduler.expected_output(call.model, call.output_tokens)
        if facts is None or facts.output_tokens != expected:
            facts = RequestFacts(
                call.model,
                call.prompt_tokens,
                expected,
                call.prompt_tokens + call.output_tokens,
                stream=True,
                session=f"s{call.session}" if call.session >= 0 else None,
                prefix=call.prefix,
                prompt_bytes=4 * call.prompt_tokens,
            )
            if call.session < 0:
                self._facts[key] = facts
        call.facts = facts
        self._place(call, now)

    def _place(self, call: Call, now: float) -> None:
        result = self.scheduler.place(call.facts, now, call.tried)
        if type(result) is Placement:
            self._go(call, result, now)
        else:
            assert isinstance(result, Refusal)
            self._refused(call, result, now)

    def _go(self, call: Call, placement: Placement, now: float) -> None:
        call.placement = placement
        call.attempts += 1
        call.sent_at = now
        call.replica = replica = self.world.replicas[placement.replica_id]
        if self._peers:
            self.world.at(now + (self._told_s or 0.0), self._tell_placed, placement, call.index)
        if self._hop_s:
            self._under_way[call] = None
            self.world.at(now + self._hop_s, self._reach, call, replica)
        else:
            replica.submit(now, call)

    def _reach(self, now: float, call: Call, replica: SimReplica) -> None:
        self._under_way.pop(call, None)
        if not call.over:
            replica.submit(now, call)

    def _refused(self, call: Call, refusal: Refusal, now: float) -> None:
        reason = refusal.reason
        if reason is RefusalReason.MODEL_UNKNOWN:
            self._end(call, now, "rejected")
        elif reason is RefusalReason.WITHDRAWN:
            self._end(call, now, "no_replica_ready")
        elif reason is RefusalReason.ALL_TRIED:
            call.tried = ()
            self.world.at(now + BACKOFF_S[min(call.attempts, len(BACKOFF_S)) - 1], self._again, call)
        else:
            try:
                call.ticket = self.admission.offer(call.facts, now, call, 4 * call.prompt_tokens)
            except QueueFull:
                self._end(call, now, "queue_full")
                return
            self._count_queue(now)

    def _again(self, now: float, call: Call, _: object) -> None:
        if not call.over:
            self._place(call, now)

    def wake(self, now: float) -> None:
        """Sends on what the admission queue may now place."""
        if not self._waiting:
            return
        place = self.scheduler.place
        placed = self.admission.dispatch(lambda facts: place(facts, now))
        self._count_queue(now)
        for ticket, placement in placed:
            call = ticket.waiter
            assert isinstance(call, Call)
            call.ticket = None
            call.tried = ()
            self.world.recorder.queued_s[call.index] += now - ticket.offered_at
            self._go(call, placement, now)

    def _count_queue(self, now: float) -> None:
        waiting = len(self.admission)
        self.world.count(now, waiting - self._waiting, 0)
        self._waiting = waiting

    # -- what replicas answer ---------------------------------------------------------------------------------------
    def first_token(self, call: Call, now: float) -> None:
        """A replica has sent a first token."""
        if self._hop_s:
            self.world.at(now + self._hop_s, self._first_seen, call)
        else:
            self._first_seen(now, call, None)

    def _first_seen(self, now: float, call: Call, _: object) -> None:
        placement = call.placement
        if placement is None or call.over:
            return
        self.world.recorder.first[call.index] = now
        call.answered = True
        self.scheduler.first_token(placement, now)
        self.fleet.succeeded(placement.replica_id, now)
        if self._peers:
            self.world.at(now + (self._told_s or 0.0), self._tell_first, call.index)

    def done(self, call: Call, now: float) -> None:
        """A replica has sent the last token."""
        if self._hop_s:
            self._under_way[call] = None
            self.world.at(now + self._hop_s, self._done_seen, call)
        else:
            self._done_seen(now, call, None)

    def _done_seen(self, now: float, call: Call, _: object) -> None:
        self._under_way.pop(call, None)
        if call.over:
            return
        key = (call.prompt_tokens, call.output_tokens, call.cached_tokens)
        usage = self._usages.get(key)
        if usage is None:
            usage = self._usages[key] = Usage(*key)
        self._settle(call, now, Outcome.COMPLETED, usage)
        self._end(call, now)
        if self._waiting:
            self.wake(now)

    def refused_by_replica(self, call: Call, now: float) -> None:
        """400: it can never run there."""
        self._settle(call, now, Outcome.REJECTED)
        self._end(call, now, "rejected")

    def lost(self, call: Call, now: float, why: str) -> None:
        """The replica could not be reached, lost the request, or answered 500."""
        placement = call.placement
        if placement is None or call.over:
            return
        self.fleet.failed(placement.replica_id, _KINDS[why], now)
        if call.answered:
            self._settle(call, now, Outcome.REPLICA_FAILED)
            self._end(call, now, "cut")
        elif call.attempts < self.retry.attempts_max and self._take_retry():
            self._move(call, now, Outcome.REPLICA_ERROR if why == "status_5xx" else Outcome.REPLICA_FAILED)
        else:
            self._settle(call, now, Outcome.REPLICA_FAILED)
            self._end(call, now, why)
        self.wake(now)

    def _take_retry(self) -> bool:
        limit = self.retry.budget_min_per_s * self.retry.budget_window_s
        self._budget = min(self._budget, 2.0 * limit)
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        return True

    def _move(self, call: Call, now: float, outcome: Outcome) -> None:
        """Leaves its replica for another one; nothing has been answered yet."""
        assert call.placement is not None
        call.tried = (*call.tried, call.placement.replica_id)
        self._settle(call, now, outcome)
        self._place(call.again(), now)

    def _settle(self, call: Call, now: float, outcome: Outcome, usage: Usage | None = None) -> None:
        placement = call.placement
        assert placement is not None
        call.placement = None
        self.scheduler.release(placement, now, outcome, usage)
        if self._peers:
            self.world.at(now + (self._told_s or 0.0), self._tell_done, call.index)

    def _end(self, call: Call, now: float, error: str = "") -> None:
        call.over = True
        recorder = self.world.recorder
        if call.attempts > 1:
            recorder.attempts[call.index] = min(call.attempts, 127)
        recorder.ended(call.index, now, error)
        self.world.open -= 1

    def give_up_all(self, now: float) -> None:
        """The run is over: what is under way to or from a replica is open too."""
        for call in list(self._under_way):
            self.give_up(call, now)

    def give_up(self, call: Call, now: float) -> None:
        """The run is over and the request still open."""
        if call.over:
            return
        if call.ticket is not None:
            self.admission.cancel(call.ticket)
            call.ticket = None
        if call.placement is not None:
            self._settle(call, now, Outcome.CLIENT_GONE)
        self._end(call, now, "unfinished")

    # -- other gateways ---------------------------------------------------------------------------------------------
    def _tell_placed(self, now: float, placement: Placement, ref: int) -> None:
        tokens, kv = placement.tokens, placement.kv_tokens
        for peer in self._peers:
            peer.scheduler.peers.placed(self.name, ref, placement.replica_id, tokens, kv, placement.stream, now)

    def _tell_first(self, now: float, ref: int, _: object) -> None:
        for peer in self._peers:
            peer.scheduler.peers.first_token(self.name, ref, now)

    def _tell_done(self, now: float, ref: int, _: object) -> None:
        for peer in self._peers:
            peer.scheduler.peers.done(self.name, ref, now)

    # -- health -----------------------------------------------------------------------------------------------------
    def add(self, replica: SimReplica, now: float, *, known: bool) -> None:
        """Takes a replica into account; ``known``: it has been probed well before the run."""
        spec = replica.spec
        if known and self.world.settings.probes:
            # As if probed at some instant of the last interval, so that probes are spread from the start.
            now -= self.world.cluster.health.probe_interval_s * self.world.rng.random()
        self.fleet.add(spec, now)
        if known:
            self.fleet.probed(spec.id, ok=True, detail="known", now=now, latency_s=0.0)

    def remove(self, replica: ReplicaId) -> None:
        self.fleet.remove(replica)

    def _changes_wait(self) -> None:
        self.world.at(self.world.now, self._carry_out)

    def _carry_out(self, now: float, _a: object, _b: object) -> None:
        for change in self.fleet.take():
            if change.kind is ChangeKind.LEAVE:
                self._evacuate(now, change.replica)
        self.wake(now)

    def _evacuate(self, now: float, replica: ReplicaId) -> None:
        """Moves what waits for its first token off a replica that health has taken out."""
        held = self.world.replicas.get(replica)
        if held is None:
            return
        for job in held.jobs():
            if not isinstance(job, Call) or job.gateway is not self or job.answered or job.over:
                continue
            if job.attempts < self.retry.attempts_max and self._take_retry():
                held.abort(job, now)
                self._move(job, now, Outcome.REPLICA_FAILED)

    def _tick(self, now: float, _a: object, _b: object) -> None:
        self.world.at(now + TICK_S, self._tick)
        self.fleet.tick(now)
        if self.world.settings.probes:
            self._probe(now)
        if self._waiting:
            self._expire_queue(now)
            self.wake(now)

    def _probe(self, now: float) -> None:
        for probe in [p for p in self._probes if p.sent_at + p.timeout_s <= now]:
            probe.replica.abort(probe, now)
            self.probed(probe, None, now)
        for replica in self.fleet.due(now):
            if len(self._probes) >= self.fleet.config.probes_max:
                break
            target = self.world.replicas.get(replica)
            if target is not None:
                probe = Probe(self, target, now, self.fleet.probe_started(replica))
                self._probes[probe] = None
                target.submit(now, probe)

    def probed(self, probe: Probe, status: int | None, now: float, error: str = "") -> None:
        """A probe has ended, or its time is up."""
        if probe.ended:
            return
        probe.ended = True
        del self._probes[probe]
        latency_s = now - probe.sent_at
        self.fleet.probe_finished(probe.replica.id, now, status=status, latency_s=latency_s, error=error)

    def _expire_queue(self, now: float) -> None:
        expired = self.admission.expired(now)
        if not expired:
            return
        self._count_queue(now)
        for ticket in expired:
            call = ticket.waiter
            assert isinstance(call, Call)
            call.ticket = None
            self.world.recorder.queued_s[call.index] += now - ticket.offered_at
            ready = call.model in self.scheduler.ready_models()
            why = "queue_timeout" if ready else "no_replica_ready"
            self._end(call, now, "queue_full" if ticket.displaced else why)

    def check_deadlines(self, now: float, replica: SimReplica) -> None:
        """Ends what has waited too long for a first token or for the next one; rare, so looked at once a second."""
        timeouts = self.timeouts
        silent = replica.silent_since()
        for job in replica.jobs():
            if not isinstance(job, Call) or job.gateway is not self or job.over:
                continue
            if job.answered:
                late = silent is not None and now - silent > timeouts.between_bytes_s
            else:
                late = now - job.sent_at > timeouts.first_byte_s
            if late and job.state is not SequenceState.FINISHED:
                replica.abort(job, now)
                self.lost(job, now, "timeout")

    # -- telemetry --------------------------------------------------------------------------------------------------
    def poll(self, now: float, replicas: list[SimReplica], interval_s: float) -> None:
        """Asks these replicas for their metrics, and again after ``interval_s``."""
        self.world.at(now + interval_s, self.poll, replicas, interval_s)
        settings = self.world.settings
        way_s = settings.report_delay_s
        delayed = way_s or settings.report_jitter_s
        rng = self.world.rng
        for replica in replicas:
            if settings.report_loss and rng.random() < settings.report_loss:
                continue
            self._seq += 1
            report = replica.report(self._seq, now, ages=self.reports_ages)
            if report is None:
                continue
            if delayed:
                self.world.at(now + way_s + settings.report_jitter_s * rng.random(), self._reported, report)
            else:
                self._reported(now, report, None)

    def _reported(self, now: float, report: Report, _: object) -> None:
        self.fleet.report(report, now)
        if self._waiting:
            self.wake(now)

    def _look(self, now: float, _a: object, _b: object) -> None:
        interval_s = self.world.cluster.telemetry.interval_s
        self.world.at(now + interval_s, self._look)
        self.fleet.look(now, interval_s)

    def validate(self) -> None:
        self.scheduler.validate()
        self.admission.validate()
        self.fleet.validate()
