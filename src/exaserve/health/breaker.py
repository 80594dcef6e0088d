# compiled
"""Failures in a row, and failures as a share of the last seconds, in bounded space."""

from __future__ import annotations

__all__ = ["Breaker"]


class Breaker:
    """Counts answers and failures of one replica. Time only moves forward; an earlier ``now`` counts as the latest.

    Args:
        failures_max: failures in a row that trip it.
        rate_max: share of failures in the window that trips it, once the window holds ``window_min`` answers.
        window_s: seconds in the window, kept as that many one-second sums.
    """

    __slots__ = ("_failures", "_failures_max", "_rate_max", "_second", "_totals", "_window_min", "consecutive")

    def __init__(self, failures_max: int, rate_max: float, window_s: int, window_min: int) -> None:
        self._failures_max = failures_max
        self._rate_max = rate_max
        self._window_min = window_min
        self._totals = [0] * window_s
        self._failures = [0] * window_s
        self._second = 0
        self.consecutive = 0

    def succeeded(self, now: float) -> None:
        self.consecutive = 0
        self._totals[self._slot(now)] += 1

    def failed(self, now: float) -> None:
        self.consecutive += 1
        slot = self._slot(now)
        self._totals[slot] += 1
        self._failures[slot] += 1

    def tripped(self, now: float) -> str | None:
        """Why it is open, or None."""
        if self.consecutive >= self._failures_max:
            return f"{self.consecutive} failures in a row"
        self._slot(now)
        total = sum(self._totals)
        failures = sum(self._failures)
        if total >= self._window_min and failures >= self._rate_max * total and failures:
            return f"{failures} of {total} answers failed within {len(self._totals)} s"
        return None

    def rate(self, now: float) -> float:
        """Share of failures in the window, 0 where it holds fewer than ``window_min`` answers."""
        self._slot(now)
        total = sum(self._totals)
        return sum(self._failures) / total if total >= self._window_min else 0.0

    def reset(self) -> None:
        self.consecutive = 0
        self._totals = [0] * len(self._totals)
        self._failures = [0] * len(self._failures)

    def _slot(self, now: float) -> int:
        """Index of the present second's sums; sums of seconds that left the window are cleared on the way."""
        second = int(now)
        size = len(self._totals)
        if second > self._second:
            for passed in range(max(self._second + 1, second - size + 1), second + 1):
                self._totals[passed % size] = 0
                self._failures[passed % size] = 0
            self._second = second
        return self._second % size
