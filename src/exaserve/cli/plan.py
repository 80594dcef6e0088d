"""``exaserve plan``: what a model needs of machines, before they are bought or started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from exaserve.planning import PlanRequest, SweepRow

__all__ = ["plan"]

_NEED, _FLEET, _ENGINE, _OUT, _KNOWN = "TrafficDemand", "Fleet", "Engine", "Output", "Figures already known"
LOG_BYTES_MAX = 200_000_000


_Model = Annotated[str, typer.Argument(help="Folder with config.json, or a model's name.", show_default=False)]
_Format = Annotated[
    str, typer.Option(help="Weights: bf16, fp8, int8, int4, awq, gptq, mxfp4, nvfp4, bnb4; auto: as published.")
]
_Rps = Annotated[float | None, typer.Option(help="Requests per second.", rich_help_panel=_NEED)]
_Users = Annotated[int | None, typer.Option(help="People at once, instead of --rps.", rich_help_panel=_NEED)]
_ThinkS = Annotated[float, typer.Option(help="Seconds a user thinks between.", rich_help_panel=_NEED)]
_PromptTokens = Annotated[int, typer.Option(help="Mean prompt; 0: 1,000.", rich_help_panel=_NEED, min=0)]
_OutputTokens = Annotated[int, typer.Option(help="Mean answer; 0: 200.", rich_help_panel=_NEED, min=0)]
_Scenarios = Annotated[
    bool, typer.Option("--scenarios", help="Short, long and very long requests, 65/30/5 %.", rich_help_panel=_NEED)
]
_TtftP99Ms = Annotated[float, typer.Option(help="P99 to the first token.", rich_help_panel=_NEED)]
_TpotMs = Annotated[float, typer.Option(help="Mean time per output token.", rich_help_panel=_NEED)]
_Offline = Annotated[bool, typer.Option("--offline", help="Nobody waits.", rich_help_panel=_NEED)]
_NoOperations = Annotated[
    bool, typer.Option("--no-operations", help="There is no operations team.", rich_help_panel=_NEED)
]
_Gpu = Annotated[str, typer.Option(help="Card, such as H100, L40S, MI300X.", rich_help_panel=_FLEET)]
_MemoryGib = Annotated[
    str, typer.Option(help="Memory as the driver reports it; one per stage: 15.6,31.4.", rich_help_panel=_FLEET)
]
_CardsPerNode = Annotated[int, typer.Option(help="Cards in a node.", rich_help_panel=_FLEET, min=1)]
_LinkGroup = Annotated[int, typer.Option(help="Cards NVLink joins; 0: all.", rich_help_panel=_FLEET, min=0)]
_Nodes = Annotated[
    int | None, typer.Option(help="Nodes there are; else as many as needed.", rich_help_panel=_FLEET, min=1)
]
_NodesPerRack = Annotated[int, typer.Option(help="Lost together.", rich_help_panel=_FLEET, min=1)]
_Network = Annotated[
    str, typer.Option(help="ethernet-1/10/25/100, roce-100/200/400, infiniband-edr/hdr/ndr.", rich_help_panel=_FLEET)
]
_Nics = Annotated[int, typer.Option(help="Such ports a node.", rich_help_panel=_FLEET, min=1)]
_ReplicasPerNode = Annotated[int, typer.Option(help="A count somebody wants: check it.", rich_help_panel=_FLEET, min=0)]
_Prices = Annotated[
    Path | None, typer.Option(help="YAML: cards: {H100: 2.5}, currency, kwh, pue.", rich_help_panel=_FLEET)
]
_Engine = Annotated[str, typer.Option(help="vllm or sglang.", rich_help_panel=_ENGINE)]
_EngineVersion = Annotated[str, typer.Option(help="Such as 0.10.2, V0.", rich_help_panel=_ENGINE)]
_Utilization = Annotated[float, typer.Option(help="Share of memory; 0: default.", rich_help_panel=_ENGINE)]
_MaxModelLen = Annotated[int, typer.Option(help="0: by demand, or the model's.", rich_help_panel=_ENGINE, min=0)]
_MaxNumSeqs = Annotated[int, typer.Option(help="0: 256 with a demand.", rich_help_panel=_ENGINE, min=0)]
_MaxNumBatchedTokens = Annotated[int, typer.Option(help="0: default.", rich_help_panel=_ENGINE, min=0)]
_KvCacheDtype = Annotated[str, typer.Option(help="auto or fp8.", rich_help_panel=_ENGINE)]
_BlockSize = Annotated[int, typer.Option(help="Tokens a KV block; 0: 16.", rich_help_panel=_ENGINE, min=0)]
_Tp = Annotated[int, typer.Option(help="Tensor parallel; 0: choose.", rich_help_panel=_ENGINE, min=0)]
_Pp = Annotated[int, typer.Option(help="Pipeline stages; 0: choose.", rich_help_panel=_ENGINE, min=0)]
_Partition = Annotated[str, typer.Option(help="Layers per stage: 20,21,20.", rich_help_panel=_ENGINE)]
_Ep = Annotated[bool, typer.Option("--ep", help="Spread experts whole.", rich_help_panel=_ENGINE)]
_DraftLayers = Annotated[int, typer.Option(help="Of speculative decoding.", rich_help_panel=_ENGINE, min=0)]
_Images = Annotated[bool, typer.Option(help="Profile the vision tower.", rich_help_panel=_ENGINE)]
_WeightsGib = Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)]
_NonTorchGib = Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)]
_ActivationGib = Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)]
_KvGib = Annotated[float | None, typer.Option(help="Per rank.", rich_help_panel=_KNOWN)]
_Check = Annotated[
    Path | None, typer.Option(help="Start-up log of a real engine to set beside the prediction.", rich_help_panel=_OUT)
]
_Explain = Annotated[bool, typer.Option("--explain", help="Every term.", rich_help_panel=_OUT)]
_Sweep = Annotated[bool, typer.Option("--sweep", help="Compare cards, formats and layouts.", rich_help_panel=_OUT)]
_Json = Annotated[bool, typer.Option("--json", help="Machine-readable.", rich_help_panel=_OUT)]
_Html = Annotated[Path | None, typer.Option(help="Write the sweep as a page.", rich_help_panel=_OUT)]
_Png = Annotated[Path | None, typer.Option(help="Plot the sweep (needs matplotlib).", rich_help_panel=_OUT)]
_Write = Annotated[Path | None, typer.Option(help="Write a cluster file.", rich_help_panel=_OUT)]
_WriteEngine = Annotated[str, typer.Option(help="Engine in that file.", rich_help_panel=_OUT)]
_Pools = Annotated[bool, typer.Option("--pools", help="With pools by length.", rich_help_panel=_OUT)]


def plan(
    model: _Model = "",
    format: _Format = "auto",  # noqa: A002 -- the flag's name
    rps: _Rps = None,
    users: _Users = None,
    think_s: _ThinkS = 20.0,
    prompt_tokens: _PromptTokens = 0,
    output_tokens: _OutputTokens = 0,
    scenarios: _Scenarios = False,
    ttft_p99_ms: _TtftP99Ms = 2000.0,
    tpot_ms: _TpotMs = 50.0,
    offline: _Offline = False,
    no_operations: _NoOperations = False,
    gpu: _Gpu = "H100",
    memory_gib: _MemoryGib = "",
    cards_per_node: _CardsPerNode = 8,
    link_group: _LinkGroup = 0,
    nodes: _Nodes = None,
    nodes_per_rack: _NodesPerRack = 8,
    network: _Network = "infiniband-ndr",
    nics: _Nics = 1,
    replicas_per_node: _ReplicasPerNode = 0,
    prices: _Prices = None,
    engine: _Engine = "vllm",
    engine_version: _EngineVersion = "",
    utilization: _Utilization = 0.0,
    max_model_len: _MaxModelLen = 0,
    max_num_seqs: _MaxNumSeqs = 0,
    max_num_batched_tokens: _MaxNumBatchedTokens = 0,
    kv_cache_dtype: _KvCacheDtype = "auto",
    block_size: _BlockSize = 0,
    tp: _Tp = 0,
    pp: _Pp = 0,
    partition: _Partition = "",
    ep: _Ep = False,
    draft_layers: _DraftLayers = 0,
    images: _Images = True,
    weights_gib: _WeightsGib = None,
    non_torch_gib: _NonTorchGib = None,
    activation_gib: _ActivationGib = None,
    kv_gib: _KvGib = None,
    check: _Check = None,
    explain: _Explain = False,
    sweep: _Sweep = False,
    json_: _Json = False,
    html: _Html = None,
    png: _Png = None,
    write: _Write = None,
    write_engine: _WriteEngine = "",
    pools: _Pools = False,
) -> None:
    """What a model needs of machines: memory as the engine computes it, layout, replicas, network, latency, cost.

    Exit code 1 where nothing fits or the demand is not held.
    """
    _run(dict(locals()))


def _run(o: dict[str, Any]) -> None:
    from exaserve.cli.plan_inputs import request_of
    from exaserve.planning import make_plan, read_log

    if o["engine"] not in ("vllm", "sglang"):
        raise typer.BadParameter(f"{o['engine']!r} is neither vllm nor sglang", param_hint="--engine")
    log = None
    if o["check"] is not None:
        from exaserve.domain.errors import ConfigError

        try:
            with o["check"].open("rb") as file:
                log = read_log(file.read(LOG_BYTES_MAX).decode("utf-8", "replace"))
        except OSError as error:
            raise ConfigError(f"{o['check']}: cannot be read: {error.strerror or error}", param="check") from None
    request = request_of(o, log)
    if log is not None:
        _check_log(o, request, log)
        return
    if o["sweep"] or o["html"] or o["png"]:
        _sweep(o, request)
        return
    result = make_plan(request)
    _output(o, result)
    if o["write"] is not None:
        _write(o, result)
    if not (result.works if request.demand_given else result.best is not None and result.best.memory.fits):
        raise typer.Exit(1)


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


def _dump(value: Any) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))


def _output(o: dict[str, Any], result: Any) -> None:
    from exaserve.cli.plan_show import show_plan, show_terms
    from exaserve.planning import explain, plan_dict

    if o["json_"]:
        _dump(plan_dict(result))
        return
    console = _console()
    show_plan(console, result)
    if o["explain"]:
        show_terms(console, explain(result))


def _write(o: dict[str, Any], result: Any) -> None:
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import cluster_file

    try:
        text = cluster_file(result, o["write_engine"] or o["engine"], pools=o["pools"])
    except ValueError as error:
        raise ConfigError(str(error), param="write") from None
    _save(o["write"], text)
    typer.echo(f"{o['write']}: written; see exaserve config check {o['write']}", err=True)


def _save(path: Path, text: str) -> None:
    from exaserve.domain.errors import ConfigError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}", param=str(path)) from None


def _check_log(o: dict[str, Any], request: PlanRequest, log: Any) -> None:
    from exaserve.cli.plan_show import show_comparison
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import MeasuredMemory, Parallelism, compare, plan_memory

    if not log.figures:
        raise ConfigError(f"{o['check']}: no line of a vLLM or SGLang start-up about memory.", param="check")
    from dataclasses import replace

    placement = Parallelism(max(1, request.tp), max(1, request.pp), bool(request.ep), request.partition)
    asked = replace(request.memory_request(placement), max_num_seqs=request.max_num_seqs)
    predicted = plan_memory(asked)
    known = MeasuredMemory(*(log.get(n) for n in ("weights_gib", "non_torch_gib", "activation_gib", "kv_gib")))
    enough = known.kv_gib is not None or (known.weights_gib is not None and known.activation_gib is not None)
    given = plan_memory(replace(asked, measured=known)) if enough else None
    rows = compare(log, predicted, given)
    if o["json_"]:
        from dataclasses import asdict

        _dump([{**asdict(row), "deviation": row.deviation} for row in rows])
        return
    console = _console()
    console.print(f"{request.arch.name}, {request.arch.fmt.name}, TP {placement.tp}, PP {placement.pp}, "
                  f"{asked.version.label}, {request.fleet.hardware.name}")  # fmt: skip
    show_comparison(console, rows)


_SWEEP_FORMATS = ("bf16", "fp8", "awq")


def _sweep(o: dict[str, Any], request: PlanRequest) -> None:
    from exaserve.cli.plan_inputs import model_of
    from exaserve.cli.plan_show import show_sweep
    from exaserve.domain.errors import ConfigError
    from exaserve.planning import sweep, sweep_dicts, sweep_html

    formats = {request.arch.fmt.name: request.arch}
    for name in _SWEEP_FORMATS:
        try:
            formats.setdefault(name, model_of(o["model"], name))
        except ConfigError:
            continue
    rows = sweep(request, formats)
    currency = request.prices.currency
    title = f"{request.arch.name}: cards, formats and layouts"
    note = (
        f"{request.demand.rate_s:,.1f} requests/s, {request.demand.prompt:,.0f} + {request.demand.output:,.0f} tokens; "
        "speeds and latencies are estimates of a roofline model, memory is counted; prices "
        + ("are given" if request.prices.card_hour else "are rough market levels")
    )
    if o["html"] is not None:
        _save(o["html"], sweep_html(rows, title, note, currency))
    if o["png"] is not None:
        _plot(o["png"], rows, title, currency)
    if o["json_"]:
        _dump(sweep_dicts(rows))
        return
    show_sweep(_console(), rows, currency)


def _plot(path: Path, rows: list[SweepRow], title: str, currency: str) -> None:
    from exaserve.domain.errors import ConfigError

    try:
        import matplotlib as mpl
    except ImportError:
        raise ConfigError(
            "--png needs matplotlib: pip install 'exaserve[plots]'; --html needs nothing.", param="png"
        ) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 6), dpi=140)
    for fmt in sorted({r.fmt for r in rows if r.works}):
        good = [r for r in rows if r.works and r.fmt == fmt]
        sizes = [18 * r.tp for r in good]
        axes.scatter(
            [r.tokens_s for r in good], [r.per_million_tokens or 0.0 for r in good], sizes, label=fmt, alpha=0.6
        )
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel("output tokens per second and card, within the targets")
    axes.set_ylabel(f"{currency} per million tokens")
    axes.legend(title="weights; size: tensor parallel")
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written: {error}", param="png") from None
    finally:
        plt.close(figure)
