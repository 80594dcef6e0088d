# compiled
"""Replicas without work ahead of a new request, ready to be drawn from ("join the idle queue").

A random sample of a large pool finds the few idle replicas of a busy hour only by luck, and then a short request waits
behind a long one although somebody is free (Lu, Xie, Kliot, Geller, Larus, Greenberg 2011). So the idle ones are kept
in a list of their own, maintained with each change of a ledger in constant time.
"""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

__all__ = ["IdleSet", "Idler"]


class Idler:
    """What can stand in an idle set: it knows its place there, -1 while it is not idle."""

    __slots__ = ("idle_at",)

    def __init__(self) -> None:
        self.idle_at = -1


T = TypeVar("T", bound=Idler)


class IdleSet(Generic[T]):
    """The idle ones among the replicas that serve the same models, on this gateway's home or on others'.

    Attributes:
        members: in no order that means anything.
    """

    __slots__ = ("home", "members")

    def __init__(self, *, home: bool) -> None:
        self.home = home
        self.members: list[T] = []

    def add(self, member: T) -> None:
        member.idle_at = len(self.members)
        self.members.append(member)

    def discard(self, member: T) -> None:
        """Takes ``member`` out; the last one gets its place."""
        at = member.idle_at
        if at < 0:
            return
        last = self.members.pop()
        if last is not member:
            self.members[at] = last
            last.idle_at = at
        member.idle_at = -1

    def draw(self, count: int, rng: Random, into: list[T]) -> int:
        """Appends up to ``count`` different members to ``into``, neighbours from a random place on; how many."""
        members = self.members
        n = len(members)
        if n <= count:
            into.extend(members)
            return n
        start = int(rng.random() * n)
        end = start + count
        into.extend(members[start:end])
        if end > n:
            into.extend(members[: end - n])
        return count

    def validate(self) -> None:
        assert all(member.idle_at == at for at, member in enumerate(self.members))
