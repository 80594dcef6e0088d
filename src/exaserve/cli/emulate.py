"""``exaserve emulate``."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from exaserve.domain.errors import ConfigError
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.server import serve

if TYPE_CHECKING:
    from exaserve.emulator.server import Emulator

__all__ = ["emulate"]


class AddressingChoice(StrEnum):
    PORTS = "ports"
    ADDRESSES = "addresses"


class MetricsChoice(StrEnum):
    COMPACT = "compact"
    REAL = "real"


_NETWORK, _ENGINE, _BEHAVIOUR = "Network", "Engine", "Behaviour"


Model = Annotated[str, typer.Option(help="Model whose shape sets the speed.", rich_help_panel=_ENGINE)]
Host = Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_NETWORK)]
Port = Annotated[int, typer.Option(help="First replica's port; 0 takes free ones.", rich_help_panel=_NETWORK)]
Replicas = Annotated[int, typer.Option(help="Replicas in this process.")]
Addressing = Annotated[
    AddressingChoice, typer.Option(help="Count ports up, or the third number of 127.0.k.1.", rich_help_panel=_NETWORK)
]
ControlPort = Annotated[
    int | None,
    typer.Option(help="Reaches all replicas' faults even while they refuse; 0: a free one.", rich_help_panel=_NETWORK),
]
ServedModelName = Annotated[
    list[str] | None, typer.Option(help="Name(s) that requests use, if not the model's.", rich_help_panel=_ENGINE)
]
Hardware = Annotated[str, typer.Option(help="Accelerator, such as H100 or null.", rich_help_panel=_ENGINE)]
ProfileFile = Annotated[str, typer.Option(help="Measured profile of exaserve calibrate.", rich_help_panel=_ENGINE)]
Precision = Annotated[str, typer.Option(help="Weights: auto, bf16, fp8, int4 …", rich_help_panel=_ENGINE)]
KvPrecision = Annotated[str, typer.Option(help="KV cache: auto, bf16, fp8.", rich_help_panel=_ENGINE)]
Tp = Annotated[int, typer.Option(help="Tensor parallel size.", rich_help_panel=_ENGINE)]
Pp = Annotated[int, typer.Option(help="Pipeline parallel size.", rich_help_panel=_ENGINE)]
Utilization = Annotated[float, typer.Option(help="Share of device memory used.", rich_help_panel=_ENGINE)]
MaxModelLen = Annotated[int | None, typer.Option(help="Prompt and output, tokens.", rich_help_panel=_ENGINE)]
MaxNumSeqs = Annotated[int, typer.Option(help="Sequences in the batch.", rich_help_panel=_ENGINE)]
TokenBudget = Annotated[int, typer.Option(help="Tokens per step.", rich_help_panel=_ENGINE)]
BlockSize = Annotated[int, typer.Option(help="Tokens per KV block.", rich_help_panel=_ENGINE)]
Watermark = Annotated[float, typer.Option(help="KV share kept free at admission.", rich_help_panel=_ENGINE)]
PrefixCaching = Annotated[bool, typer.Option(help="Reuse equal prompt beginnings.", rich_help_panel=_ENGINE)]
Seed = Annotated[int, typer.Option(help="Answers and faults repeat under it.", rich_help_panel=_BEHAVIOUR)]
Speed = Annotated[float, typer.Option(help="Time runs this many times faster.", rich_help_panel=_BEHAVIOUR)]
OutputTokensMean = Annotated[float, typer.Option(help="Mean natural length of an answer.", rich_help_panel=_BEHAVIOUR)]
MetricsSize = Annotated[
    MetricsChoice, typer.Option(help="Series on /metrics: those that matter, or all.", rich_help_panel=_BEHAVIOUR)
]
LoadS = Annotated[float | None, typer.Option(help="Seconds a restart takes.", rich_help_panel=_BEHAVIOUR)]
BodyBytesMax = Annotated[int, typer.Option(help="Longest request body.", rich_help_panel=_NETWORK)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the addresses as one line of JSON.")]
UntilStdinCloses = Annotated[bool, typer.Option(help="End when standard input does.", hidden=True)]


def _announce(emulator: Emulator, *, as_json: bool) -> None:
    """Says where the replicas listen and what they can do."""
    config, profile = emulator.config, emulator.profile
    if as_json:
        typer.echo(json.dumps({"urls": emulator.urls, "control_url": emulator.control_url}))
        return
    typer.echo(
        f"{config.replicas} x {config.model} on {config.tp * config.pp} x {config.hardware}: "
        f"prefill {profile.prefill_tokens_per_s:,.0f} tokens/s, decode step {profile.decode_fixed_s * 1000:.1f} ms, "
        f"KV cache {profile.kv_tokens_max:,} tokens, context {profile.max_model_len:,}"
    )
    for url in emulator.urls:
        typer.echo(url)
    if emulator.control_url:
        typer.echo(f"control {emulator.control_url}")


def emulate(
    model: Model = "Llama-3.1-8B",
    host: Host = "127.0.0.1",
    port: Port = 8001,
    replicas: Replicas = 1,
    addressing: Addressing = AddressingChoice.PORTS,
    control_port: ControlPort = None,
    served_model_name: ServedModelName = None,
    hardware: Hardware = "A100-80",
    profile_file: ProfileFile = "",
    precision: Precision = "auto",
    kv_precision: KvPrecision = "auto",
    tp: Tp = 1,
    pp: Pp = 1,
    utilization: Utilization = 0.9,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = 256,
    token_budget: TokenBudget = 8192,
    block_size: BlockSize = 16,
    watermark: Watermark = 0.01,
    prefix_caching: PrefixCaching = True,
    seed: Seed = 0,
    speed: Speed = 1.0,
    output_tokens_mean: OutputTokensMean = 256.0,
    metrics_size: MetricsSize = MetricsChoice.COMPACT,
    load_s: LoadS = None,
    body_bytes_max: BodyBytesMax = 67108864,
    as_json: AsJson = False,
    until_stdin_closes: UntilStdinCloses = False,
) -> None:
    """Run emulated engines that answer like vLLM's server, batch and cache as it does, and fail on command.

    Faults are set while it runs: POST /emulator/fault on a replica's port or the control port, with an object such as
    {"slow": 4} or {"replica": 3, "freeze": true}; GET /emulator/state shows them.
    """
    config = EmulatorConfig(
        model=model,
        served_model_names=tuple(served_model_name or ()),
        replicas=replicas,
        host=host,
        port=port,
        addressing=addressing.value,
        control_port=control_port,
        hardware=hardware,
        profile_file=profile_file,
        precision=precision,
        kv_precision=kv_precision,
        tp=tp,
        pp=pp,
        utilization=utilization,
        seed=seed,
        speed=speed,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        token_budget=token_budget,
        block_size=block_size,
        watermark=watermark,
        prefix_caching=prefix_caching,
        output_tokens_mean=output_tokens_mean,
        metrics_size=metrics_size.value,
        load_s=load_s,
        body_bytes_max=body_bytes_max,
    )

    try:
        uvloop.run(
            serve(
                config,
                on_open=lambda emulator: _announce(emulator, as_json=as_json),
                stop_with=0 if until_stdin_closes else None,
            )
        )
    except ConfigError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(2) from None
