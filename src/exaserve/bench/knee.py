"""Where an endpoint's latency breaks away: rates step up until one does not hold, then halve the gap. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exaserve.bench.outcome import RateStep
from exaserve.bench.slo import Gate, GateResult
from exaserve.bench.stats import ScenarioStats, Summary

__all__ = ["KneeSearch", "judge_step"]

KEEPS_UP_SHARE = 0.92
"""Answers per second below this share of what was due mean that the queue grows. Not 1: answers that end in the drain
are not counted, and chance takes some."""
ERRORS_MAX = 0.01
LATENCY_FACTOR = 5.0
"""Without objectives: P99 to first token may grow to this multiple of the lowest rate's."""


@dataclass
class KneeSearch:
    """Which rates to try.

    Attributes:
        start_per_s: the first rate.
        growth: factor from one step to the next until one does not hold.
        refine: halvings between the last that held and the first that did not.
        steps_max: steps in all.
    """

    start_per_s: float
    growth: float = 1.5
    refine: int = 3
    steps_max: int = 24
    held_per_s: float = 0.0
    broke_per_s: float = math.inf

    def rates(self) -> Iterator[float]:
        """Rates in turn; tell :meth:`tell` of each before asking for the next."""
        rate, halvings = self.start_per_s, 0
        for _ in range(self.steps_max):
            yield rate
            if math.isinf(self.broke_per_s):
                rate = self.held_per_s * self.growth
                continue
            if halvings >= self.refine:
                return
            halvings += 1
            rate = (self.held_per_s + self.broke_per_s) / 2.0

    def tell(self, rate_per_s: float, *, held: bool) -> None:
        if held:
            self.held_per_s = max(self.held_per_s, rate_per_s)
        else:
            self.broke_per_s = min(self.broke_per_s, rate_per_s)


def judge_step(
    summary: Summary, gates: Sequence[Gate], results: Sequence[GateResult], lowest: Sequence[RateStep]
) -> tuple[bool, str]:
    """Whether a rate holds, and why not.

    Args:
        results: the objectives at this rate; without any, P99 to first token may not leave the lowest rate's far
            behind.
        lowest: steps so far.
    """
    every = summary.all
    if not every.requests:
        return False, "nothing was due"
    if (every.failed + every.cut) / every.requests > ERRORS_MAX:
        return False, f"{(every.failed + every.cut) / every.requests:.1%} of the requests failed"
    measured_s = summary.duration_s - summary.warmup_s
    unseen_s = _writing_s(every) - summary.warmup_s
    if unseen_s > measured_s / 2.0:
        return False, f"answers take {_writing_s(every):.3g} s after their first token: a longer --step can tell"
    due_per_s = summary.offered_per_s * (1.0 - max(unseen_s, 0.0) / measured_s)
    if summary.requests_per_s < KEEPS_UP_SHARE * due_per_s:
        return False, f"{summary.requests_per_s:.4g} of {summary.offered_per_s:.4g} requests/s were answered in time"
    missed = [result.gate.text for result in results if result.passed is False]
    if missed:
        return False, "missed: " + ", ".join(missed)
    if not gates and lowest:
        limit = LATENCY_FACTOR * lowest[0].summary.all.ttft.p99
        if every.ttft.p99 > limit:
            return False, f"P99 to first token is more than {LATENCY_FACTOR:g} times that of the lowest rate"
    return True, ""


def _writing_s(stats: ScenarioStats) -> float:
    """Mean time from the first token to the last. So long after its start a step has no answers to count.

    Waiting is left out: it makes answers late where a rate is too high, and must not excuse it.
    """
    writing_s = stats.latency.mean - stats.ttft.mean
    return 0.0 if math.isnan(writing_s) else writing_s
