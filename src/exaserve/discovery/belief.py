"""When an answer that takes much away is believed. No I/O and no clock: ``now`` and who answers probes are arguments.

A registry says "nobody is there" when nobody is, and also when it has lost its data, when a file is just being written
anew, or when a resolver is in trouble. A set that empties, or shrinks to less than half, is therefore doubted: those
that are missing are kept, and each leaves only when it has been missing for a stated time **and** fails its own probes.
Replicas that the registry itself takes out by name (they terminate, or are in maintenance) leave at once, and so does
one whose address is listed under another id. All that comes new is taken at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["Belief"]


class Belief:
    """What is believed of one source's answers.

    Args:
        hold_s: how long a replica must have been missing; 0 believes every answer at once.
        answers: whether a replica answers its own probes.
    """

    def __init__(self, hold_s: float, answers: Callable[[ReplicaId], bool]) -> None:
        self.hold_s = hold_s
        self._answers = answers
        self._believed: dict[ReplicaId, ReplicaSpec] = {}
        self._missing_since: dict[ReplicaId, float] = {}
        self._size_doubted = 0
        """Size of the set that the answer in doubt would replace; 0 while none is in doubt."""
        self._sizes: deque[tuple[float, int]] = deque()
        """When sets came and how large they were, each smaller than the one before: the first is the largest of the
        last ``hold_s``. Several steps in a row must not empty what one step may not."""
        self._forced = False
        self.given_up: dict[ReplicaId, str] = {}
        """Of the last :meth:`settle`: who left after all, and why."""

    @property
    def held(self) -> Collection[ReplicaId]:
        """Replicas that are kept though the source does not list them."""
        return self._missing_since.keys()

    def force(self) -> None:
        """An operator says that the newest answer is right. Holds for the next :meth:`settle`."""
        self._forced = True

    def settle(
        self, listed: Iterable[ReplicaSpec], now: float, leaving: Collection[ReplicaId] = ()
    ) -> tuple[ReplicaSpec, ...]:
        """The set to go by, now that the source lists ``listed`` and itself takes ``leaving`` out by name."""
        found = {spec.id: spec for spec in listed}
        urls = {spec.url for spec in found.values()}
        missing = {
            each: spec
            for each, spec in self._believed.items()
            if each not in found and spec.url not in urls and each not in leaving
        }
        forced, self._forced = self._forced, False
        self.given_up = {}
        held = bool(self._missing_since)
        if forced or not missing or not self._doubts(len(found), now):
            self._size_doubted = 0
            self._missing_since = {}
            if forced:
                self.given_up = dict.fromkeys(missing, "no longer listed, and an operator says that this is right")
        else:
            self._missing_since = {each: self._missing_since.get(each, now) for each in missing}
            for each, spec in missing.items():
                if now - self._missing_since[each] < self.hold_s or self._answers(each):
                    found[each] = spec
                else:
                    del self._missing_since[each]
                    self.given_up[each] = f"not listed for {self.hold_s:g} s, and it fails its probes"
        if held and not self._missing_since:
            self._sizes.clear()  # what was in doubt is settled, and is no measure for what comes
        self._believed = found
        self._remember(len(found), now)
        return tuple(found.values())

    def _doubts(self, size: int, now: float) -> bool:
        if not self._size_doubted:
            self._size_doubted = self._largest(now)
        return self.hold_s > 0 and 2 * size < self._size_doubted

    def _largest(self, now: float) -> int:
        while len(self._sizes) > 1 and self._sizes[1][0] <= now - self.hold_s:
            self._sizes.popleft()
        return self._sizes[0][1] if self._sizes else 0

    def _remember(self, size: int, now: float) -> None:
        while self._sizes and self._sizes[-1][1] <= size:
            self._sizes.pop()
        self._sizes.append((now, size))
