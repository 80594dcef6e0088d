# compiled
"""A simulated gateway: the real scheduler, admission queue, fleet and journeys, on the world's calendar.

What the live one does by sockets and timers is done here by events of the world: reaching replicas, polling, probing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from exaserve.domain.replica import ReplicaId, Report
from exaserve.domain.request import RequestFacts
from exaserve.scheduling import Admission, PolicyFactory, Scheduler
from exaserve.serving.dispatcher import Dispatcher
from exaserve.serving.fleet import TICK_S, Fleet
from exaserve.serving.member import ChangeKind
from exaserve.simulate.call import Attempt, Call, DataPath
from exaserve.simulate.replica import Job, SimReplica
from exaserve.simulate.replication import SimReplicatingScheduler
from exaserve.simulate.world import World

__all__ = ["SimGateway"]

PROBE_TOKENS = 8


class Probe(Job):
    """A completion of one token that health asked for."""

    __slots__ = ("ended", "gateway", "replica", "sent_at", "timeout_s")

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
    """

    def __init__(self, world: World, name: str, policies: dict[str, PolicyFactory], policy: str, seed: str) -> None:
        self.world = world
        self.name = name
        cluster, settings = world.cluster, world.settings
        rng = Random(seed)
        if settings.gateways > 1 and settings.told_s is not None:
            self.scheduler: Scheduler = SimReplicatingScheduler(
                cluster.scheduling, rng, policies, world, name, settings.told_s
            )
        else:
            self.scheduler = Scheduler(cluster.scheduling, rng, policies)
        self.scheduler.set_policy(policy)
        self.admission = Admission(cluster.admission)
        self.fleet = Fleet(self.scheduler, cluster.health, self._changes_wait)
        timeouts = cluster.gateway.timeouts
        self.dispatcher = Dispatcher(
            self.scheduler,
            self.admission,
            self.fleet,
            cluster.gateway.retry,
            first_byte_s=timeouts.first_byte_s,
            between_bytes_s=timeouts.between_bytes_s,
            total_s=timeouts.total_s,
        )
        self.dispatcher.on_queue = self._count_queue
        self.reports_ages = policy == "literal"
        self._path = DataPath(world, self.dispatcher, settings.hop_s)
        self._seq = 0
        self._probes: dict[Probe, None] = {}
        self._facts: dict[tuple[int, int], RequestFacts] = {}
        self._waiting = 0

    def meet(self, gateways: list[SimGateway], *, homes: bool) -> None:
        """Learns of the other gateways."""
        if len(gateways) > 1 and homes:
            self.scheduler.peers.set_gateways(self.name, [each.name for each in gateways])
        if isinstance(self.scheduler, SimReplicatingScheduler):
            self.scheduler.peer_schedulers = [each.scheduler for each in gateways if each is not self]

    def start(self, now: float, phase: float) -> None:
        """Begins to look at deadlines and telemetry; ``phase`` (0..1) spreads the gateways over the intervals."""
        interval_s = self.world.cluster.telemetry.interval_s
        self.world.at(now + phase * TICK_S, self._tick)
        self.world.at(now + phase * interval_s, self._look)

    # -- requests ---------------------------------------------------------------------------------------------------
    def arrive(
        self,
        now: float,
        index: int,
        model: str,
        prompt_tokens: int,
        output_tokens: int,
        session: int = -1,
        hashes: Sequence[int] = (),
        prefix: tuple[int, ...] = (),
    ) -> None:
        """A client's request."""
        facts = self._facts.get((prompt_tokens, output_tokens)) if session < 0 else None
        expected = self.scheduler.expected_output(model, output_tokens)
        if facts is None or facts.output_tokens != expected:
            facts = RequestFacts(
                model,
                prompt_tokens,
                expected,
                prompt_tokens + output_tokens,
                stream=True,
                session=f"s{session}" if session >= 0 else None,
                prefix=prefix,
                prompt_bytes=4 * prompt_tokens,
                route="completions",
            )
            if session < 0:
                self._facts[prompt_tokens, output_tokens] = facts
        call = Call(self._path, index, facts, output_tokens, hashes)
        call.perform(call.begin(now), now)

    def wake(self, now: float) -> None:
        """Sends on what the admission queue may now place."""
        if self._waiting:
            self.dispatcher.wake(now)

    def _count_queue(self, waiting: int) -> None:
        self.world.count(self.world.now, waiting - self._waiting, 0)
        self._waiting = waiting

    def check_deadlines(self, now: float, replica: SimReplica) -> None:
        """Ends what has waited too long for a first token or for the next one; rare, so looked at once a second."""
        silent = replica.silent_since()
        for job in replica.jobs():
            if isinstance(job, Attempt) and job.call.path is self._path:
                job.call.check_deadline(job, now, silent)

    def give_up_all(self, now: float) -> None:
        """The run is over: what is still open is given up."""
        dispatcher = self.dispatcher
        dispatcher.stopping = True
        for call in list(dispatcher.open):
            assert isinstance(call, Call)
            call.perform(call.left(now), now)

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
                self.dispatcher.evacuate(change.replica, now)
        self.wake(now)

    def _tick(self, now: float, _a: object, _b: object) -> None:
        self.world.at(now + TICK_S, self._tick)
        self.fleet.tick(now)
        self.dispatcher.budget.count(now)
        if self.world.settings.probes:
            self._probe(now)
        if self._waiting:
            self.dispatcher.expire_queue(now)
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
