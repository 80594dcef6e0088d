"""When requests are due: open loops, whatever the server does. PURE.

Rates that change with time are drawn by thinning (Lewis, Shedler 1979): a Poisson process at the largest rate, of which
each instant is kept with the share that the rate then has of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["DAY", "ArrivalKind", "Arrivals"]

ArrivalKind = Literal["poisson", "constant", "burst", "ramp", "day"]

_NIGHT = (0.45, 0.35, 0.30, 0.30, 0.30, 0.35)
_MORNING = (0.50, 0.80, 1.25, 1.60, 1.75, 1.70)
_AFTERNOON = (1.40, 1.45, 1.70, 1.75, 1.65, 1.45)
_EVENING = (1.20, 1.10, 1.05, 0.95, 0.75, 0.60)
DAY = _NIGHT + _MORNING + _AFTERNOON + _EVENING
"""Relative rate at each full hour: two peaks in office hours, nights at about 30 % of the mean (the shape of public
traces of chat services; bring your own with a trace)."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An open loop: requests are due at these instants whatever the server does.

    Attributes:
        kind: ``poisson`` (independent clients), ``constant`` (equal gaps), ``burst`` (bursts arrive as a Poisson
            process, all requests of one at once; their number is geometric), ``ramp`` (Poisson, from ``rate_per_s`` at
            the start to ``end_rate_per_s`` at the end), ``day`` (Poisson, the rate follows ``curve``).
        rate_per_s: mean requests per second (``ramp``: at the start).
        duration_s: the last request is due before this instant.
        end_rate_per_s: for ``ramp``.
        burst_mean: requests in a burst.
        curve: relative rates at equal distances over the whole duration, the last followed by the first again; they are
            scaled so that the mean is ``rate_per_s``.
    """

    rate_per_s: float
    duration_s: float
    kind: ArrivalKind = "poisson"
    end_rate_per_s: float = 0.0
    burst_mean: float = 10.0
    curve: tuple[float, ...] = DAY

    def __post_init__(self) -> None:
        if self.kind not in get_args(ArrivalKind):
            raise ValueError(f"kind {self.kind!r} must be one of {', '.join(get_args(ArrivalKind))}")
        if not (math.isfinite(self.rate_per_s) and self.rate_per_s > 0.0):
            raise ValueError(f"rate_per_s {self.rate_per_s} must be above 0")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0.0):
            raise ValueError(f"duration_s {self.duration_s} must be above 0")
        if not (math.isfinite(self.end_rate_per_s) and self.end_rate_per_s >= 0.0):
            raise ValueError(f"end_rate_per_s {self.end_rate_per_s} must be 0 or more")
        if not (math.isfinite(self.burst_mean) and self.burst_mean >= 1.0):
            raise ValueError(f"burst_mean {self.burst_mean} must be at least 1")
        if not self.curve or min(self.curve) < 0.0 or not sum(self.curve) > 0.0:
            raise ValueError("curve needs rates of 0 or more, not all of them 0")

    def rate_at(self, at_s: float) -> float:
        """Requests per second expected at an instant (``burst``: the mean)."""
        if self.kind == "ramp":
            return self.rate_per_s + (self.end_rate_per_s - self.rate_per_s) * at_s / self.duration_s
        if self.kind == "day":
            place = at_s / self.duration_s * len(self.curve)
            low = math.floor(place)
            one, two = self.curve[low % len(self.curve)], self.curve[(low + 1) % len(self.curve)]
            value = one + (two - one) * (place - low)
            return self.rate_per_s * value * len(self.curve) / sum(self.curve)
        return self.rate_per_s

    def mean_rate_per_s(self) -> float:
        """Over the whole duration."""
        return (self.rate_per_s + self.end_rate_per_s) / 2.0 if self.kind == "ramp" else self.rate_per_s

    def instants(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the start, ascending."""
        if self.kind == "constant":
            for index in range(math.ceil(self.rate_per_s * self.duration_s)):
                at = index / self.rate_per_s
                if at < self.duration_s:
                    yield at
        elif self.kind == "burst":
            yield from self._bursts(rng)
        elif self.kind in ("ramp", "day"):
            yield from self._thinned(rng, self.rate_at, self._peak())
        else:
            at = rng.expovariate(self.rate_per_s)
            while at < self.duration_s:
                yield at
                at += rng.expovariate(self.rate_per_s)

    def _peak(self) -> float:
        if self.kind == "ramp":
            return max(self.rate_per_s, self.end_rate_per_s)
        return self.rate_per_s * max(self.curve) * len(self.curve) / sum(self.curve)

    def _thinned(self, rng: random.Random, rate_at: Callable[[float], float], peak: float) -> Iterator[float]:
        at = rng.expovariate(peak)
        while at < self.duration_s:
            if rng.random() * peak < rate_at(at):
                yield at
            at += rng.expovariate(peak)

    def _bursts(self, rng: random.Random) -> Iterator[float]:
        rate = self.rate_per_s / self.burst_mean
        stay = 1.0 - 1.0 / self.burst_mean
        at = rng.expovariate(rate)
        while at < self.duration_s:
            yield at
            while rng.random() < stay:
                yield at
            at += rng.expovariate(rate)
