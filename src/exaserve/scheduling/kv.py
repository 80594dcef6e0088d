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
    max / limit: capacity, 0 where unknown; and at the watermark, infinite where the capacity is unknown.
    predicted: in use now, as far as one can tell.
    """

    __slots__ = ("delta", "limit", "max", "own", "predicted", "reported")

    def __init__(self) -> None:
        self.own = 0
        self.delta = 0
        self.reported = -math.inf
        self.max = 0.0
        self.limit = math.inf
        self.predicted = 0.0

    def size(self, tokens_max: float, watermark: float) -> None:
        self.max = tokens_max
        self.limit = tokens_max * watermark if tokens_max else math.inf

    def see(self, share: float | None, newer: int) -> None:
        """Take a report: ``share`` of the cache in use, and the tokens charged since it was taken."""
        self.delta = newer
        self.reported = -math.inf if share is None or not self.max else share * self.max

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
