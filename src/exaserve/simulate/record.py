"""Statistics of what became of a run's requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exaserve.simulate.demand import SimDemand
from exaserve.simulate.recorder import ERRORS, Recorder

__all__ = ["RunStats", "ScenarioFigures", "summarise"]

WINDOW_SAMPLES_MIN = 20
"""Windows with fewer answers than this say nothing about a P99."""
BLOCKS = 6
BACKLOG_REQUESTS_MIN = 200
GROWTH_SHARE = 0.05
"""Share of the arrivals that may stay open more at the end than at the start: less is within its swings."""


@dataclass(frozen=True, slots=True)
class ScenarioFigures:
    """One scenario's requests, or all of them. Seconds, but for the counts; NaN where there are none."""

    name: str
    requests: int
    failed: int
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    ttft_max: float
    e2e_p50: float
    e2e_p99: float
    queued_p99: float


@dataclass(frozen=True, slots=True)
class RunStats:
    """One run at a glance.

    Attributes:
        scenarios: one each, then ``all``.
        windows_p99: P99 to first token per window, seconds (NaN where a window has too few answers).
        windows_std: their population standard deviation.
        queued: requests that waited in an admission queue.
        retried: requests that needed more than one attempt.
        idle_share: of the usable replicas' time while anybody waited, the share without anything to do.
        errors: why requests failed, with counts.
        backlog_growth: requests that were open more at the end than at the start of the last three quarters, as a share
            of those that arrived meanwhile, by a line through the means of blocks; NaN of a run too short to say.
        backlog_grows: it does, and by more than chance.
        requests_per_s / tokens_per_s: good answers and their tokens, per second of the measured time.
        curve: quantiles of the time to first token per scenario for plotting, at :data:`CURVE`.
    """

    scenarios: tuple[ScenarioFigures, ...]
    windows_p99: tuple[float, ...]
    windows_std: float
    queued: int
    retried: int
    idle_share: float
    errors: dict[str, int]
    requests_per_s: float
    tokens_per_s: float
    backlog_growth: float
    backlog_grows: bool
    curve: dict[str, tuple[float, ...]]

    @property
    def all(self) -> ScenarioFigures:
        return self.scenarios[-1]

    def scenario(self, name: str) -> ScenarioFigures:
        """Raises KeyError for a name that there is not."""
        for figures in self.scenarios:
            if figures.name == name:
                return figures
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """For JSON. NaN becomes None."""
        return {
            "scenarios": {
                f.name: {k: _plain(getattr(f, k)) for k in ScenarioFigures.__slots__[1:]} for f in self.scenarios
            },
            "windows_p99": [_plain(value) for value in self.windows_p99],
            "windows_std": _plain(self.windows_std),
            "queued": self.queued,
            "retried": self.retried,
            "idle_share": self.idle_share,
            "errors": self.errors,
            "requests_per_s": self.requests_per_s,
            "tokens_per_s": self.tokens_per_s,
            "backlog_growth": _plain(self.backlog_growth),
            "backlog_grows": self.backlog_grows,
        }


CURVE = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def summarise(demand: SimDemand, recorder: Recorder, warmup_s: float, window_s: float, idle_share: float) -> RunStats:
    """Statistics of the requests that were due from ``warmup_s`` on; latency counts from the scheduled instant."""
    at = demand.at
    first = np.frombuffer(recorder.first, dtype=np.float64)
    last = np.frombuffer(recorder.last, dtype=np.float64)
    queued = np.frombuffer(recorder.queued_s, dtype=np.float32)
    error = np.frombuffer(recorder.error, dtype=np.int8)
    attempts = np.frombuffer(recorder.attempts, dtype=np.int8)
    kept = at >= warmup_s
    good = kept & (error == 0)
    ttft, e2e = first - at, last - at
    figures, curve = [], {}
    for index, name in [*enumerate(demand.scenarios), (-1, "all")]:
        mine = kept if index < 0 else kept & (demand.scenario == index)
        fine = good & mine
        figures.append(_figures(name, mine, ttft[fine], e2e[fine], queued[fine]))
        curve[name] = tuple(_quantiles(ttft[fine], CURVE))
    windows = _windows(at[good], ttft[good], warmup_s, demand.duration_s, window_s)
    known = [value for value in windows if not math.isnan(value)]
    measured_s = max(demand.duration_s - warmup_s, 1e-9)
    growth, grows = _backlog(at, last, warmup_s, demand.duration_s)
    counts = np.bincount(error[kept].astype(np.int64), minlength=len(ERRORS))
    return RunStats(
        scenarios=tuple(figures),
        windows_p99=tuple(windows),
        windows_std=float(np.std(known)) if len(known) > 1 else math.nan,
        queued=int((queued[kept] > 0).sum()),
        retried=int((attempts[kept] > 1).sum()),
        idle_share=idle_share,
        errors={ERRORS[code]: int(n) for code, n in enumerate(counts) if code and n},
        requests_per_s=int(good.sum()) / measured_s,
        tokens_per_s=int(demand.output[good].sum()) / measured_s,
        backlog_growth=growth,
        backlog_grows=grows,
        curve=curve,
    )


def _backlog(at: NDArray[np.float64], last: NDArray[np.float64], start_s: float, end_s: float) -> tuple[float, bool]:
    """Growth of the number of open requests, as a share of the arrivals, and whether it is more than chance.

    The first quarter is left out: a run begins with nobody in it. Blocks of a sixth of the rest are long enough that
    their means vary little by chance alone; three standard errors of the line's slope must be exceeded.
    """
    begin = start_s + (end_s - start_s) / 4.0
    arrived = int(((at >= begin) & (at < end_s)).sum())
    if arrived < BACKLOG_REQUESTS_MIN:
        return math.nan, False
    instants = np.linspace(begin, end_s, 50 * BLOCKS, endpoint=False)
    open_then = np.searchsorted(at, instants, "right") - np.searchsorted(np.sort(last), instants, "right")
    means = open_then.reshape(BLOCKS, -1).mean(axis=1)
    place = np.arange(BLOCKS) - (BLOCKS - 1) / 2.0
    slope = float(place @ means) / float(place @ place)
    left = means - means.mean() - slope * place
    error = math.sqrt(float(left @ left) / (BLOCKS - 2) / float(place @ place))
    growth = slope * BLOCKS / arrived
    return growth, growth > GROWTH_SHARE and slope > 3.0 * error


def _quantiles(values: NDArray[np.float64], wanted: tuple[float, ...]) -> list[float]:
    return [float(q) for q in np.quantile(values, wanted)] if len(values) else [math.nan] * len(wanted)


def _figures(
    name: str,
    mine: NDArray[np.bool_],
    ttft: NDArray[np.float64],
    e2e: NDArray[np.float64],
    queued: NDArray[np.float32],
) -> ScenarioFigures:
    t50, t90, t99, t100 = _quantiles(ttft, (0.5, 0.9, 0.99, 1.0))
    e50, e99 = _quantiles(e2e, (0.5, 0.99))
    (q99,) = _quantiles(queued.astype(np.float64), (0.99,))
    requests = int(mine.sum())
    return ScenarioFigures(name, requests, requests - len(ttft), t50, t90, t99, t100, e50, e99, q99)


def _windows(
    at: NDArray[np.float64], ttft: NDArray[np.float64], start_s: float, end_s: float, window_s: float
) -> list[float]:
    count = math.floor((end_s - start_s) / window_s + 1e-9)
    number = np.floor((at - start_s) / window_s).astype(np.int64)
    out = []
    for index in range(count):
        values = ttft[number == index]
        out.append(float(np.quantile(values, 0.99)) if len(values) >= WINDOW_SAMPLES_MIN else math.nan)
    return out
