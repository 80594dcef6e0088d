"""The options of ``exaserve preflight``, as types for its function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Active",
    "AsJson",
    "Checks",
    "ConnectTimeout",
    "Details",
    "Engine",
    "Engines",
    "Explain",
    "Hosts",
    "HostsAtOnce",
    "HostsFile",
    "Html",
    "MachineName",
    "MachinesFile",
    "Nics",
    "Peer",
    "PrintScript",
    "SaveTo",
    "Saved",
    "SessionTimeout",
    "Ssh",
    "Streams",
    "UnitSize",
    "Weights",
    "WeightsGb",
]

_WHERE, _WHAT, _EXPECT, _REPORT = "Where", "What", "Expectations", "Report"

Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host", "-H", help="Host(s) to check over SSH; repeat, or separate by commas.", rich_help_panel=_WHERE
    ),
]
HostsFile = Annotated[
    Path | None,
    typer.Option(help="File with one host per line.", rich_help_panel=_WHERE, exists=True, dir_okay=False),
]
Saved = Annotated[
    Path | None, typer.Option("--from", help="Judge saved outputs: a folder, or a file.", rich_help_panel=_WHERE)
]
Ssh = Annotated[str, typer.Option(help="SSH client with its options.", rich_help_panel=_WHERE)]
ConnectTimeout = Annotated[int, typer.Option(min=1, help="Seconds to reach a host.", rich_help_panel=_WHERE)]
SessionTimeout = Annotated[
    float, typer.Option(min=1.0, help="Seconds for all checks of a host.", rich_help_panel=_WHERE)
]
HostsAtOnce = Annotated[int, typer.Option(min=1, max=256, help="SSH sessions at a time.", rich_help_panel=_WHERE)]
Checks = Annotated[list[str] | None, typer.Option(help="Only this check; repeat for more.", rich_help_panel=_WHAT)]
Active = Annotated[
    bool, typer.Option("--active", help="Also checks that load cards, disks and network.", rich_help_panel=_WHAT)
]
Weights = Annotated[str | None, typer.Option(help="Folder of the weights, on the hosts.", rich_help_panel=_WHAT)]
Peer = Annotated[
    str | None,
    typer.Option(help="Host for the MTU test; default: the next one of the list.", rich_help_panel=_WHAT),
]
MachineName = Annotated[str | None, typer.Option(help="Machine type, such as hgx-h100-8.", rich_help_panel=_EXPECT)]
MachinesFile = Annotated[
    Path | None, typer.Option(help="YAML file with own machine types or limits.", rich_help_panel=_EXPECT)
]
UnitSize = Annotated[
    int | None, typer.Option(min=1, max=64, help="Cards per inference unit; default 4.", rich_help_panel=_EXPECT)
]
Nics = Annotated[
    list[str] | None,
    typer.Option(
        "--nic",
        help="RDMA adapters that are used, such as mlx5_0,mlx5_1: the ports of others may be down.",
        rich_help_panel=_EXPECT,
    ),
]
Streams = Annotated[
    int, typer.Option(min=1, help="Streams a host carries at once, from the plan.", rich_help_panel=_EXPECT)
]
Engines = Annotated[int, typer.Option(min=1, help="Engines a gateway connects to.", rich_help_panel=_EXPECT)]
Engine = Annotated[str, typer.Option(help='Engine to be started, such as "vllm 0.11".', rich_help_panel=_EXPECT)]
WeightsGb = Annotated[
    float, typer.Option(min=0.0, help="Size of the weights to come, 10^9 bytes.", rich_help_panel=_EXPECT)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON.", rich_help_panel=_REPORT)]
Html = Annotated[
    Path | None, typer.Option(help="Write the report as one HTML page.", rich_help_panel=_REPORT, dir_okay=False)
]
SaveTo = Annotated[
    Path | None, typer.Option("--save", help="Keep the outputs, one file per host.", rich_help_panel=_REPORT)
]
Details = Annotated[
    bool, typer.Option("--all", help="Good rows too, where there are many hosts.", rich_help_panel=_REPORT)
]
PrintScript = Annotated[
    bool,
    typer.Option(
        "--script", help="Print the script to run by hand; judge its output with --from.", rich_help_panel=_REPORT
    ),
]
Explain = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="What a finding means, such as PF-TOPO-003.", rich_help_panel=_REPORT),
]
