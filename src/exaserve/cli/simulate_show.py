"""What ``exaserve simulate`` prints: progress, the comparison, capacities."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from exaserve.cli.tables import Cell, Column, log_wide, print_table

if TYPE_CHECKING:
    from exaserve.cli.simulate_options import Study
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
    log_wide(console).print(head_text(study), highlight=False)
    scenarios = [figures.name for figures in next(iter(stats.values())).scenarios]
    if len(scenarios) == 2:
        scenarios = ["all"]
    columns = (
        Column("policy", left=True),
        *(Column(f"{name} {q}", 0 if q == "P99" else 4) for name in scenarios for q in ("P50", "P99")),
        Column("whole answer P50", 5),
        Column("whole answer P99", 2),
        Column("± P99", 3),
        Column("queued", 6),
        Column("retried", 6),
        Column("idle", 6),
        Column("errors", 1),
    )
    rows: list[list[Cell]] = []
    for policy, each in stats.items():
        chosen = [each.scenario(name) for name in scenarios]
        rows.append(
            [
                policy,
                *(_seconds(value) for figures in chosen for value in (figures.ttft_p50, figures.ttft_p99)),
                _seconds(each.all.e2e_p50),
                _seconds(each.all.e2e_p99),
                _seconds(each.windows_std, 3),
                f"{each.queued:,}",
                f"{each.retried:,}",
                f"{each.idle_share:.1%}",
                f"{each.all.failed:,}",
            ]
        )
    print_table(console, "Time to first token by scenario, seconds", columns, rows)
    log_wide(console).print(
        "whole answer: a policy that gives short requests the idle replicas lets long ones share fewer, whose answers "
        "then take longer (decode_weight in the cluster file moves that); "
        f"± P99: standard deviation over windows of {study.settings.window_s:g} s; queued: in the gateway; idle: share "
        "of replicas' time without work while any request waited",
        highlight=False,
        style="dim",
    )
    growing = [f"{policy} {each.backlog_growth:.0%}" for policy, each in stats.items() if each.backlog_grows]
    if growing:
        log_wide(console).print(
            f"not steady: open requests still grew at the end, by this share of what arrived: {', '.join(growing)}. "
            "The load is too much, or the run too short; a longer --seconds tells",
            style="yellow",
            highlight=False,
        )
    for objective in study.objectives:
        kept = ", ".join(f"{policy} {'kept' if objective.kept(each) else 'MISSED'}" for policy, each in stats.items())
        log_wide(console).print(f"{objective.text}: {kept}", highlight=False)


def print_capacities(console: Console, study: Study, found: dict[str, Capacity]) -> None:
    """One row per policy: the largest rate that keeps the objectives."""
    log_wide(console).print(head_text(study, rate=False), highlight=False)
    columns = (
        Column("policy", left=True),
        Column("requests/s"),
        Column("per replica", 2),
        Column("of capacity", 1),
        Column(f"in {study.seconds:g} s only", 3),
        Column("runs", 4),
    )
    rows: list[list[Cell]] = [
        [
            policy,
            f"{each.rate_per_s:,.1f}" if each.rate_per_s else "none",
            f"{each.rate_per_s / len(study.units):.2f}",
            f"{each.rate_per_s / study.capacity_per_s:.0%}",
            f"{each.short_run_per_s:,.1f}" if each.short_run_per_s > each.rate_per_s else "",
            str(each.tries),
        ]
        for policy, each in found.items()
    ]
    print_table(console, f"Largest rate that keeps {', '.join(o.text for o in study.objectives)}", columns, rows)
    log_wide(console).print(
        f"each rate held in a run of {study.confirm_times() * study.seconds:g} s as well, without a growing backlog; "
        f"in {study.seconds:g} s only: what a run too short to show that would have said",
        highlight=False,
        style="dim",
    )


def head_text(study: Study, *, rate: bool = True) -> str:
    """What all runs have in common, in one sentence."""
    settings = study.settings
    several = ""
    if settings.gateways > 1:
        told = "blind to each other" if settings.told_s is None else f"told after {1000.0 * settings.told_s:g} ms"
        several = f", {settings.gateways} gateways {told}"
    mean = study.mean_rate_per_s
    asked = f"{mean:,.1f} requests/s ({mean / study.capacity_per_s:.0%} of capacity) for "
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


def _seconds(value: float, digits: int | None = None) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.{(3 if value < 1.0 else 2) if digits is None else digits}f}"
