# compiled
"""The retry budget: retries may be a share of requests, so that a broken cluster is not hit harder. Pure."""

from __future__ import annotations

from exaserve.serving.config import RetrySettings

__all__ = ["RetryBudget"]

_SLOTS = 10


class RetryBudget:
    """Counts requests and retries over a sliding window of ten slots.

    Attributes:
        fresh: new requests since :meth:`count`; the request path only adds one here.
    """

    __slots__ = (
        "_allowed_min",
        "_at",
        "_ratio",
        "_requests",
        "_requests_sum",
        "_retries",
        "_retries_sum",
        "_slot_s",
        "fresh",
    )

    def __init__(self, settings: RetrySettings) -> None:
        self._ratio = settings.budget_ratio
        self._allowed_min = settings.budget_min_per_s * settings.budget_window_s
        self._slot_s = settings.budget_window_s / _SLOTS
        self._requests = [0] * _SLOTS
        self._retries = [0] * _SLOTS
        self._requests_sum = 0
        self._retries_sum = 0
        self._at = 0
        """Number of the slot now counted into."""
        self.fresh = 0

    def left(self, now: float) -> bool:
        """Whether a retry may be taken."""
        self.count(now)
        return self._retries_sum < self._allowed_min + self._ratio * self._requests_sum

    def take(self, now: float) -> bool:
        """Takes one retry; False where the budget is used up."""
        if not self.left(now):
            return False
        self._retries[self._at % _SLOTS] += 1
        self._retries_sum += 1
        return True

    def count(self, now: float) -> None:
        """Puts fresh requests into the slot of ``now``. Called at each tick and before each decision."""
        at = int(now / self._slot_s)
        if at != self._at:
            self._advance(at)
        self._requests[at % _SLOTS] += self.fresh
        self._requests_sum += self.fresh
        self.fresh = 0

    def _advance(self, at: int) -> None:
        for slot in range(max(self._at + 1, at - _SLOTS + 1), at + 1):
            index = slot % _SLOTS
            self._requests_sum -= self._requests[index]
            self._retries_sum -= self._retries[index]
            self._requests[index] = self._retries[index] = 0
        self._at = at

    def validate(self) -> None:
        assert self._requests_sum == sum(self._requests) >= 0
        assert self._retries_sum == sum(self._retries) >= 0
