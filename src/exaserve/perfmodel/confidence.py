"""How far off predicted times are, from what cross-validation says of configurations like the one asked about. PURE.

Errors are kept as quantiles of measured over predicted for sets of measurements that are alike: first those of the same
card, format, kind of model and engine, and then wider and wider ones. The first set that enough different
configurations were measured for is taken, so that a prediction for what nobody has measured is as uncertain as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from exaserve.perfmodel.constants import SpeedSetup, generation

__all__ = ["GROUPS_MIN", "LEVELS", "Errors", "Interval", "interval", "likes", "parse_errors"]

LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Of the quantiles that are kept."""

GROUPS_MIN = 6
"""Different configurations (model, card, ranks, format, engine) below which a set says too little."""


STRETCH = 1.5
"""Quantiles of n configurations are stretched by 1 + 1.5 / n: few do not show how far off the next one can be."""


@dataclass(frozen=True, slots=True)
class Errors:
    """A set of measurements: how many, of how many configurations, and measured / predicted at :data:`LEVELS`."""

    rows: int
    groups: int
    factors: tuple[float, ...]

    def at(self, level: float) -> float:
        """The factor that the next measurement is below with a probability of ``level``."""
        middle = self._quantile(0.5)
        return middle * math.pow(self._quantile(level) / middle, 1.0 + STRETCH / self.groups)

    def _quantile(self, level: float) -> float:
        xs, ys = LEVELS, self.factors
        if level <= xs[0]:
            return ys[0]
        for i in range(1, len(xs)):
            if level <= xs[i]:
                return ys[i - 1] + (ys[i] - ys[i - 1]) * (level - xs[i - 1]) / (xs[i] - xs[i - 1])
        return ys[-1]


@dataclass(frozen=True, slots=True)
class Interval:
    """What to multiply a predicted time with.

    Attributes:
        low / high: the middle ``confidence`` of measurements lie between. bound: and as many below this.
        rows / groups: measurements, and different configurations, that this is known from. like: what they have in
            common with what was asked about; "" where that is nothing.
    """

    low: float
    high: float
    bound: float
    rows: int
    groups: int
    like: str


def likes(s: SpeedSetup, mixture: bool) -> tuple[str, ...]:
    """Names of the sets that a configuration is in, the most alike first."""
    card, gen, kind = s.card.whole, generation(s.card), "mixture" if mixture else "dense"
    return (
        f"{card}, {s.kernel}, {kind}, {s.engine}",
        f"{card}, {s.kernel}, {kind}",
        f"{gen}, {s.kernel}, {kind}",
        f"{card}, {kind}",
        f"{gen}, {kind}",
        kind,
        "",
    )


def interval(
    table: Mapping[str, Mapping[str, Errors]], target: str, sets: Sequence[str], confidence: float = 0.8
) -> Interval:
    """The interval of a predicted time.

    Args:
        table: :data:`exaserve.perfmodel.fitted.ERRORS`.
        target: "token" or "first" (seconds), or "offline" (tokens/s, of which ``bound`` is the hopeful side).
        sets: what :func:`likes` says.
        confidence: share of measurements that the interval shall hold.
    """
    known = table[target]
    found = next((name for name in sets if name in known and known[name].groups >= GROUPS_MIN), "")
    errors = known[found]
    tail = 0.5 * (1.0 - confidence)
    return Interval(errors.at(tail), errors.at(1.0 - tail), errors.at(confidence), errors.rows, errors.groups, found)


def parse_errors(text: str) -> Mapping[str, Mapping[str, Errors]]:
    """Errors by kind of figure and set, from lines ``kind | set | rows groups | factors``."""
    found: dict[str, dict[str, Errors]] = {}
    for line in text.strip().splitlines():
        kind, name, counts, factors = (part.strip() for part in line.split("|"))
        rows, groups = counts.split()
        found.setdefault(kind, {})[name] = Errors(int(rows), int(groups), tuple(map(float, factors.split())))
    return MappingProxyType(found)
