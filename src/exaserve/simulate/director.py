"""Carries out a script: failures, drains, scaling and rollouts, as they would reach a live cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from exaserve.domain.replica import ReplicaId
from exaserve.simulate.replica import Mode, SimReplica
from exaserve.simulate.script import ScriptEvent, select
from exaserve.simulate.units import SimUnit

if TYPE_CHECKING:
    from exaserve.simulate.gateway import SimGateway
    from exaserve.simulate.world import World

__all__ = ["Director"]

_GOLDEN = 0.618033988749895
_DRAINED_S = 0.5
"""How often a rollout looks whether a drained replica is empty, and a restarted one ready."""
_WATCH_S = 1.0


class Director:
    """Adds and removes replicas and does to them what the script says."""

    def __init__(self, world: World, gateways: Sequence[SimGateway]) -> None:
        self._world = world
        self._gateways = gateways
        self._added = 0
        self._polled = 0

    # -- membership -------------------------------------------------------------------------------------------------
    def add(self, now: float, unit: SimUnit, *, known: bool) -> SimReplica:
        """A replica joins; ``known``: it runs and has been probed before the run."""
        replica = SimReplica(self._world, unit)
        self._world.replicas[unit.spec.id] = replica
        replica.set_usable(now)
        for gateway in self._gateways:
            gateway.add(replica, now, known=known)
        return replica

    def poll(self, gateway: SimGateway, replicas: Sequence[SimReplica], now: float, events_max: int) -> None:
        """Spreads polls over the interval by the golden ratio, as the gateway does."""
        interval_s = self._world.cluster.telemetry.interval_s
        share = -(-len(replicas) // events_max)
        for start in range(0, len(replicas), share):
            self._polled += 1
            phase = (self._polled * _GOLDEN) % 1.0
            self._world.at(now + phase * interval_s, gateway.poll, list(replicas[start : start + share]), interval_s)

    def remove(self, now: float, replica: SimReplica) -> None:
        """Out of the cluster's file; what runs there ends in peace."""
        del self._world.replicas[replica.id]
        replica.draining = True
        replica.set_usable(now)
        for gateway in self._gateways:
            gateway.remove(replica.id)

    # -- the script -------------------------------------------------------------------------------------------------
    def start(self, events: Sequence[ScriptEvent]) -> None:
        for event in events:
            if event.action != "rate":
                self._world.at(event.at_s, self._do, event)
        self._world.at(_WATCH_S, self._watch)

    def _watch(self, now: float, _a: object, _b: object) -> None:
        """Time-outs of what no engine will answer."""
        self._world.at(now + _WATCH_S, self._watch)
        late = now >= min(
            self._world.cluster.gateway.timeouts.first_byte_s, self._world.cluster.gateway.timeouts.total_s
        )
        for replica in list(self._world.replicas.values()):
            if late or replica.mode in (Mode.FROZEN, Mode.LOST):
                for gateway in self._gateways:
                    gateway.check_deadlines(now, replica)

    def _do(self, now: float, event: ScriptEvent, _: object) -> None:
        if event.action == "add":
            for _number in range(int(float(event.what))):
                self._add_like(now, event)
        elif event.action == "rollout":
            self._roll(now, event, [r.id for r in self._world.replicas.values() if r.spec.version != event.what])
        else:
            world = self._world
            pairs = [(r.id, r.spec.version) for r in world.replicas.values()]
            for replica in select(event.what, pairs, world.rng):
                self._do_one(now, event, world.replicas[ReplicaId(replica)])

    def _do_one(self, now: float, event: ScriptEvent, replica: SimReplica) -> None:
        action = event.action
        if action == "fail":
            replica.fail(now)
        elif action == "unplug":
            replica.freeze(now, Mode.LOST)
        elif action == "recover":
            if replica.mode is not Mode.UP:
                replica.start(now)
        elif action == "freeze":
            replica.freeze(now)
        elif action == "thaw":
            replica.thaw(now)
        elif action == "slow":
            replica.set_slow(now, event.factor)
        elif action == "errors":
            replica.error_share = event.share
        elif action in ("drain", "undrain"):
            self._drain(now, replica, drain=action == "drain")
        elif action == "weight":
            for gateway in self._gateways:
                gateway.scheduler.set_weight(replica.id, event.share)
        else:
            assert action == "remove", action
            self.remove(now, replica)

    def _drain(self, now: float, replica: SimReplica, *, drain: bool) -> None:
        replica.draining = drain
        replica.set_usable(now)
        for gateway in self._gateways:
            if drain:
                gateway.scheduler.drain(replica.id)
            else:
                gateway.scheduler.undrain(replica.id)
            gateway.wake(now)

    def _add_like(self, now: float, event: ScriptEvent) -> None:
        """One more replica of the first one's kind, ready after ``event.ready_s``."""
        like = next(iter(self._world.replicas.values()))
        self._added += 1
        replica_id = ReplicaId(f"added/r{self._added}")
        spec = dataclasses.replace(
            like.spec, id=replica_id, url=f"http://added:{self._added}", version=event.version or like.spec.version
        )
        replica = self.add(now, dataclasses.replace(like.unit, spec=spec), known=False)
        replica.set_slow(now, event.factor)
        replica.fail(now)
        self._world.at(now + event.ready_s, self._ready, replica)
        for gateway in self._gateways:
            self.poll(gateway, [replica], now, 1)

    def _ready(self, now: float, replica: SimReplica, _: object) -> None:
        replica.start(now)

    # -- rollout ----------------------------------------------------------------------------------------------------
    def _roll(self, now: float, event: ScriptEvent, todo: list[ReplicaId]) -> None:
        """Drains the next batch, then waits for it to be empty."""
        batch = [self._world.replicas[r] for r in todo[: event.batch] if r in self._world.replicas]
        for replica in batch:
            self._drain(now, replica, drain=True)
        if batch:
            self._world.at(now + _DRAINED_S, self._emptied, (event, batch, todo[event.batch :]))

    def _emptied(self, now: float, roll: tuple[ScriptEvent, list[SimReplica], list[ReplicaId]], _: object) -> None:
        event, batch, _todo = roll
        if any(replica.jobs() for replica in batch):
            self._world.at(now + _DRAINED_S, self._emptied, roll)
            return
        for replica in batch:
            replica.fail(now)
            replica.spec = dataclasses.replace(replica.spec, version=event.what)
            replica.slow = event.factor
            for gateway in self._gateways:
                gateway.fleet.update(replica.spec)
            self._world.at(now + event.ready_s, self._ready, replica)
        self._world.at(now + max(event.ready_s, _DRAINED_S), self._rolled, roll)

    def _rolled(self, now: float, roll: tuple[ScriptEvent, list[SimReplica], list[ReplicaId]], _: object) -> None:
        """Lets the batch take requests again, and goes on with the next one."""
        event, batch, todo = roll
        for replica in batch:
            self._drain(now, replica, drain=False)
        self._roll(now, event, todo)
