"""Objectives of a run (``A:p99_ttft_ms<=850``), and the largest rate at which a cluster keeps them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exaserve.domain.errors import ConfigError
from exaserve.simulate.record import RunStats

__all__ = ["Capacity", "Objective", "find_capacity", "parse_objective"]

_FORM = re.compile(r"(?:([\w.-]+):)?(p50|p90|p99)_(ttft|e2e)_ms<=([0-9.]+)|(?:([\w.-]+):)?errors<=([0-9.]+)%?")
TRIES_MAX = 24
STEP = 0.01
"""The capacity is found to within this share of itself."""
CONFIRMATIONS_MAX = 24
CONFIRM_FACTOR = 0.97
"""A rate that does not hold in the longer run is lowered by this."""


@dataclass(frozen=True, slots=True)
class Objective:
    """``figure`` of ``scenario`` must not exceed ``limit`` (seconds, or a share of the requests for ``errors``)."""

    text: str
    scenario: str
    figure: str
    limit: float

    def value(self, stats: RunStats) -> float:
        """What the run had: seconds or a share; NaN where nothing was measured."""
        figures = stats.scenario(self.scenario)
        if self.figure == "errors":
            return figures.failed / figures.requests if figures.requests else 0.0
        return float(getattr(figures, self.figure))

    def kept(self, stats: RunStats) -> bool:
        """Whether the run kept it; nothing measured is not kept."""
        value = self.value(stats)
        return not math.isnan(value) and value <= self.limit


def parse_objective(text: str, scenarios: Sequence[str]) -> Objective:
    """``[SCENARIO:]p50|p90|p99_ttft|e2e_ms<=N`` or ``[SCENARIO:]errors<=N%``. ConfigError for anything else."""
    match = _FORM.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ConfigError(
            f"--slo: {text!r} is not understood; write for example A:p99_ttft_ms<=850 or errors<=0.1%", param="--slo"
        )
    name = match[1] or match[5] or "all"
    if name not in (*scenarios, "all"):
        raise ConfigError(f"--slo: {name!r} is no scenario of this mix: {', '.join(scenarios)}, all", param="--slo")
    if match[6]:
        return Objective(text, name, "errors", float(match[6]) / 100.0)
    figure = f"{match[3]}_{match[2]}"
    if figure == "e2e_p90":
        raise ConfigError("--slo: e2e has p50 and p99", param="--slo")
    return Objective(text, name, figure, float(match[4]) / 1000.0)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The largest rate that was seen to keep all objectives, requests per second.

    Attributes:
        stats: of the longer run at it (None: there is no such rate).
        short_run_per_s: what runs of the asked length alone would have said.
        tries: runs.
    """

    rate_per_s: float
    stats: RunStats | None
    short_run_per_s: float
    tries: int


def find_capacity(
    run: Callable[[float, float], RunStats],
    objectives: Sequence[Objective],
    start_per_s: float,
    step: float = STEP,
    confirm_times: float = 5.0,
) -> Capacity:
    """Doubles or halves from ``start_per_s`` until the limit lies between two rates, then bisects; and confirms.

    Above what a cluster can do, a policy may keep a percentile for as long as only the requests that it puts last get
    later. So the rate that is found must also hold in a run ``confirm_times`` as long, in which the number of open
    requests does not grow to the end; it is lowered until it does.

    Args:
        run: one run at a rate (requests per second) for so many times the asked length; the same seed for each.
    """
    low, high = 0.0, math.inf
    rate = start_per_s
    tries = 0
    while tries < TRIES_MAX and (high - low > step * max(low, start_per_s * 1e-3)):
        tries += 1
        stats = run(rate, 1.0)
        if all(objective.kept(stats) for objective in objectives):
            low = rate
        else:
            high = rate
        rate = low * 2.0 if math.isinf(high) else (low + high) / 2.0 if low else high / 2.0
        if not low and high < start_per_s * 1e-3:
            break
    rate = low
    for _ in range(CONFIRMATIONS_MAX if low else 0):
        tries += 1
        stats = run(rate, confirm_times)
        if not stats.backlog_grows and all(objective.kept(stats) for objective in objectives):
            return Capacity(rate, stats, low, tries)
        rate *= CONFIRM_FACTOR
    return Capacity(0.0, None, low, tries)
