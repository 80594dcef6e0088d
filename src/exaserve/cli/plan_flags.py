"""The flags of ``exaserve plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["PlanFlags"]

_NEED, _FLEET, _ENGINE, _OUT, _KNOWN = "Demand", "Fleet", "Engine", "Output", "Figures already known"


@dataclass(frozen=True, kw_only=True)
class PlanFlags:
    """As given; :mod:`exaserve.cli.plan_inputs` makes a question of them."""

    model: Annotated[str, typer.Argument(help="Folder with config.json, or a model's name.", show_default=False)] = ""
    format: Annotated[
        str, typer.Option(help="Weights: bf16, fp8, int8, int4, awq, gptq, mxfp4, nvfp4, bnb4; auto: as published.")
    ] = "auto"
    rps: Annotated[float | None, typer.Option(help="Requests per second.", rich_help_panel=_NEED)] = None
    users: Annotated[int | None, typer.Option(help="People at once, instead of --rps.", rich_help_panel=_NEED)] = None
    think_s: Annotated[float, typer.Option(help="Seconds a user thinks between.", rich_help_panel=_NEED)] = 20.0
    prompt_tokens: Annotated[int, typer.Option(help="Mean prompt; 0: 1,000.", rich_help_panel=_NEED, min=0)] = 0
    output_tokens: Annotated[int, typer.Option(help="Mean answer; 0: 200.", rich_help_panel=_NEED, min=0)] = 0
    scenarios: Annotated[
        bool,
        typer.Option("--scenarios", help="Short, long and very long requests, 65/30/5 %.", rich_help_panel=_NEED),
    ] = False
    ttft_p99_ms: Annotated[float, typer.Option(help="P99 to the first token.", rich_help_panel=_NEED)] = 2000.0
    tpot_ms: Annotated[float, typer.Option(help="Mean time per output token.", rich_help_panel=_NEED)] = 50.0
    confidence: Annotated[
        float,
        typer.Option(
            help="Size for step times that this share of measurements like it are within; 0.5: as predicted.",
            rich_help_panel=_NEED,
        ),
    ] = 0.8
    offline: Annotated[bool, typer.Option("--offline", help="Nobody waits.", rich_help_panel=_NEED)] = False
    no_operations: Annotated[
        bool, typer.Option("--no-operations", help="There is no operations team.", rich_help_panel=_NEED)
    ] = False
    gpu: Annotated[
        str, typer.Option(help="Card, such as H100, MI300X, or a MIG slice: H100-1g.10gb.", rich_help_panel=_FLEET)
    ] = "H100"
    memory_gib: Annotated[
        str, typer.Option(help="Memory as the driver reports it; one per stage: 15.6,31.4.", rich_help_panel=_FLEET)
    ] = ""
    cards_per_node: Annotated[int, typer.Option(help="Cards (or slices) in a node.", rich_help_panel=_FLEET, min=1)] = 8
    link_group: Annotated[int, typer.Option(help="Cards NVLink joins; 0: all.", rich_help_panel=_FLEET, min=0)] = 0
    nodes: Annotated[
        int | None, typer.Option(help="Nodes there are; else as many as needed.", rich_help_panel=_FLEET, min=1)
    ] = None
    nodes_per_rack: Annotated[int, typer.Option(help="Lost together.", rich_help_panel=_FLEET, min=1)] = 8
    network: Annotated[
        str,
        typer.Option(help="ethernet-1/10/25/100, roce-100/200/400, infiniband-edr/hdr/ndr.", rich_help_panel=_FLEET),
    ] = "infiniband-ndr"
    nics: Annotated[int, typer.Option(help="Such ports a node.", rich_help_panel=_FLEET, min=1)] = 1
    replicas_per_node: Annotated[
        int, typer.Option(help="A count somebody wants: check it.", rich_help_panel=_FLEET, min=0)
    ] = 0
    prices: Annotated[
        Path | None, typer.Option(help="YAML: cards: {H100: 2.5}, currency, kwh, pue.", rich_help_panel=_FLEET)
    ] = None
    engine: Annotated[
        str, typer.Option(help="vllm, sglang, or trtllm (its speeds; memory as vLLM's).", rich_help_panel=_ENGINE)
    ] = "vllm"
    engine_version: Annotated[str, typer.Option(help="Such as 0.10.2, V0.", rich_help_panel=_ENGINE)] = ""
    utilization: Annotated[
        float, typer.Option(help="Share of memory; 0: the engine's own for its version.", rich_help_panel=_ENGINE)
    ] = 0.0
    max_model_len: Annotated[
        int, typer.Option(help="0: by demand, or the model's.", rich_help_panel=_ENGINE, min=0)
    ] = 0
    max_num_seqs: Annotated[int, typer.Option(help="0: 256 with a demand.", rich_help_panel=_ENGINE, min=0)] = 0
    max_num_batched_tokens: Annotated[int, typer.Option(help="0: default.", rich_help_panel=_ENGINE, min=0)] = 0
    kv_cache_dtype: Annotated[str, typer.Option(help="auto or fp8.", rich_help_panel=_ENGINE)] = "auto"
    block_size: Annotated[int, typer.Option(help="Tokens a KV block; 0: 16.", rich_help_panel=_ENGINE, min=0)] = 0
    tp: Annotated[int, typer.Option(help="Tensor parallel; 0: choose.", rich_help_panel=_ENGINE, min=0)] = 0
    pp: Annotated[int, typer.Option(help="Pipeline stages; 0: choose.", rich_help_panel=_ENGINE, min=0)] = 0
    partition: Annotated[str, typer.Option(help="Layers per stage: 20,21,20.", rich_help_panel=_ENGINE)] = ""
    ep: Annotated[bool, typer.Option("--ep", help="Spread experts whole.", rich_help_panel=_ENGINE)] = False
    draft_layers: Annotated[int, typer.Option(help="Of speculative decoding.", rich_help_panel=_ENGINE, min=0)] = 0
    images: Annotated[bool, typer.Option(help="Profile the vision tower.", rich_help_panel=_ENGINE)] = True
    eager: Annotated[bool, typer.Option("--eager", help="No CUDA graphs.", rich_help_panel=_ENGINE)] = False
    count_graphs: Annotated[
        bool,
        typer.Option(
            help="CUDA graphs out of KV memory, as vLLM from 0.21; off: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0.",
            rich_help_panel=_ENGINE,
        ),
    ] = True
    profile: Annotated[
        Path | None,
        typer.Option(help="What calibrate wrote: measured step times, instead of estimates.", rich_help_panel=_KNOWN),
    ] = None
    weights_gib: Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)] = None
    non_torch_gib: Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)] = None
    activation_gib: Annotated[
        float | None,
        typer.Option(help="Per rank; as vLLM prints it, from 0.21 on with graphs.", rich_help_panel=_KNOWN),
    ] = None
    kv_gib: Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)] = None
    check: Annotated[
        Path | None,
        typer.Option(help="Start-up log of a real engine to set beside the prediction.", rich_help_panel=_OUT),
    ] = None
    explain: Annotated[bool, typer.Option("--explain", help="Every term.", rich_help_panel=_OUT)] = False
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Compare cards, formats and layouts.", rich_help_panel=_OUT)
    ] = False
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.", rich_help_panel=_OUT)] = False
    html: Annotated[Path | None, typer.Option(help="Write the sweep as a page, with a plot.", rich_help_panel=_OUT)] = (
        None
    )
    write: Annotated[Path | None, typer.Option(help="Write a cluster file.", rich_help_panel=_OUT)] = None
    write_engine: Annotated[
        str, typer.Option(help="Engine in that file: the plan's, or emulator.", rich_help_panel=_OUT)
    ] = ""
    pools: Annotated[bool, typer.Option("--pools", help="With pools by length.", rich_help_panel=_OUT)] = False
