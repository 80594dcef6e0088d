"""The flags of ``exaserve simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ClusterPath = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Cluster file; ./cluster.yaml unless given, else a built-in cluster."),
]
Policies = Annotated[
    str,
    typer.Option(
        metavar="NAME,NAME…",
        help="Policies to compare; all for every one. oracle knows everything at once; NAME:blind lifts the limits "
        "on queue depth and KV use.",
    ),
]
Load = Annotated[float, typer.Option(min=0.001, max=10.0, help="Load as a share of the cluster's capacity.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Requests per second, instead of --load.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="Simulated seconds of arrivals.")]
Warmup = Annotated[float | None, typer.Option(min=0, help="Seconds left out at the start.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same result, to the byte.")]
Mix = Annotated[str, typer.Option(help="mix, A, B, C, PROMPT/OUTPUT in tokens (64/64), or a YAML file with scenarios.")]
Replicas = Annotated[int | None, typer.Option(min=1, max=100_000, help="So many instead of the file's.")]
Gateways = Annotated[int, typer.Option(min=1, max=256, help="Gateways that share the replicas.")]
ToldMs = Annotated[
    float | None,
    typer.Option(min=0, help="Gateways tell each other their placements, with this delay; blind unless given."),
]
Homes = Annotated[bool, typer.Option("--homes/--no-homes", help="Each replica is one gateway's home.")]
Staleness = Annotated[
    float | None, typer.Option(min=0.01, help="Seconds between a replica's reports, instead of the file's.")
]
ReportDelayMs = Annotated[float, typer.Option(min=0, help="Milliseconds a report is under way.")]
ReportLoss = Annotated[float, typer.Option(min=0, max=0.99, help="Share of reports that are lost.")]
HopMs = Annotated[
    float, typer.Option(min=0, help="Milliseconds from gateway to replica, and again back: network and HTTP.")
]
EventsPath = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Failures, drains, scaling … as a list of events in YAML.")
]
Slo = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Objective, such as A:p99_ttft_ms<=850; may be repeated.")
]
FindCapacity = Annotated[
    bool, typer.Option("--find-capacity", help="Find the largest rate at which every --slo is kept.")
]
JsonPath = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all figures to FILE.")]
HtmlPath = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a self-contained report to FILE.")]
