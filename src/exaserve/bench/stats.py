"""What a run's records say. PURE: values in, values out.

**Latency counts from the scheduled time.** A client that is late, or that waits for a free slot, would otherwise hide
what its users felt (coordinated omission). The same figures from the sent time stand beside them for comparison.

**Rates count what ended within the measured time.** Requests due then that end in the drain, and requests of the
warm-up that end later, would make a rate that the server never had. Where a number of requests is measured, the time
ends with the last of their answers.

**Failed and cut requests are counted apart** and are in no latency figure: a refusal is quick, and would flatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from exaserve.bench.record import Ending, Record
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
        failed: no usable answer: refused, lost or timed out before a token, a status that is not 2xx, or a
            2xx with none.
        cut: an answer that began and did not end well (lost, timed out, error event, or no ``[DONE]``).
        ttft: scheduled to first token, seconds (first non-empty content; whole answer where it is not streamed).
        ttfa: scheduled to first token after the reasoning, of those answers that reasoned.
        ttft_sent: ``ttft`` from the sent time.
        latency: scheduled to last byte, seconds.
        latency_sent: the same from the sent time.
        token_gap: mean seconds per token after the first, per request.
        event_gap: seconds between one event with content and the next, all gaps of all good answers.
        stall: each good answer's longest gap, seconds.
        tokens: generated tokens of good answers.
        tokens_known: good answers whose server counted its tokens itself.
        prompt_tokens: prompt tokens of good answers, by the server's usage where it gives one, else as planned.
        prompt_known: good answers whose server counted the prompt itself.
        prompt_planned: prompt tokens of those ``prompt_known`` answers as they were planned.
        cached_tokens: prompt tokens that came from a prefix cache, by the server's usage.
        reasoned: good answers with reasoning.
        reasoning_tokens: tokens of that, by the server's usage, else by events.
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
    latency_sent: Distribution
    token_gap: Distribution
    event_gap: Distribution
    stall: Distribution
    tokens: int
    tokens_known: int
    prompt_tokens: int
    prompt_known: int
    prompt_planned: int
    cached_tokens: int
    ttfa: Distribution
    reasoned: int
    reasoning_tokens: int
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
    """A run at a glance. ``scenarios`` has one entry per scenario in the plan's order, ``all`` takes them together.

    Attributes:
        replicas: requests that each replica answered, by its header.
        requests_per_s: good answers that ended in the measured time, over it.
        tokens_per_s: generated tokens that came in the measured time, over it.
        offered_per_s: requests due in the measured time, over the time in which they were due.
        warmup_s: measured from here.
    """

    duration_s: float
    all: ScenarioStats
    scenarios: tuple[ScenarioStats, ...]
    windows: WindowStats
    replicas: dict[str, int]
    requests_per_s: float
    tokens_per_s: float
    offered_per_s: float = 0.0
    warmup_s: float = 0.0

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


def _tokens_within(record: Record, start_s: float, end_s: float) -> float:
    """Tokens of a good answer that came within a time: by its events, or by its end where it has none."""
    if record.verdict is not Ending.OK:
        return 0.0
    if not record.token_s:
        return float(record.tokens) if start_s <= (record.last_s or 0.0) < end_s else 0.0
    if start_s <= record.token_s[0] and record.token_s[-1] < end_s:
        return float(record.tokens)
    return record.tokens * sum(start_s <= at < end_s for at in record.token_s) / len(record.token_s)


def _scenario(name: str, records: Sequence[Record]) -> ScenarioStats:
    good = [record for record in records if record.verdict is Ending.OK]
    return ScenarioStats(
        name=name,
        requests=len(records),
        ok=len(good),
        failed=sum(record.verdict is Ending.FAILED for record in records),
        cut=sum(record.verdict is Ending.CUT for record in records),
        ttft=_differences(good, lambda r: r.ttft_s),
        ttft_sent=_differences(good, lambda r: r.ttft_sent_s),
        latency=_differences(good, lambda r: r.latency_s),
        latency_sent=_differences(
            good, lambda r: None if r.sent_s is None or r.last_s is None else r.last_s - r.sent_s
        ),
        token_gap=_differences(good, lambda r: r.token_gap_s),
        event_gap=distribution(gap for record in good for gap in record.gaps_s()),
        stall=_differences(good, lambda r: r.stall_s),
        tokens=sum(record.tokens for record in good),
        tokens_known=sum(record.tokens_known for record in good),
        prompt_tokens=sum(r.prompt_tokens if r.prompt_seen is None else r.prompt_seen for r in good),
        prompt_known=sum(r.prompt_seen is not None for r in good),
        prompt_planned=sum(r.prompt_tokens for r in good if r.prompt_seen is not None),
        cached_tokens=sum(r.cached_seen or 0 for r in good),
        ttfa=_differences([r for r in good if r.reasoning_tokens], lambda r: r.ttfa_s),
        reasoned=sum(r.reasoning_tokens > 0 for r in good),
        reasoning_tokens=sum(r.reasoning_tokens for r in good),
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
        if record.verdict is Ending.OK and ttft is not None and 0 <= index < len(buckets):
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
    due_until_s: float | None = None,
) -> Summary:
    """Statistics of the requests that were due from ``warmup_s`` to ``duration_s``.

    Args:
        duration_s: end of the measured time: of the plan, or of the last answer where a number of requests counts.
        window_s: length of the windows for the spread of P99, seconds.
        warmup_s: requests due before this instant are left out of everything.
        scenarios: order of the scenarios; those not named here follow in order of appearance.
        due_until_s: end of the time in which requests were due, ``duration_s`` unless given.
    """
    kept = [record for record in records if warmup_s <= record.scheduled_s < duration_s]
    by_scenario: dict[str, list[Record]] = {name: [] for name in scenarios}
    for record in kept:
        by_scenario.setdefault(record.scenario, []).append(record)
    total = _scenario("all", kept)
    measured_s = max(duration_s - warmup_s, 1e-9)
    ended = [r for r in records if r.verdict is Ending.OK and warmup_s <= (r.last_s or 0.0) < duration_s]
    return Summary(
        duration_s=duration_s,
        all=total,
        scenarios=tuple(_scenario(name, group) for name, group in by_scenario.items()),
        windows=windows(kept, window_s, duration_s),
        replicas=dict(sorted(_counts(record.replica for record in kept if record.replica).items())),
        requests_per_s=len(ended) / measured_s,
        tokens_per_s=math.fsum(_tokens_within(r, warmup_s, duration_s) for r in records) / measured_s,
        offered_per_s=len(kept) / max((duration_s if due_until_s is None else due_until_s) - warmup_s, 1e-9),
        warmup_s=warmup_s,
    )
