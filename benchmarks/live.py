"""What the live comparisons share: first tokens of a run, and how far the machine was from disturbing it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from exaserve.bench import LoadResult
from exaserve.bench.record import Ending
from exaserve.cli.machine import CpuMeter, CpuUse
from exaserve.workload import percentile

Times = dict[str, list[float]]
"""Seconds from the instant a request was due to its first token, of the good answers, by scenario."""

OTHERS_MAX = 0.7
"""Cores that other work may take when a run begins."""
LAG_P99_MAX_S = 0.005
LAG_MAX_S = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class Conditions:
    """Of one live run.

    Attributes:
        cores: used by each of the parts.
        others: cores used by everything else on this machine.
        lag_p99_s / lag_max_s: how late the client's event loop was; the machine's own share in every latency.
        load: the load average before.
    """

    cores: dict[str, float]
    others: float
    lag_p99_s: float
    lag_max_s: float
    load: float

    @property
    def disturbed(self) -> bool:
        return self.lag_p99_s > LAG_P99_MAX_S or self.lag_max_s > LAG_MAX_S

    def __str__(self) -> str:
        return (
            f"client late by {1000 * self.lag_p99_s:.1f} ms (P99), {1000 * self.lag_max_s:.0f} ms (most); "
            f"others' cores {self.others:.2f}{'; disturbed' if self.disturbed else ''}"
        )


class Watch:
    """Reads the machine's accounts from now until :meth:`conditions`."""

    def __init__(self, processes: Mapping[str, list[int]]) -> None:
        self._meter = CpuMeter(dict(processes))
        self._load = os.getloadavg()[0]
        self._began = time.monotonic()
        self._own_s = sum(os.times()[:4])

    def conditions(self, result: LoadResult) -> Conditions:
        """After the run; the client's processes must have ended."""
        use = self._meter.use()
        passed = time.monotonic() - self._began
        cores = {name: seconds / passed for name, seconds in use.processes_s.items()}
        cores["client"] = (sum(os.times()[:4]) - self._own_s) / passed
        others = max(0.0, use.machine * (os.cpu_count() or 1) - sum(cores.values()))
        return Conditions(cores, others, result.lag_p99_s, result.lag_max_s, self._load)


def wait_for_quiet(wait_s: float) -> None:
    """Until other work has taken little of the machine for three seconds, or the time is up."""
    end = time.monotonic() + wait_s
    while time.monotonic() < end:
        meter = CpuMeter({})
        time.sleep(3.0)
        use: CpuUse = meter.use()
        if use.machine * (os.cpu_count() or 1) < OTHERS_MAX:
            return


def undisturbed(run: Callable[[], tuple[T, Conditions]], tries: int, wait_s: float) -> tuple[T, Conditions]:
    """The first run that nothing disturbed; of ``tries`` disturbed ones that in which the client was least late.

    What is looked at is the machine and never the outcome.

    Args:
        wait_s: how long a run waits for a quieter machine before it begins anyhow.
    """
    runs: list[tuple[T, Conditions]] = []
    for _ in range(tries):
        wait_for_quiet(wait_s)
        runs.append(run())
        if not runs[-1][1].disturbed:
            return runs[-1]
        print(f"  {runs[-1][1]}", flush=True)
    return min(runs, key=lambda each: each[1].lag_p99_s)


def first_tokens(result: LoadResult, names: Sequence[str], warmup_s: float) -> tuple[Times, int]:
    """First tokens of what was due from ``warmup_s`` on, and how many requests had no good answer."""
    times: Times = {name: [] for name in names}
    failed = 0
    for record in result.records:
        if record.scheduled_s < warmup_s:
            continue
        ttft = record.ttft_s
        if record.verdict is Ending.OK and ttft is not None:
            times[record.scenario].append(ttft)
        else:
            failed += 1
    return times, failed


def together(conditions: Sequence[Conditions]) -> str:
    """One sentence on several runs."""
    parts = list(conditions[0].cores)
    cores = ", ".join(f"{part} {_middle([c.cores[part] for c in conditions]):.2f}" for part in parts)
    lags = [1000 * c.lag_p99_s for c in conditions]
    most = 1000 * max(c.lag_max_s for c in conditions)
    loads = [c.load for c in conditions]
    disturbed = f"{sum(c.disturbed for c in conditions)} of {len(conditions)} runs disturbed"
    return (
        f"Cores used (medians): {cores}, other work {_middle([c.others for c in conditions]):.2f}. Client's event loop "
        f"late at P99 by {_middle(lags):.1f} ms ({max(lags):.1f} in the worst run), at most by {most:.0f} ms. Load "
        f"average before the runs {min(loads):.1f} to {max(loads):.1f}. {disturbed}."
    )


def as_dicts(conditions: Sequence[Conditions]) -> list[dict[str, Any]]:
    return [{**asdict(each), "disturbed": each.disturbed} for each in conditions]


def _middle(values: Sequence[float]) -> float:
    return percentile(sorted(values), 0.5)
