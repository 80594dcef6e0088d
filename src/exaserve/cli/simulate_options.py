"""The flags of ``exaserve simulate``, and what all runs of one comparison have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from exaserve.cli.flags import JsonFile, Seed

if TYPE_CHECKING:
    from exaserve.config import Cluster
    from exaserve.simulate.objectives import Objective
    from exaserve.simulate.settings import SimSettings
    from exaserve.simulate.units import SimUnit
    from exaserve.workload import Mix, TraceRow

__all__ = ["SimulateOptions", "Study"]

CONFIRM_TIMES, CONFIRM_S_MIN = 5.0, 120.0
"""A capacity must hold for so many times ``--seconds``, and not for less than this."""
DEFAULT = "round_robin,least_connections,entropy,oracle"


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The command's options, as given."""

    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Cluster file; ./cluster.yaml unless given, else a built-in cluster."),
    ] = None
    policies: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME…",
            help="Policies to compare; all for every one. oracle knows everything at once; NAME:blind lifts the limits "
            "on queue depth and KV use.",
        ),
    ] = DEFAULT
    load: Annotated[
        float | None,
        typer.Option(
            min=0.001, max=10.0, help="Load as a share of the cluster's capacity (0.8; a trace: as recorded)."
        ),
    ] = None
    rate_per_s: Annotated[
        float | None, typer.Option("--rate", min=0.001, help="Requests per second, instead of --load.")
    ] = None
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="Simulated seconds of arrivals (60; a trace: all of it).")
    ] = None
    warmup_s: Annotated[float | None, typer.Option("--warmup", min=0, help="Seconds left out at the start.")] = None
    seed: Seed = 1
    mix: Annotated[
        str, typer.Option(help="mix, A, B, C, PROMPT/OUTPUT in tokens (64/64), or a YAML file with scenarios.")
    ] = "mix"
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Recorded traffic instead of a mix, in any form that exaserve bench reads."),
    ] = None
    trace_speed: Annotated[float, typer.Option(min=0.001, help="Replay so much faster than recorded.")] = 1.0
    replicas: Annotated[int | None, typer.Option(min=1, max=100_000, help="So many instead of the file's.")] = None
    gateways: Annotated[int, typer.Option(min=1, max=256, help="Gateways that share the replicas.")] = 1
    told_ms: Annotated[
        float | None,
        typer.Option(min=0, help="Gateways tell each other their placements, with this delay; blind unless given."),
    ] = None
    homes: Annotated[bool, typer.Option("--homes/--no-homes", help="Each replica is one gateway's home.")] = True
    staleness_s: Annotated[
        float | None,
        typer.Option("--staleness", min=0.01, help="Seconds between a replica's reports, instead of the file's."),
    ] = None
    report_delay_ms: Annotated[float, typer.Option(min=0, help="Milliseconds a report is under way.")] = 0.0
    report_loss: Annotated[float, typer.Option(min=0, max=0.99, help="Share of reports that are lost.")] = 0.0
    hop_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds from gateway to replica, and again back: network and HTTP.")
    ] = 0.0
    events: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Failures, drains, scaling … as a list of events in YAML.")
    ] = None
    slo: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Objective, such as A:p99_ttft_ms<=850; may be repeated.")
    ] = None
    find_capacity: Annotated[
        bool,
        typer.Option("--find-capacity", help="Find the largest rate that keeps every --slo, also in a longer run."),
    ] = False
    as_json: JsonFile = None
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained report to FILE.")] = None


@dataclass(frozen=True, slots=True)
class Study:
    """Everything that all policies of one comparison have in common.

    Attributes:
        rows: of a trace, in place of ``mix``.
        rate_per_s: 0 where a trace's own instants are replayed.
        capacity_per_s: what the cluster completes at most, requests per second.
    """

    cluster: Cluster
    units: list[SimUnit]
    mix: Mix | None
    rows: list[TraceRow]
    trace_speed: float
    settings: SimSettings
    rate_per_s: float
    mean_rate_per_s: float
    capacity_per_s: float
    seconds: float
    seed: int
    objectives: tuple[Objective, ...]

    def confirm_times(self) -> float:
        """How much longer than asked a run must be in which a capacity is confirmed."""
        return max(CONFIRM_TIMES, CONFIRM_S_MIN / self.seconds)

    def parameters(self) -> dict[str, Any]:
        """As they stand in the JSON."""
        settings = self.settings
        return {
            "replicas": len(self.units),
            "model": self.units[0].spec.models[0],
            "rate_per_s": self.mean_rate_per_s,
            "load": self.mean_rate_per_s / self.capacity_per_s,
            "seconds": self.seconds,
            "seed": self.seed,
            "gateways": settings.gateways,
            "told_ms": None if settings.told_s is None else 1000.0 * settings.told_s,
            "homes": settings.homes,
            "staleness_s": self.cluster.telemetry.interval_s,
            "report_delay_ms": 1000.0 * settings.report_delay_s,
            "report_loss": settings.report_loss,
            "events": len(settings.events),
        }
