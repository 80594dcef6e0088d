# compiled
"""A simulated gateway's scheduler that tells the other gateways what it does, some time later."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.scheduling import Placement, PolicyFactory, Refusal, Scheduler, SchedulerConfig
from exaserve.simulate.world import World

__all__ = ["SimReplicatingScheduler"]


class SimReplicatingScheduler(Scheduler):
    """The same decisions, each told to the peers after ``told_s`` seconds.

    Attributes:
        peer_schedulers: schedulers of the other gateways.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        rng: Random,
        policies: dict[str, PolicyFactory],
        world: World,
        name: str,
        told_s: float,
    ) -> None:
        super().__init__(config, rng, policies)
        self._world = world
        self._name = name
        self._told_s = told_s
        self._refs: dict[Placement, int] = {}
        self._next = 0
        self.peer_schedulers: list[Scheduler] = []

    def place(self, facts: RequestFacts, now: float, exclude: Collection[ReplicaId] = ()) -> Placement | Refusal:
        result = super().place(facts, now, exclude)
        if type(result) is Placement:
            self._next += 1
            self._refs[result] = self._next
            self._world.at(now + self._told_s, self._tell_placed, result, self._next)
        return result

    def first_token(self, placement: Placement, now: float) -> None:
        super().first_token(placement, now)
        ref = self._refs.get(placement)
        if ref is not None:
            self._world.at(now + self._told_s, self._tell_first, ref)

    def release(self, placement: Placement, now: float, outcome: Outcome, usage: Usage | None = None) -> None:
        super().release(placement, now, outcome, usage)
        ref = self._refs.pop(placement, None)
        if ref is not None:
            self._world.at(now + self._told_s, self._tell_done, ref)

    def _tell_placed(self, now: float, placement: Placement, ref: int) -> None:
        tokens, kv = placement.tokens, placement.kv_tokens
        for peer in self.peer_schedulers:
            peer.peers.placed(self._name, ref, placement.replica_id, tokens, kv, placement.stream, now)

    def _tell_first(self, now: float, ref: int, _: object) -> None:
        for peer in self.peer_schedulers:
            peer.peers.first_token(self._name, ref, now)

    def _tell_done(self, now: float, ref: int, _: object) -> None:
        for peer in self.peer_schedulers:
            peer.peers.done(self._name, ref, now)
