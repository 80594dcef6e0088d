"""Percentiles and distributions. PURE: values in, values out.

**Percentiles** interpolate linearly between the two closest ranks: the q-quantile of n sorted values is at position
``q * (n - 1)`` (numpy's default, type 7 of Hyndman and Fan). With fewer than ``1 / (1 - q)`` values that is close to
the maximum, so counts stand beside every percentile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Distribution", "distribution", "percentile"]


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile (0..1) of ascending values, NaN of none.

    Raises:
        ValueError: q is outside 0..1.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile {q} must be from 0 to 1")
    if not ordered:
        return math.nan
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds, except ``count``; NaN where there are no values."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


def distribution(values: Iterable[float]) -> Distribution:
    ordered = sorted(values)
    count = len(ordered)
    return Distribution(
        count=count,
        mean=math.fsum(ordered) / count if count else math.nan,
        p50=percentile(ordered, 0.50),
        p90=percentile(ordered, 0.90),
        p99=percentile(ordered, 0.99),
        p999=percentile(ordered, 0.999),
        max=ordered[-1] if ordered else math.nan,
    )
