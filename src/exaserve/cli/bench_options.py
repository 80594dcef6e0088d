"""Options of ``exaserve bench``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from exaserve.cli.flags import ApiKey

__all__ = ["ApiChoice", "ArrivalsChoice", "BenchOptions"]

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


def _load(*names: str, text: str) -> typer.models.OptionInfo:
    return _option(_LOAD, names, text)


def _work(*names: str, text: str) -> typer.models.OptionInfo:
    return _option(_WORK, names, text)


def _server(*names: str, text: str) -> typer.models.OptionInfo:
    return _option(_SERVER, names, text)


def _verdict(*names: str, text: str) -> typer.models.OptionInfo:
    return _option(_VERDICT, names, text)


def _out(*names: str, text: str) -> typer.models.OptionInfo:
    return _option(_OUT, names, text)


def _option(panel: str, names: tuple[str, ...], text: str) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(*names, help=text, rich_help_panel=panel)
    return made


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The command's options, as given. ``None`` is "not given" where the default depends on others."""

    targets: Annotated[list[str], typer.Argument(help="URL(s) of the endpoint; or: compare|report FILE.json …")]

    rate_per_s: Annotated[float | None, _load("--rate", text="Requests per second, open loop (default 10).")] = None
    duration_s: Annotated[
        float | None, _load("--duration", text="Seconds (default 60; with --requests: until they are answered).")
    ] = None
    arrivals: Annotated[ArrivalsChoice, _load(text="How requests arrive.")] = ArrivalsChoice.POISSON
    end_rate_per_s: Annotated[float, _load("--end-rate", text="Rate at the end of a ramp.")] = 0.0
    burst_mean: Annotated[float, _load("--burst", text="Mean requests of a burst.")] = 10.0
    concurrency: Annotated[int, _load(text="Closed loop: so many at once, each followed by the next.")] = 0
    requests_max: Annotated[
        int | None, _load("--requests", text="End after so many; all of them count unless --warmup is given.")
    ] = None
    warmup_s: Annotated[
        float | None,
        _load("--warmup", text="Seconds left out of all figures (default: a tenth, 10 at most; 0 with --requests)."),
    ] = None
    drain_s: Annotated[float, _load("--drain", text="Seconds that answers may still take at the end.")] = 60.0
    seed: Annotated[int, _load(text="Same seed, same requests.")] = 1
    profile: Annotated[bool, _load("--profile", text="Step the rate up to find the knee.")] = False
    step_s: Annotated[float, _load("--step", text="Seconds of each step of --profile.")] = 15.0
    processes: Annotated[int | None, _load(text="Load processes (default: by the load; 0: this one).")] = None
    inflight_max: Annotated[int, _load(text="Requests at once at most; above, they wait.")] = 8192
    timeout_s: Annotated[float, _load("--timeout", text="Seconds until a request has failed.")] = 300.0

    workload: Annotated[str, _work(text="A (327 tokens), B (4,218), C (12,842), mix (65/30/5 %), or a YAML file.")] = (
        "mix"
    )
    trace: Annotated[
        Path | None,
        _work(text="BurstGPT or Azure CSV, Mooncake JSONL, ShareGPT JSON, or JSONL of prompts."),
    ] = None
    trace_speed: Annotated[float, _work(text="Replay so much faster than recorded.")] = 1.0
    output_tokens: Annotated[
        int | None, _work(text="Length of all answers; of a trace, of those that have none recorded (default 256).")
    ] = None
    turns: Annotated[float, _work(text="Conversations of so many turns on average.")] = 1.0
    think_s: Annotated[float, _work("--think", text="Mean pause between turns, seconds.")] = 5.0
    question_tokens: Annotated[int, _work(text="Tokens that each turn adds.")] = 64
    sessions: Annotated[int, _work(text="Sessions whose prompts begin alike.")] = 0
    cache_hit: Annotated[float, _work(text="Share of each prompt in common within its session, 0..1.")] = 0.0
    tokenizer: Annotated[
        str, _work(text="auto (server's /tokenize if it has one), server, estimate, or a tokenizer.json.")
    ] = "auto"

    model: Annotated[str, _server(text="Model (default: the endpoint's first).")] = ""
    api: Annotated[ApiChoice, _server(text="Which interface.")] = ApiChoice.CHAT
    stream: Annotated[bool, _server(text="Streamed answers.")] = True
    api_key: ApiKey = ""
    headers: Annotated[list[str] | None, _server("--header", text="Further header, 'name: value'.")] = None
    insecure: Annotated[bool, _server("--insecure", text="Do not check certificates.")] = False
    ca_file: Annotated[Path | None, _server(text="Authorities to check against.")] = None
    extra: Annotated[str, _server(text="JSON object merged into every request.")] = ""
    ignore_eos: Annotated[bool | None, _server(text="Ask for answers of exact length (default: not with https).")] = (
        None
    )
    max_completion_tokens: Annotated[
        bool, _server("--max-completion-tokens", text="Name the limit as newer clouds want it.")
    ] = False

    slo: Annotated[
        list[str] | None,
        _verdict(text="Objective such as 'A: p99_ttft_ms<=850', a YAML file, or reference (see docs)."),
    ] = None
    cost_per_hour: Annotated[float, _verdict(text="Of what serves; gives cost per 1,000 requests.")] = 0.0
    metrics: Annotated[list[str] | None, _verdict(text="/metrics of a gateway or of engines, or auto.")] = None
    prometheus: Annotated[str, _verdict(text="Server to ask for accelerator and KV use.")] = ""
    gpu_query: Annotated[str, _verdict(text="PromQL for accelerator use, 0..1.")] = ""
    kv_query: Annotated[str, _verdict(text="PromQL for KV use by replica, 0..1.")] = ""

    name: Annotated[str, _out(text="Name of the run in reports.")] = ""
    window_s: Annotated[float | None, _out("--window", text="Seconds of a window (default: a twentieth).")] = None
    as_json: Annotated[Path | None, _out("--json", text="Write the result ('-': standard output).")] = None
    records: Annotated[Path | None, _out(text="Write every request: JSONL, or CSV where the name ends in .csv.")] = None
    as_csv: Annotated[Path | None, _out("--csv", text="Write the figures, one line per scenario.")] = None
    html: Annotated[Path | None, _out(text="Write a report with plots.")] = None

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(url if "://" in url else f"http://{url}" for url in self.targets)

    @property
    def path(self) -> str:
        """Of the interface."""
        return {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[self.api.value]

    @property
    def output_field(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    def load_text(self) -> str:
        """The load that was asked for, in words; "" where a trace's own instants are."""
        if self.concurrency:
            return f"{self.concurrency} at once"
        return "" if self.rate_per_s is None else f"{self.rate_per_s:,g} requests/s asked"
