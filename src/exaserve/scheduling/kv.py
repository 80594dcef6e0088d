# compiled
"""The KV cache of one replica in tokens: what this gateway charged, what the last report showed, what is predicted."""

from __future__ import annotations

import math

__all__ = ["KvAccount"]


class KvAccount:
    """Attributes, in tokens:

    own: charged by placements known here and not released.
    delta: of it, charged or given back since the last report.
    reported: in use by the last report, minus infinity where unknown.
    max: capacity, 0 where unknown.
    limit: at the watermark; where the capacity is unknown it is infinite, and -1 while the reported share is above it.
    predicted: in use now, as far as one can tell.
    """

    __slots__ = ("delta", "limit", "max", "own", "predicted", "reported", "watermark")

    def __init__(self, watermark: float) -> None:
        self.watermark = watermark
        self.own = 0
        self.delta = 0
        self.reported = -math.inf
        self.max = 0.0
        self.limit = math.inf
        self.predicted = 0.0

    def size(self, tokens_max: float) -> None:
        self.max = tokens_max
        self.limit = tokens_max * self.watermark if tokens_max else math.inf

    def see(self, share: float | None, newer: int) -> None:
        """Take a report: ``share`` of the cache in use, and the tokens charged since it was taken."""
        self.delta = newer
        if self.max:
            self.reported = -math.inf if share is None else share * self.max
        else:
            self.limit = math.inf if share is None or share < self.watermark else -1.0

    def unsee(self) -> None:
        """The last report is not believed any more."""
        self.see(None, self.delta)

    def charge(self, tokens: int) -> None:
        self.own += tokens
        self.delta += tokens

    def predict(self) -> float:
        # What waits has taken no KV yet, so the ledger may know of more than the report.
        kv = self.reported + self.delta if self.delta else self.reported
        if self.own > kv:
            kv = float(self.own)
        self.predicted = kv
        return kv
