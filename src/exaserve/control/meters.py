# compiled
"""What counts use against one bound: sliding minutes, requests under way, calendar days and months. Pure.

A minute is 61 slots of a second. What was used leaves the window when its whole slot is older than a minute, so no 60
seconds ever hold more than the bound, and no less than 60/61 of it can be used. (A bucket that is full at the start
would let twice the bound through in the first minute.)

Where several gateways share a bound, each adds what the others told to what it used itself. What it has used and has
not been heard of yet may be at most its part of what is left, or one request. So together they pass a bound by at most
what each of the others has used within one round trip of a message, and near the bound that is one request each.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CONCURRENT", "INPUT", "KINDS", "MONEY_PERIOD", "OUTPUT", "REQUESTS", "SPAN_S", "TOKENS", "TOKENS_PERIOD", "Meter",
]  # fmt: skip

REQUESTS: Final = 0
TOKENS: Final = 1
INPUT: Final = 2
OUTPUT: Final = 3
CONCURRENT: Final = 4
TOKENS_PERIOD: Final = 5
MONEY_PERIOD: Final = 6
KINDS: Final = ("requests", "tokens", "input_tokens", "output_tokens", "concurrent", "tokens_period", "money_period")
SPAN_S: Final = 61
"""Slots of a minute: use in the last moment of a slot is 60 seconds old only when the 61st has begun."""


class Meter:
    """Use against one bound.

    Args:
        name: the same on every gateway: scope and kind.
        kind: one of the numbers above.
        limit: the bound.
        period: "" for a minute or what is under way, else ``day`` or ``month``.

    Attributes:
        used: by this gateway, in the window; of a period settled use.
        pending: of a period: reserved by requests under way here.
        heard: by the peers that are connected, in the window.
        unheard: of ``used`` what peers have not confirmed yet.
        last: second in which this gateway used some of it last.
        changes: what has not been told to peers yet, by second; None while there are none.
        nodes: of a period: settled use of each other gateway.
    """

    __slots__ = (
        "_at", "_heard_slots", "_slots", "changes", "heard", "kind", "last", "limit", "name", "nodes",
        "pending", "period", "unheard", "used",
    )  # fmt: skip

    def __init__(self, name: str, kind: int, limit: float, period: str = "") -> None:
        self.name = name
        self.kind = kind
        self.limit = limit
        self.period = period
        self.used = 0.0
        self.pending = 0.0
        self.heard = 0.0
        self.unheard = 0.0
        self.changes: dict[int, float] | None = None
        self.nodes: dict[str, float] = {}
        slots = SPAN_S if kind <= OUTPUT else 1
        self._slots = [0.0] * slots
        self._heard_slots = [0.0] * slots
        self._at = 0
        self.last = 0

    def advance(self, second: int) -> None:
        """Forgets slots that have left the window. Only of minutes."""
        behind = second - self._at
        if behind <= 0 or self.kind > OUTPUT:
            return
        slots, heard = self._slots, self._heard_slots
        for each in range(self._at + 1, self._at + 1 + min(behind, SPAN_S)):
            place = each % SPAN_S
            self.used -= slots[place]
            self.heard -= heard[place]
            slots[place] = heard[place] = 0.0
        self._at = second
        if behind >= SPAN_S:
            self.used = self.heard = 0.0

    def add(self, amount: float, second: int) -> None:
        """This gateway used ``amount`` more in that second; negative gives back, but not what has left the window."""
        if self.kind <= OUTPUT:
            if self._at - second >= SPAN_S:
                return
            self._slots[second % SPAN_S] += amount
            self.last = max(self.last, second)
        self.used += amount
        changes = self.changes
        if changes is not None:
            self.unheard += amount
            changes[second] = changes.get(second, 0.0) + amount

    def hear(self, amount: float, second: int) -> None:
        """A peer did."""
        if self.kind <= OUTPUT:
            if self._at - second >= SPAN_S:
                return
            self._heard_slots[second % SPAN_S] += amount
        self.heard += amount

    def hear_node(self, node: str, amount: float) -> None:
        """Of a period: what another gateway has used of it by now."""
        known = self.nodes.get(node, 0.0)
        if amount > known:
            self.nodes[node] = amount
            self.heard += amount - known

    def roll(self) -> None:
        """Another day or month has begun."""
        self.used = self.heard = 0.0
        self.nodes = {}

    def told(self) -> list[tuple[int, float]]:
        """This gateway's own use by second, without what is still to be told: for a peer that has just come."""
        changes = self.changes or {}
        if self.kind > OUTPUT:
            left = self.used - changes.get(0, 0.0)
            return [(0, left)] if left else []
        found = []
        for second in range(max(self._at - SPAN_S + 1, 0), self._at + 1):
            amount = self._slots[second % SPAN_S] - changes.get(second, 0.0)
            if amount:
                found.append((second, amount))
        return found

    def room(self, share: float) -> float:
        """What is left of the bound; ``share`` is this gateway's part where peers are lost."""
        return self.limit * share - self.used - self.pending - self.heard

    def fits(self, amount: float, share: float, gateways: int) -> bool:
        """Whether ``amount`` more is within the bound, by what is known here."""
        left = self.room(share)
        if amount > left:
            return False
        unheard = self.unheard
        if gateways > 1 and unheard > 0.0:
            return unheard + amount <= (left + unheard) / gateways
        return True

    def reset_s(self, second: int, amount: float, share: float) -> float:
        """Seconds until ``amount`` fits by what leaves the window; 0 where it does, 61 where nothing says when."""
        left = self.room(share)
        if amount <= left or self.kind > OUTPUT:
            return 0.0
        for age in range(SPAN_S - 1, -1, -1):
            place = (second - age) % SPAN_S
            left += self._slots[place] + self._heard_slots[place]
            if amount <= left:
                return float(SPAN_S - age)
        return float(SPAN_S)

    def validate(self) -> None:
        if self.kind <= OUTPUT:
            assert abs(self.used - sum(self._slots)) < 1e-6 * max(1.0, self.limit)
            assert abs(self.heard - sum(self._heard_slots)) < 1e-6 * max(1.0, self.limit)
