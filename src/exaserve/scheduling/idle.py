# compiled
"""Replicas without work ahead of a new request, ready to be drawn from ("join the idle queue").

A random sample of a large pool finds the few idle replicas of a busy hour only by luck, and then a short request waits
behind a long one although somebody is free (Lu, Xie, Kliot, Geller, Larus, Greenberg 2011). So the idle ones are kept
in a list of their own, maintained with each change of a ledger in constant time.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exaserve.scheduling.ledger import ReplicaState

__all__ = ["IdleSet"]


class IdleSet:
    """The idle ones among the replicas that serve the same models, on this gateway's home or on others'.

    Attributes:
        states: in no order that means anything. Each knows its place (``ReplicaState.idle_at``).
    """

    __slots__ = ("home", "states")

    def __init__(self, *, home: bool) -> None:
        self.home = home
        self.states: list[ReplicaState] = []

    def add(self, state: ReplicaState) -> None:
        state.idle_at = len(self.states)
        self.states.append(state)

    def discard(self, state: ReplicaState) -> None:
        """Takes ``state`` out; the last one gets its place."""
        at = state.idle_at
        if at < 0:
            return
        last = self.states.pop()
        if last is not state:
            self.states[at] = last
            last.idle_at = at
        state.idle_at = -1

    def draw(self, count: int, rng: Random, into: list[ReplicaState]) -> int:
        """Appends up to ``count`` different members to ``into``, neighbours from a random place on; how many."""
        states = self.states
        n = len(states)
        if n <= count:
            into.extend(states)
            return n
        start = int(rng.random() * n)
        end = start + count
        into.extend(states[start:end])
        if end > n:
            into.extend(states[: end - n])
        return count

    def validate(self) -> None:
        assert all(state.idle_at == at for at, state in enumerate(self.states))
