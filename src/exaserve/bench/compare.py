"""Two runs beside each other: how much a figure changed, and within which bounds that is certain.

**Bootstrap over blocks.** Latencies of neighbouring requests resemble each other (they met the same queue), so requests
are not drawn one by one but in blocks that were due next to each other (Künsch 1989); drawn one by one, the interval
would be far too narrow. The interval is the middle 95 % of the differences of 2,000 redrawn pairs of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Difference", "block_bootstrap", "compare_runs"]

DRAWS = 2_000
CONFIDENCE = 0.95
BLOCKS_MIN = 8
"""Fewer blocks than this say nothing about how much runs vary."""

Floats = NDArray[np.float64]
_FIGURES: tuple[tuple[str, str, Callable[[Floats], Floats]], ...] = (
    ("ttft_s", "mean", lambda v: v.mean(axis=-1)),
    ("ttft_s", "p50", lambda v: np.quantile(v, 0.5, axis=-1)),
    ("ttft_s", "p90", lambda v: np.quantile(v, 0.9, axis=-1)),
    ("ttft_s", "p99", lambda v: np.quantile(v, 0.99, axis=-1)),
    ("latency_s", "p50", lambda v: np.quantile(v, 0.5, axis=-1)),
    ("latency_s", "p99", lambda v: np.quantile(v, 0.99, axis=-1)),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs, seconds.

    Attributes:
        low / high: 95 % confidence interval of ``second - first``; NaN where there were too few answers.
        certain: the interval does not contain 0.
    """

    scenario: str
    metric: str
    first: float
    second: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """Relative change, such as -0.2 for a fifth less."""
        return self.second / self.first - 1.0 if self.first else math.nan

    @property
    def certain(self) -> bool:
        return self.low > 0.0 or self.high < 0.0

    def as_dict(self) -> dict[str, Any]:
        values = {
            "first_s": self.first,
            "second_s": self.second,
            "change": self.change,
            "low_s": self.low,
            "high_s": self.high,
        }
        cleaned: dict[str, Any] = {k: v if math.isfinite(v) else None for k, v in values.items()}
        return {"scenario": self.scenario, "metric": self.metric, **cleaned, "certain": self.certain}


def block_bootstrap(
    values: Floats, figure: Callable[[Floats], Floats], rng: np.random.Generator, draws: int = DRAWS
) -> Floats:
    """``figure`` of ``draws`` redrawn runs.

    Args:
        values: in the order in which requests were due, shape (n,).
        figure: maps shape (k, n) to (k,).

    Returns:
        shape (draws,), or empty where there are fewer than ``BLOCKS_MIN`` blocks.
    """
    size = max(1, round(len(values) ** (1.0 / 3.0)))  # the rate that is best for means and quantiles
    if len(values) // size < BLOCKS_MIN:
        return np.empty(0)
    count = math.ceil(len(values) / size)
    out = []
    # In portions, so that memory stays small for long runs.
    portion = max(1, 4_000_000 // len(values))
    for start in range(0, draws, portion):
        k = min(portion, draws - start)
        first = rng.integers(0, len(values) - size + 1, (k, count))
        places = (first[:, :, None] + np.arange(size)).reshape(k, -1)[:, : len(values)]
        out.append(figure(values[places]))
    return np.concatenate(out)


def compare_runs(first: Mapping[str, Any], second: Mapping[str, Any], seed: int = 0) -> list[Difference]:
    """Figures of both runs, scenario by scenario.

    Args:
        first / second: ``samples`` of two result files: scenario to ``{"at_s", "ttft_s", "latency_s"}``.
    """
    rng = np.random.default_rng(seed)
    found = []
    for scenario in [name for name in first if name in second]:
        one, two = _ordered(first[scenario]), _ordered(second[scenario])
        for values, name, figure in _FIGURES:
            a, b = one[values], two[values]
            if not len(a) or not len(b):
                continue
            drawn_a, drawn_b = block_bootstrap(a, figure, rng), block_bootstrap(b, figure, rng)
            low = high = math.nan
            if len(drawn_a) and len(drawn_b):
                tail = (1.0 - CONFIDENCE) / 2.0
                low, high = (float(v) for v in np.quantile(drawn_b - drawn_a, [tail, 1.0 - tail]))
            metric = f"{name}_{values.removesuffix('_s')}"
            found.append(Difference(scenario, metric, float(figure(a[None])[0]), float(figure(b[None])[0]), low, high))
    return found


def _ordered(samples: Mapping[str, Sequence[float]]) -> dict[str, Floats]:
    order = np.argsort(np.asarray(samples["at_s"], dtype=np.float64), kind="stable")
    return {name: np.asarray(samples[name], dtype=np.float64)[order] for name in ("ttft_s", "latency_s")}
