"""The demonstration's progress bar, table and JSON."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from exaserve.bench import Progress, Summary
from exaserve.bench.outcome import error_kinds
from exaserve.cli.demo_load import KINDS, MIX, DemoParameters
from exaserve.cli.machine import CpuUse
from exaserve.cli.tables import Cell, Column, print_table

if TYPE_CHECKING:
    from exaserve.bench import ScenarioStats

__all__ = ["LoadView", "PolicyRun", "print_report", "report_dict"]

LAG_MAX_S = 0.1
"""Above it the client itself was late by more than what the better policy's short requests take."""
MACHINE_BUSY_MAX = 0.92


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One policy's run.

    Attributes:
        lag_max_s: longest that the client's event loop was late.
        ended: processes that ended by themselves meanwhile, in words.
    """

    policy: str
    summary: Summary
    cpu: CpuUse
    lag_max_s: float
    elapsed_s: float
    ended: tuple[str, ...] = ()


class LoadView:
    """Progress of a load run: a bar on a terminal, else one line at the end."""

    def __init__(self, console: Console, policy: str) -> None:
        self._console = console
        self._policy = policy
        self._last: Progress | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description:<24}"), BarColumn(), TextColumn("{task.fields[counts]}"))
            self._bar = Bar(*columns, console=self._console, transient=True)
            self._bar.add_task(self._policy, total=1.0, counts="")
            self._bar.start()
        return self

    def update(self, progress: Progress) -> None:
        self._last = progress
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0],
                total=progress.planned,
                completed=progress.ok + progress.failed,
                counts=f"{min(progress.elapsed_s, progress.duration_s):3.0f}/{progress.duration_s:.0f} s, "
                f"{progress.inflight + progress.waiting} in flight, {progress.failed} failed",
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._last is not None and error is None:
            done = self._last
            self._console.print(f"{self._policy}: {done.ok} answers, {done.failed} failed", highlight=False)


def print_report(console: Console, runs: list[PolicyRun]) -> None:
    """The table, and below it what spoilt the run, if anything did."""
    pair = runs if len(runs) == 2 else []
    columns = [Column("", left=True, wrap=True), *(Column(run.policy) for run in runs)]
    if pair:
        columns.append(Column("P99 ratio", 1))
    rows: list[list[Cell]] = []
    for label, stats in _rows(runs):
        cells = [f"{_seconds(each.ttft.p50)} / {_seconds(each.ttft.p99)}" for each in stats]
        rows.append([label, *cells, *([_ratio(stats[0].ttft.p99, stats[1].ttft.p99)] if pair else [])])
    spreads = [run.summary.windows.stdev_s for run in runs]
    label = f"spread of P99 over {runs[0].summary.windows.window_s:g} s windows"
    rows.append(
        [
            label,
            *("-" if math.isnan(each) else f"± {_seconds(each)}" for each in spreads),
            *([_ratio(*spreads)] if pair else []),
        ]
    )
    errors = [run.summary.all.failed + run.summary.all.cut for run in runs]
    rows.append(
        [f"errors of {runs[0].summary.all.requests} requests", *(str(n) for n in errors), *([""] if pair else [])]
    )
    print_table(console, "Time to first token, seconds: P50 / P99", columns, rows)
    for line in [*_errors(runs), *_spoilt(runs)]:
        console.print(line, style="yellow", highlight=False)


def report_dict(parameters: DemoParameters, runs: list[PolicyRun]) -> dict[str, Any]:
    """For JSON."""
    return {
        "parameters": dataclasses.asdict(parameters),
        "spoilt": _spoilt(runs),
        "policies": {
            run.policy: {
                "summary": run.summary.as_dict(),
                "cpu": dataclasses.asdict(run.cpu),
                "client_lag_max_s": run.lag_max_s,
                "elapsed_s": run.elapsed_s,
            }
            for run in runs
        },
    }


def _rows(runs: list[PolicyRun]) -> list[tuple[str, list[ScenarioStats]]]:
    rows = []
    for i, (scenario, kind) in enumerate(zip(MIX.scenarios, KINDS, strict=True)):
        rows.append((f"{kind}, {scenario.prompt_tokens:,} tokens", [run.summary.scenarios[i] for run in runs]))
    return [*rows, ("all", [run.summary.all for run in runs])]


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _ratio(first: float, second: float) -> str:
    return f"1/{first / second:.1f}" if first > second > 0.0 else f"{second / first:.2f}" if first > 0.0 else "-"


def _errors(runs: list[PolicyRun]) -> list[str]:
    """What the errors were: words of the client, and statuses that were not good."""
    found = [(run.policy, error_kinds(run.summary.all.errors, run.summary.all.statuses)) for run in runs]
    return [f"{policy}: errors were {', '.join(kinds)}" for policy, kinds in found if kinds]


def _spoilt(runs: list[PolicyRun]) -> list[str]:
    lines = []
    for run in runs:
        lines += [f"{run.policy}: {each} during the run" for each in run.ended]
        if run.cpu.machine > MACHINE_BUSY_MAX:
            lines.append(
                f"{run.policy}: this machine was {run.cpu.machine:.0%} busy, so the figures include waiting for the "
                "processor; close other programs or lower --load"
            )
        if run.lag_max_s > LAG_MAX_S:
            lines.append(f"{run.policy}: the load client was late by up to {run.lag_max_s:.2f} s")
    return lines
