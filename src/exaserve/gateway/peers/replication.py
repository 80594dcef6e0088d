# compiled
"""A scheduler that tells other gateways what it does, and the list of what is to be told.

Placing, a first token and the end of a placement each append one short byte string to a list; once per turn of the
event loop the list is written, the same bytes to every peer. A gateway without peers pays nothing: it uses a plain
:class:`~exaserve.scheduling.Scheduler`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from random import Random

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.gateway.peers.events import (
    AGE_MAX_S,
    DECODING,
    STREAM,
    write_define,
    write_done,
    write_first,
    write_placed,
    write_reset,
)
from exaserve.scheduling import Placement, Refusal, Scheduler, SchedulerConfig

__all__ = ["NUMBERS_MAX", "Outbox", "ReplicatingScheduler"]

NUMBERS_MAX = 100_000
"""Far more than a cluster has replicas: only those that come and go use them up."""


class Outbox:
    """What this gateway has to tell.

    Args:
        numbers_max: replica numbers given before they are given anew.

    Attributes:
        listening: whether any peer is there to be told; otherwise only the snapshot is kept.
        schedule: called at the first event of a turn; it must see to it that :meth:`take` is called soon.
        told_total: events told so far.
        renumbered: numbers were given anew, so that what was taken last is of no use without a snapshot.
    """

    def __init__(self, numbers_max: int = NUMBERS_MAX) -> None:
        self.schedule: Callable[[], object] = int
        self.listening = False
        self.told_total = 0
        self._parts: list[bytes] = []
        self._refs: dict[Placement, int] = {}
        self._next = itertools.count()
        self._numbers: dict[ReplicaId, int] = {}
        self._numbers_max = numbers_max
        self.renumbered = False

    def __len__(self) -> int:
        """Own placements in flight."""
        return len(self._refs)

    def placed(self, placement: Placement) -> None:
        ref = next(self._next) & 0xFFFF_FFFF
        self._refs[placement] = ref
        if self.listening:
            replica = placement.replica_id
            number = self._numbers.get(replica)
            if number is None:
                number = self._define(replica)
            # Cached tokens are an estimate with a fraction, and so are those that are left.
            tokens = int(placement.tokens)
            self._tell(write_placed(ref, number, tokens, placement.kv_tokens, STREAM if placement.stream else 0))

    def first_token(self, placement: Placement) -> None:
        if self.listening:
            ref = self._refs.get(placement)
            if ref is not None:
                self._tell(write_first(ref))

    def done(self, placement: Placement) -> None:
        ref = self._refs.pop(placement, None)
        if ref is not None and self.listening:
            self._tell(write_done(ref))

    def _tell(self, frame: bytes) -> None:
        parts = self._parts
        if not parts:
            self.schedule()
        parts.append(frame)

    def _define(self, replica: ReplicaId) -> int:
        if len(self._numbers) >= self._numbers_max:
            self._numbers.clear()
            self._parts.clear()
            self.renumbered = True  # every peer needs the snapshot again
        number = self._numbers[replica] = len(self._numbers)
        self._tell(write_define(number, replica))
        return number

    def take(self) -> bytes:
        """What happened since the last call, and no more of it is kept."""
        data = b"".join(self._parts)
        self.told_total += len(self._parts)
        self._parts.clear()
        return data

    def snapshot(self, now: float) -> bytes:
        """All own placements in flight, for a peer that has just come or has missed something."""
        numbers = self._numbers
        for placement in self._refs:
            numbers.setdefault(placement.replica_id, len(numbers))
        parts = [write_reset()]
        parts += [write_define(number, replica) for replica, number in numbers.items()]
        for placement, ref in self._refs.items():
            flags = STREAM * placement.stream
            # With its first token out it has no prefill left that anybody could learn from or wait for.
            decoding = placement.phase == Placement.DECODING
            parts.append(
                write_placed(
                    ref,
                    numbers[placement.replica_id],
                    0 if decoding else int(placement.tokens),
                    placement.kv_tokens,
                    flags | DECODING if decoding else flags,
                    0.0 if decoding else min(max(now - placement.placed_at, 0.0), AGE_MAX_S),
                )
            )
        return b"".join(parts)


class ReplicatingScheduler(Scheduler):
    """The scheduler of a gateway with peers: the same decisions, each of them told."""

    def __init__(self, config: SchedulerConfig, rng: Random, outbox: Outbox) -> None:
        super().__init__(config, rng)
        self._outbox = outbox

    def place(self, facts: RequestFacts, now: float, exclude: Collection[ReplicaId] = ()) -> Placement | Refusal:
        result = super().place(facts, now, exclude)
        if type(result) is Placement:
            self._outbox.placed(result)
        return result

    def first_token(self, placement: Placement, now: float) -> None:
        super().first_token(placement, now)
        self._outbox.first_token(placement)

    def release(self, placement: Placement, now: float, outcome: Outcome, usage: Usage | None = None) -> None:
        super().release(placement, now, outcome, usage)
        self._outbox.done(placement)
