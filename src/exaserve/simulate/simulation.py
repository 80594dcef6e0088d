# compiled
"""One run: a cluster, a demand and a policy in, statistics out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exaserve.config import Cluster
from exaserve.scheduling import POLICIES
from exaserve.simulate.demand import SimDemand, prefix_hashes
from exaserve.simulate.director import Director
from exaserve.simulate.gateway import SimGateway
from exaserve.simulate.oracle import ORACLE, oracle
from exaserve.simulate.record import RunStats, summarise
from exaserve.simulate.recorder import Recorder
from exaserve.simulate.replica import SimReplica
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.units import SimUnit
from exaserve.simulate.world import World

__all__ = ["POLICY_NAMES", "Simulation"]

POLICY_NAMES = (*POLICIES, ORACLE)
CHUNK = 8_192
"""Requests turned from columns into Python numbers at a time, and between two signs of progress."""
PREFIX_BLOCK_TOKENS = 128
"""Of the gateway's prefix index, which takes blocks of 512 bytes."""
POLL_EVENTS_MAX = 512
"""Poll events per interval and gateway; above, several replicas share one, as those of one node do."""


class Simulation:
    """Builds the parts, runs them, checks that nothing was lost.

    Args:
        cluster: settings of scheduler, admission, health, telemetry and retries; its replicas are ``units``.
        policy: one of :data:`POLICY_NAMES`.
        on_progress: called now and then with the share of the arrivals that are through, 0..1.
    """

    def __init__(
        self,
        cluster: Cluster,
        units: Sequence[SimUnit],
        demand: SimDemand,
        settings: SimSettings,
        policy: str,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.demand = demand
        self.settings = settings
        self.recorder = Recorder(len(demand))
        self.world = World(cluster, settings, self.recorder, demand.duration_s)
        self._on_progress = on_progress
        self._model = units[0].spec.models[0]
        policies = {**POLICIES, ORACLE: oracle(self.world.replicas)}
        self.gateways = [
            SimGateway(self.world, f"g{k}", policies, policy, f"{settings.seed}/gateway/{k}")
            for k in range(settings.gateways)
        ]
        self.world.gateways = self.gateways
        self.director = Director(self.world, self.gateways)
        for gateway in self.gateways:
            gateway.meet(self.gateways, homes=settings.homes)
        for unit in units:
            self.director.add(0.0, unit, known=True)
        self._start()

    def _start(self) -> None:
        count = len(self.gateways)
        replicas: list[SimReplica] = list(self.world.replicas.values())
        for k, gateway in enumerate(self.gateways):
            gateway.start(0.0, (k + 0.5) / count)
            self.director.poll(gateway, replicas, 0.0, POLL_EVENTS_MAX)
        self.director.start(self.settings.events)

    def run(self) -> RunStats:
        """Everything, to the end. Call once."""
        demand, world = self.demand, self.world
        gateways = self.gateways
        count = len(gateways)
        model = self._model
        run_until = world.run_until
        for start in range(0, len(demand), CHUNK):
            part = slice(start, start + CHUNK)
            columns = (demand.at, demand.prompt, demand.output)
            rows = zip(*(column[part].tolist() for column in columns), strict=True)
            sessions = self._sessions(part)
            for index, (at, prompt, output) in enumerate(rows, start):
                if world.due <= at:
                    run_until(at)
                gateway = gateways[index % count]
                world.open += 1
                world.now = at
                if sessions is None:
                    gateway.arrive(at, index, model, prompt, output)
                else:
                    session, hashes, prefix = sessions[index - start]
                    gateway.arrive(at, index, model, prompt, output, session, hashes, prefix)
            if self._on_progress is not None:
                self._on_progress(min(start + CHUNK, len(demand)) / len(demand))
        world.run_out(demand.duration_s + self.settings.drain_s)
        self._close()
        settings = self.settings
        return summarise(demand, self.recorder, settings.warmup_s, settings.window_s, world.idle_share)

    def _sessions(self, part: slice) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]] | None:
        """Session, block hashes for the engine and for the gateway's prefix index, of these rows."""
        demand = self.demand
        size = next(iter(self.world.replicas.values())).profile.block_size
        if demand.parts:
            members = demand.session[part].tolist()
            return [
                (member, prefix_hashes(parts, size), prefix_hashes(parts, PREFIX_BLOCK_TOKENS))
                for member, parts in zip(members, demand.parts[part], strict=True)
            ]
        if not (demand.session[part] >= 0).any():
            return None
        rows = zip(
            demand.session[part].tolist(), demand.scenario[part].tolist(), demand.shared[part].tolist(), strict=True
        )
        made = []
        for session, scenario, shared in rows:
            base = (session * 256 + scenario) << 32
            hashes = tuple(base + k for k in range(shared // size))
            made.append((session, hashes, tuple(base + k for k in range(shared // PREFIX_BLOCK_TOKENS))))
        return made

    def _close(self) -> None:
        """Ends what is still open, and checks that every request ended once and every ledger is empty."""
        world = self.world
        now = max(world.now, self.demand.duration_s)
        world.count(now, 0, 0)
        for gateway in self.gateways:
            gateway.give_up_all(now)
        for index, error in enumerate(self.recorder.error):
            if error == -1:
                self.recorder.ended(index, now, "unfinished")
                world.open -= 1
        assert world.open == 0, f"{world.open} requests have not ended"
        self.validate()

    def validate(self) -> None:
        """Asserts the invariants of every part. After a run: nothing is charged any more."""
        for gateway in self.gateways:
            gateway.validate()
        for replica in self.world.replicas.values():
            replica.engine.validate()
        if self.world.open == 0:
            for gateway in self.gateways:
                assert len(gateway.admission) == 0
                assert all(state.inflight == 0 for state in gateway.scheduler.states().values())
