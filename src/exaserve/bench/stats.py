"""What a run's records say. PURE: values in, values out.

**Latency counts from the scheduled time.** A client that is late, or that waits for a free slot, would otherwise hide
what its users felt (coordinated omission). The same figures from the sent time stand beside them for comparison.

**Failed and cut requests are counted apart** and are in no latency figure: a refusal is quick, and would flatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from exaserve.bench.record import Record, Verdict
from exaserve.workload import Distribution, distribution, percentile

__all__ = [
    "ScenarioStats",
    "Summary",
    "WindowStats",
    "summarise",
    "windows",
]

_T = TypeVar("_T")

WINDOW_SAMPLES_MIN = 10
"""Windows with fewer answers than this say nothing about a P99 and are left out of the spread."""


@dataclass(frozen=True, slots=True)
class ScenarioStats:
    """One scenario's requests (or all of them, under the name ``all``).

    Attributes:
        requests: how many were due; equals ``ok + failed + cut``.
        failed: no usable answer: refused, lost or timed out before a token, or a status of 400 and above.
        cut: an answer that began and did not end well (lost, timed out, error event, or no ``[DONE]``).
        ttft: scheduled to first token, seconds (first non-empty content; whole answer where it is not streamed).
        ttft_sent: the same from the sent time.
        latency: scheduled to last byte, seconds.
        token_gap: mean seconds per token after the first, per request.
        tokens: generated tokens of good answers.
        errors: what went wrong, with counts.
        statuses: HTTP statuses with counts; 0 where there was none.
    """

    name: str
    requests: int
    ok: int
    failed: int
    cut: int
    ttft: Distribution
    ttft_sent: Distribution
    latency: Distribution
    token_gap: Distribution
    tokens: int
    errors: dict[str, int]
    statuses: dict[int, int]


@dataclass(frozen=True, slots=True)
class WindowStats:
    """P99 to first token per window of the scheduled time, and its spread.

    Attributes:
        window_s: length of a window, seconds.
        p99_s: one value per window, None where fewer than :data:`WINDOW_SAMPLES_MIN` answers were good.
        stdev_s: population standard deviation of the values there are, seconds; NaN of fewer than two.
    """

    window_s: float
    p99_s: tuple[float | None, ...]
    stdev_s: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A run at a glance. ``scenarios`` has one entry per scenario in the plan's order, ``all`` takes them together."""

    duration_s: float
    all: ScenarioStats
    scenarios: tuple[ScenarioStats, ...]
    windows: WindowStats
    replicas: dict[str, int]
    requests_per_s: float
    tokens_per_s: float

    def as_dict(self) -> dict[str, object]:
        """For JSON. NaN becomes None."""
        cleaned = _without_nan(asdict(self))
        assert isinstance(cleaned, dict)
        return cleaned


def _without_nan(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value


def _counts(values: Iterable[_T]) -> dict[_T, int]:
    counts: dict[_T, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _differences(records: Sequence[Record], difference: Callable[[Record], float | None]) -> Distribution:
    return distribution(value for record in records if (value := difference(record)) is not None)


def _scenario(name: str, records: Sequence[Record]) -> ScenarioStats:
    good = [record for record in records if record.verdict is Verdict.OK]
    return ScenarioStats(
        name=name,
        requests=len(records),
        ok=len(good),
        failed=sum(record.verdict is Verdict.FAILED for record in records),
        cut=sum(record.verdict is Verdict.CUT for record in records),
        ttft=_differences(good, lambda r: r.ttft_s),
        ttft_sent=_differences(good, lambda r: r.ttft_sent_s),
        latency=_differences(good, lambda r: r.latency_s),
        token_gap=_differences(good, lambda r: r.token_gap_s),
        tokens=sum(record.tokens for record in good),
        errors=_counts(record.error for record in records if record.error),
        statuses=_counts(record.status for record in records),
    )


def windows(records: Iterable[Record], window_s: float, duration_s: float) -> WindowStats:
    """P99 to first token of the good answers, by the window in which they were due.

    Args:
        window_s: length of a window, seconds, above 0. A last window that is not whole is left out.
        duration_s: end of the last window.
    """
    if window_s <= 0.0:
        raise ValueError(f"window_s {window_s} must be above 0")
    # Adding a little keeps 0.3 / 0.1 at three windows.
    buckets: list[list[float]] = [[] for _ in range(math.floor(duration_s / window_s + 1e-9))]
    for record in records:
        index = math.floor(record.scheduled_s / window_s)
        ttft = record.ttft_s
        if record.verdict is Verdict.OK and ttft is not None and 0 <= index < len(buckets):
            buckets[index].append(ttft)
    p99 = tuple(percentile(sorted(b), 0.99) if len(b) >= WINDOW_SAMPLES_MIN else None for b in buckets)
    known = [value for value in p99 if value is not None]
    stdev = math.nan
    if len(known) >= 2:
        mean = math.fsum(known) / len(known)
        stdev = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / len(known))
    return WindowStats(window_s, p99, stdev)


def summarise(
    records: Sequence[Record],
    *,
    duration_s: float,
    window_s: float,
    warmup_s: float = 0.0,
    scenarios: Sequence[str] = (),
) -> Summary:
    """Statistics of the requests that were due from ``warmup_s`` to ``duration_s``.

    Args:
        duration_s: length of the plan, seconds.
        window_s: length of the windows for the spread of P99, seconds.
        warmup_s: requests due before this instant are left out of everything.
        scenarios: order of the scenarios; those not named here follow in order of appearance.
    """
    kept = [record for record in records if warmup_s <= record.scheduled_s < duration_s]
    by_scenario: dict[str, list[Record]] = {name: [] for name in scenarios}
    for record in kept:
        by_scenario.setdefault(record.scenario, []).append(record)
    total = _scenario("all", kept)
    measured_s = max(duration_s - warmup_s, 1e-9)
    return Summary(
        duration_s=duration_s,
        all=total,
        scenarios=tuple(_scenario(name, group) for name, group in by_scenario.items()),
        windows=windows(kept, window_s, duration_s),
        replicas=dict(sorted(_counts(record.replica for record in kept if record.replica).items())),
        requests_per_s=total.ok / measured_s,
        tokens_per_s=total.tokens / measured_s,
    )
