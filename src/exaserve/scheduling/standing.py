# compiled
"""Whether a replica may take requests at all, and for what share: what operator, engine and health say of it."""

from __future__ import annotations

import math

__all__ = ["Standing"]


class Standing:
    """Changed by the scheduler's levers only, which then bring the ledger's derived figures up to date.

    Attributes:
        available / reason: health's word and why.
        ramp: slow-start share, 0 to 1.
        draining: no new requests, those in flight go on; returning: by its agent, which means to have it back.
        asleep: the engine sleeps, by its own report.
        removed: no longer a member; what is in flight can still be released.
        weight: share of traffic relative to equals, 0 takes it out.
        forced: the operator's score instead of the cost, None for none.
        suspicion: factor on the cost while the anomaly guard distrusts it, at least 1.
    """

    __slots__ = (
        "asleep", "available", "draining", "forced", "ramp", "reason", "removed", "returning", "suspicion",
        "weight",
    )  # fmt: skip

    def __init__(self, weight: float) -> None:
        self.available = False
        self.reason = "not probed yet"
        self.ramp = 1.0
        self.draining = self.returning = False
        self.asleep = False
        self.removed = False
        self.weight = weight
        self.forced: float | None = None
        self.suspicion = 1.0

    @property
    def eligible(self) -> bool:
        return self.why_not() is None

    @property
    def withdrawn(self) -> bool:
        """Whether somebody has taken it out, so that waiting does not help."""
        return self.forced == math.inf or not self.weight > 0 or (self.draining and not self.returning)

    @property
    def penalty(self) -> float:
        """Multiplies the replica's cost: suspicion over its share of traffic."""
        share = self.weight * self.ramp
        return self.suspicion / share if share > 0 else math.inf

    def why_not(self) -> str | None:
        """The reason this replica may take no request at all, or None."""
        if self.removed:
            return "removed"
        if self.forced == math.inf:
            return "score forced to infinity by the operator"
        if self.draining:
            return "draining"
        if not self.weight > 0:
            return "weight 0"
        if self.asleep:
            return "the engine sleeps"
        if not self.available:
            return f"not available: {self.reason}"
        return None
