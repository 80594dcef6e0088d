"""Options of ``exaserve bench``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Api",
    "ApiChoice",
    "ApiKey",
    "Arrivals",
    "ArrivalsChoice",
    "AsJson",
    "Burst",
    "CaFile",
    "CacheHit",
    "Concurrency",
    "CostPerHour",
    "Drain",
    "Duration",
    "EndRate",
    "Extra",
    "GpuQuery",
    "Header",
    "Html",
    "IgnoreEos",
    "InflightMax",
    "Insecure",
    "KvQuery",
    "MaxCompletionTokens",
    "Metrics",
    "Model",
    "Name",
    "OutputTokens",
    "Processes",
    "Profile",
    "Prometheus",
    "QuestionTokens",
    "Rate",
    "RecordsFile",
    "Requests",
    "Seed",
    "Sessions",
    "Slo",
    "StepS",
    "Stream",
    "Targets",
    "Think",
    "TimeoutS",
    "Tokenizer",
    "Trace",
    "TraceSpeed",
    "Turns",
    "Warmup",
    "Window",
    "Workload",
]

_LOAD, _WORK, _SERVER = "Load", "Workload", "Endpoint"
_VERDICT, _OUT = "Verdict", "Output"


class ArrivalsChoice(StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"
    BURST = "burst"
    RAMP = "ramp"
    DAY = "day"


class ApiChoice(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"


Targets = Annotated[list[str], typer.Argument(help="URL(s) of the endpoint; or: compare|report FILE.json …")]

Rate = Annotated[float | None, typer.Option(help="Requests per second, open loop (default 10).", rich_help_panel=_LOAD)]
Duration = Annotated[float | None, typer.Option(help="Seconds (default 60).", rich_help_panel=_LOAD)]
Arrivals = Annotated[ArrivalsChoice, typer.Option(help="How requests arrive.", rich_help_panel=_LOAD)]
EndRate = Annotated[float, typer.Option(help="Rate at the end of a ramp.", rich_help_panel=_LOAD)]
Burst = Annotated[float, typer.Option(help="Mean requests of a burst.", rich_help_panel=_LOAD)]
Concurrency = Annotated[
    int, typer.Option(help="Closed loop: so many at once, each followed by the next.", rich_help_panel=_LOAD)
]
Requests = Annotated[int | None, typer.Option(help="End after so many.", rich_help_panel=_LOAD)]
Warmup = Annotated[
    float | None,
    typer.Option(help="Seconds left out of all figures (default: a tenth, 10 at most).", rich_help_panel=_LOAD),
]
Drain = Annotated[float, typer.Option(help="Seconds that answers may still take at the end.", rich_help_panel=_LOAD)]
Seed = Annotated[int, typer.Option(help="Same seed, same requests.", rich_help_panel=_LOAD)]
Profile = Annotated[bool, typer.Option("--profile", help="Step the rate up to find the knee.", rich_help_panel=_LOAD)]
StepS = Annotated[float, typer.Option("--step", help="Seconds of each step of --profile.", rich_help_panel=_LOAD)]
Processes = Annotated[
    int | None, typer.Option(help="Load processes (default: by the load; 0: this one).", rich_help_panel=_LOAD)
]
InflightMax = Annotated[int, typer.Option(help="Requests at once at most; above, they wait.", rich_help_panel=_LOAD)]
TimeoutS = Annotated[
    float, typer.Option("--timeout", help="Seconds until a request has failed.", rich_help_panel=_LOAD)
]

Workload = Annotated[
    str,
    typer.Option(help="A (327 tokens), B (4,218), C (12,842), mix (65/30/5 %), or a YAML file.", rich_help_panel=_WORK),
]
Trace = Annotated[
    Path | None,
    typer.Option(help="BurstGPT or Azure CSV, Mooncake JSONL, or JSONL of prompts.", rich_help_panel=_WORK),
]
TraceSpeed = Annotated[float, typer.Option(help="Replay so much faster than recorded.", rich_help_panel=_WORK)]
OutputTokens = Annotated[int, typer.Option(help="Answer length for prompts that name none.", rich_help_panel=_WORK)]
Turns = Annotated[float, typer.Option(help="Conversations of so many turns on average.", rich_help_panel=_WORK)]
Think = Annotated[float, typer.Option(help="Mean pause between turns, seconds.", rich_help_panel=_WORK)]
QuestionTokens = Annotated[int, typer.Option(help="Tokens that each turn adds.", rich_help_panel=_WORK)]
Sessions = Annotated[int, typer.Option(help="Sessions whose prompts begin alike.", rich_help_panel=_WORK)]
CacheHit = Annotated[
    float, typer.Option(help="Share of each prompt in common within its session, 0..1.", rich_help_panel=_WORK)
]
Tokenizer = Annotated[
    str,
    typer.Option(
        help="auto (server's /tokenize if it has one), server, estimate, or a tokenizer.json.", rich_help_panel=_WORK
    ),
]

Model = Annotated[str, typer.Option(help="Model (default: the endpoint's first).", rich_help_panel=_SERVER)]
Api = Annotated[ApiChoice, typer.Option(help="Which interface.", rich_help_panel=_SERVER)]
Stream = Annotated[bool, typer.Option(help="Streamed answers.", rich_help_panel=_SERVER)]
ApiKey = Annotated[
    str,
    typer.Option(envvar="EXASERVE_API_KEY", show_envvar=True, help="Sent as bearer token.", rich_help_panel=_SERVER),
]
Header = Annotated[list[str] | None, typer.Option(help="Further header, 'name: value'.", rich_help_panel=_SERVER)]
Insecure = Annotated[bool, typer.Option("--insecure", help="Do not check certificates.", rich_help_panel=_SERVER)]
CaFile = Annotated[Path | None, typer.Option(help="Authorities to check against.", rich_help_panel=_SERVER)]
Extra = Annotated[str, typer.Option(help="JSON object merged into every request.", rich_help_panel=_SERVER)]
IgnoreEos = Annotated[
    bool | None,
    typer.Option(help="Ask for answers of exact length (default: not with https).", rich_help_panel=_SERVER),
]
MaxCompletionTokens = Annotated[
    bool,
    typer.Option("--max-completion-tokens", help="Name the limit as newer clouds want it.", rich_help_panel=_SERVER),
]

Slo = Annotated[
    list[str] | None,
    typer.Option(help="Objective such as 'A: p99_ttft_ms<=850', a YAML file, or reference.", rich_help_panel=_VERDICT),
]
CostPerHour = Annotated[
    float, typer.Option(help="Of what serves; gives cost per 1,000 requests.", rich_help_panel=_VERDICT)
]
Metrics = Annotated[
    list[str] | None, typer.Option(help="/metrics of a gateway or of engines, or auto.", rich_help_panel=_VERDICT)
]
Prometheus = Annotated[str, typer.Option(help="Server to ask for accelerator and KV use.", rich_help_panel=_VERDICT)]
GpuQuery = Annotated[str, typer.Option(help="PromQL for accelerator use, 0..1.", rich_help_panel=_VERDICT)]
KvQuery = Annotated[str, typer.Option(help="PromQL for KV use by replica, 0..1.", rich_help_panel=_VERDICT)]

Name = Annotated[str, typer.Option(help="Name of the run in reports.", rich_help_panel=_OUT)]
Window = Annotated[float | None, typer.Option(help="Seconds of a window (default: a twentieth).", rich_help_panel=_OUT)]
AsJson = Annotated[
    Path | None, typer.Option("--json", help="Write the result ('-': standard output).", rich_help_panel=_OUT)
]
RecordsFile = Annotated[
    Path | None, typer.Option("--records", help="Write every request, JSONL.", rich_help_panel=_OUT)
]
Html = Annotated[Path | None, typer.Option(help="Write a report with plots.", rich_help_panel=_OUT)]
