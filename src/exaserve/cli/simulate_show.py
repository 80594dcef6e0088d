"""What ``exaserve simulate`` prints: progress, the comparison, capacities."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from exaserve.cli.simulate import Study
    from exaserve.simulate.objectives import Capacity
    from exaserve.simulate.record import RunStats

__all__ = ["head_text", "print_capacities", "print_comparison", "progress"]


@contextlib.contextmanager
def progress(console: Console, name: str) -> Iterator[Callable[[float], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description:<24}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def print_comparison(console: Console, study: Study, stats: dict[str, RunStats]) -> None:
    """One row per policy."""
    console.print(head_text(study), highlight=False)
    scenarios = [figures.name for figures in next(iter(stats.values())).scenarios]
    if len(scenarios) == 2:
        scenarios = ["all"]
    table = Table(title="Time to first token by scenario, seconds: P50 / P99", title_justify="left")
    table.add_column("policy", no_wrap=True)
    for name in scenarios:
        table.add_column(name, justify="right", no_wrap=True)
    for head in ("whole answer", "± P99", "queued", "retried", "idle", "errors"):
        table.add_column(head, justify="right", no_wrap=True)
    for policy, each in stats.items():
        table.add_row(
            policy,
            *(_pair(each.scenario(name).ttft_p50, each.scenario(name).ttft_p99) for name in scenarios),
            _pair(each.all.e2e_p50, each.all.e2e_p99),
            _seconds(each.windows_std, 3),
            f"{each.queued:,}",
            f"{each.retried:,}",
            f"{each.idle_share:.1%}",
            f"{each.all.failed:,}",
        )
    _wide(console).print(table)
    console.print(
        f"± P99: standard deviation over windows of {study.settings.window_s:g} s; queued: in the gateway; idle: share "
        "of replicas' time without work while any request waited",
        highlight=False,
        style="dim",
    )
    for objective in study.objectives:
        kept = ", ".join(f"{policy} {'kept' if objective.kept(each) else 'MISSED'}" for policy, each in stats.items())
        console.print(f"{objective.text}: {kept}", highlight=False)


def print_capacities(console: Console, study: Study, found: dict[str, Capacity]) -> None:
    """One row per policy: the largest rate that keeps the objectives."""
    console.print(head_text(study, rate=False), highlight=False)
    table = Table(title=f"Largest rate that keeps {', '.join(o.text for o in study.objectives)}", title_justify="left")
    for head in ("policy", "requests/s", "per replica", "of capacity", "runs"):
        table.add_column(head, justify="left" if head == "policy" else "right", no_wrap=True)
    for policy, each in found.items():
        table.add_row(
            policy,
            f"{each.rate_per_s:,.1f}" if each.rate_per_s else "none",
            f"{each.rate_per_s / len(study.units):.2f}",
            f"{each.rate_per_s / study.capacity_per_s:.0%}",
            str(each.tries),
        )
    _wide(console).print(table)


def head_text(study: Study, *, rate: bool = True) -> str:
    """What all runs have in common, in one sentence."""
    settings = study.settings
    several = ""
    if settings.gateways > 1:
        told = "blind to each other" if settings.told_s is None else f"told after {1000.0 * settings.told_s:g} ms"
        several = f", {settings.gateways} gateways {told}"
    asked = f"{study.rate_per_s:,.1f} requests/s ({study.rate_per_s / study.capacity_per_s:.0%} of capacity) for "
    reports = f"reports every {study.cluster.telemetry.interval_s:g} s"
    if settings.report_delay_s:
        reports += f", {1000.0 * settings.report_delay_s:g} ms late"
    if settings.report_loss:
        reports += f", {settings.report_loss:.0%} lost"
    if settings.hop_s:
        reports += f", {1000.0 * settings.hop_s:g} ms each way"
    events = f", {len(settings.events)} events" if settings.events else ""
    return (
        f"{len(study.units):,} replicas of {study.units[0].spec.models[0]}{several}, {reports}; "
        f"{asked if rate else ''}{study.seconds:g} s{events}, seed {study.seed}"
    )


def _wide(console: Console) -> Console:
    """A table is worth reading in a log too: it is not squeezed into the 80 columns assumed without a terminal."""
    return console if console.is_terminal else Console(file=console.file, width=200)


def _pair(first: float, second: float) -> str:
    return f"{_seconds(first)} / {_seconds(second)}"


def _seconds(value: float, digits: int | None = None) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.{(3 if value < 1.0 else 2) if digits is None else digits}f}"
