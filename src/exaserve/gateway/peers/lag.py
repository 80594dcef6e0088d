"""How late a peer's messages come, and whether what they tell is still worth anything. No I/O.

The lag of a connection has two parts: half its least round trip (the way itself; each heartbeat brings the time of the
other's last message back), and the mean lateness beyond the quickest message (busy event loops, full buffers). A peer
whose lag is above the bound is *slow*: gateways that decide by each other's placements choose the same idle replica
when these come later than the next decision is made. So it counts as one that tells nothing, until its lag is below
half the bound.
"""

from __future__ import annotations

import math

__all__ = ["Lag", "Offset"]

_WINDOW_S = 10.0
_MEMORY_S = 2.0
"""Time over which lateness is averaged: a single held-up turn of an event loop makes no peer slow."""
_BACK_SHARE = 0.5


class Offset:
    """Another clock against ours: the least difference seen in the last 10 to 20 seconds, when delay was least."""

    __slots__ = ("_before", "_until", "_value")

    def __init__(self) -> None:
        self._value = self._before = float("inf")
        self._until = float("-inf")

    def observe(self, sent_at: float, now: float) -> float:
        """Returns how much later than usual a message sent at ``sent_at`` of the other clock came, seconds."""
        difference = now - sent_at
        if now >= self._until:
            self._before, self._value = self._value, difference
            self._until = now + _WINDOW_S
        self._value = min(self._value, difference)
        return difference - self.least

    @property
    def least(self) -> float:
        return min(self._value, self._before)


class Lag:
    """Of one connection.

    Attributes:
        slow: whether the peer's placements come too late to decide by.
        offset: the peer's clock against ours.
    """

    __slots__ = ("_late_s", "_sent_at", "_trip", "offset", "slow")

    def __init__(self) -> None:
        self.slow = False
        self.offset = Offset()
        self._trip = Offset()
        self._late_s = 0.0
        self._sent_at = float("-inf")

    def heard(self, sent_at: float, now: float) -> None:
        """A message came that was written at ``sent_at`` of the peer's clock."""
        late_s = self.offset.observe(sent_at, now)
        # By the sender's time, so that what piled up while this loop was held up counts for the time it was written in.
        weight = 1.0 - math.exp(-max(sent_at - self._sent_at, 0.0) / _MEMORY_S)
        if self._sent_at == float("-inf"):
            weight = 0.0  # the first defines what is quick
        self._late_s += weight * (late_s - self._late_s)
        self._sent_at = max(sent_at, self._sent_at)

    def echoed(self, sent_at: float, held_s: float, now: float) -> None:
        """The peer brought a time of ours back, which it had held for ``held_s``."""
        self._trip.observe(sent_at, now - held_s)

    @property
    def way_s(self) -> float:
        """Half the least round trip of late, 0 before the first, seconds."""
        trip = self._trip.least
        return max(trip, 0.0) / 2.0 if trip < float("inf") else 0.0

    @property
    def lag_s(self) -> float:
        """How old the peer's messages are when they come, seconds."""
        return self._late_s + self.way_s

    def judge(self, lag_max_s: float) -> bool:
        """Whether :attr:`slow` has just changed."""
        was = self.slow
        self.slow = self.lag_s > lag_max_s * (_BACK_SHARE if was else 1.0)
        return self.slow is not was
