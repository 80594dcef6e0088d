"""``exaserve emulate``."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from exaserve.cli.flags import command
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


_VLLM_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_NETWORK, _ENGINE, _BEHAVIOUR = "Network", "Engine", "Behaviour"


def _option(panel: str, text: str, *names: str) -> Any:
    """The second and later names are vLLM's own."""
    return typer.Option(*names, help=text, rich_help_panel=panel)


Model = Annotated[str, _option(_ENGINE, "Model whose shape sets the speed.")]
Host = Annotated[str, _option(_NETWORK, "Address to listen on.")]
Port = Annotated[int, _option(_NETWORK, "First replica's port; 0 takes free ones.")]
Replicas = Annotated[int, typer.Option(help="Replicas in this process.")]
Addressing = Annotated[AddressingChoice, _option(_NETWORK, "Count ports up, or the third number of 127.0.k.1.")]
ControlPort = Annotated[
    int | None, _option(_NETWORK, "Reaches all replicas' faults even while they refuse; 0: a free one.")
]
ServedModelName = Annotated[list[str] | None, _option(_ENGINE, "Name(s) that requests use, if not the model's.")]
Engine = Annotated[str, _option(_ENGINE, "Whose step times: vllm, sglang, trtllm, llamacpp.")]
ShowProfile = Annotated[
    bool, _option(_ENGINE, "Print what would be emulated and from which measurements, and end.", "--profile")
]
Hardware = Annotated[str, _option(_ENGINE, "Accelerator, such as H100 or null.")]
ProfileFile = Annotated[str, _option(_ENGINE, "Measured profile of exaserve calibrate.")]
Precision = Annotated[str, _option(_ENGINE, "Weights: auto, bf16, fp8, int4 …", "--precision", "--dtype")]
KvPrecision = Annotated[str, _option(_ENGINE, "KV cache: auto, bf16, fp8.", "--kv-precision", "--kv-cache-dtype")]
Tp = Annotated[int, _option(_ENGINE, "Tensor parallel size.", "--tp", "--tensor-parallel-size")]
Pp = Annotated[int, _option(_ENGINE, "Pipeline parallel size.", "--pp", "--pipeline-parallel-size")]
Utilization = Annotated[
    float, _option(_ENGINE, "Share of device memory used.", "--utilization", "--gpu-memory-utilization")
]
MaxModelLen = Annotated[int | None, _option(_ENGINE, "Prompt and output, tokens.")]
MaxNumSeqs = Annotated[int, _option(_ENGINE, "Sequences in the batch.")]
TokenBudget = Annotated[int, _option(_ENGINE, "Tokens per step.", "--token-budget", "--max-num-batched-tokens")]
BlockSize = Annotated[int, _option(_ENGINE, "Tokens per KV block.")]
Watermark = Annotated[float, _option(_ENGINE, "KV share kept free at admission.")]
PrefixCaching = Annotated[
    bool,
    _option(
        _ENGINE,
        "Reuse equal prompt beginnings.",
        "--prefix-caching/--no-prefix-caching",
        "--enable-prefix-caching/--no-enable-prefix-caching",
    ),
]
Seed = Annotated[int, _option(_BEHAVIOUR, "Answers and faults repeat under it.")]
Speed = Annotated[float, _option(_BEHAVIOUR, "Time runs this many times faster.")]
OutputTokensMean = Annotated[float, _option(_BEHAVIOUR, "Mean natural length of an answer.")]
MetricsSize = Annotated[MetricsChoice, _option(_BEHAVIOUR, "Series on /metrics: those that matter, or all.")]
LoadS = Annotated[float | None, _option(_BEHAVIOUR, "Seconds a restart takes.")]
BodyBytesMax = Annotated[int, _option(_NETWORK, "Longest request body.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the addresses (or the profile) as one line of JSON.")]
UntilStdinCloses = Annotated[bool, typer.Option(help="End when standard input does.", hidden=True)]


def _announce(emulator: Emulator, *, as_json: bool) -> None:
    """Says where the replicas listen and what they can do."""
    config, profile = emulator.config, emulator.profile
    if as_json:
        typer.echo(json.dumps({"urls": emulator.urls, "control_url": emulator.control_url}))
        return
    what = f"{config.model} on {config.tp * config.pp} x {config.hardware}"
    if config.profile_file:
        what = f"{config.names[0]} as measured in {config.profile_file}"
    typer.echo(
        f"{config.replicas} x {what}: "
        f"prefill {profile.prefill_tokens_per_s:,.0f} tokens/s, decode step {profile.decode_fixed_s * 1000:.1f} ms, "
        f"KV cache {profile.kv_tokens_max:,} tokens, context {profile.max_model_len:,}"
    )
    for url in emulator.urls:
        typer.echo(url)
    if emulator.control_url:
        typer.echo(f"control {emulator.control_url}")


@dataclass(frozen=True, kw_only=True)
class EmulateOptions:
    """The command's options, as given; those of :class:`EmulatorConfig` have its names."""

    model: Model = "Llama-3.1-8B"
    host: Host = "127.0.0.1"
    port: Port = 8001
    replicas: Replicas = 1
    addressing: Addressing = AddressingChoice.PORTS
    control_port: ControlPort = None
    served_model_name: ServedModelName = None
    engine: Engine = "vllm"
    show_profile: ShowProfile = False
    hardware: Hardware = "A100-80"
    profile_file: ProfileFile = ""
    precision: Precision = "auto"
    kv_precision: KvPrecision = "auto"
    tp: Tp = 1
    pp: Pp = 1
    utilization: Utilization = 0.9
    max_model_len: MaxModelLen = None
    max_num_seqs: MaxNumSeqs = 256
    token_budget: TokenBudget = 8192
    block_size: BlockSize = 16
    watermark: Watermark = 0.01
    prefix_caching: PrefixCaching = True
    seed: Seed = 0
    speed: Speed = 1.0
    output_tokens_mean: OutputTokensMean = 256.0
    metrics_size: MetricsSize = MetricsChoice.COMPACT
    load_s: LoadS = None
    body_bytes_max: BodyBytesMax = 67108864
    as_json: AsJson = False
    until_stdin_closes: UntilStdinCloses = False

    def config(self) -> EmulatorConfig:
        names = {each.name for each in dataclasses.fields(EmulatorConfig)}
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name in names}
        return EmulatorConfig(
            **given
            | {
                "served_model_names": tuple(self.served_model_name or ()),
                "addressing": self.addressing.value,
                "metrics_size": self.metrics_size.value,
                "precision": _VLLM_DTYPES.get(self.precision, self.precision),
                "kv_precision": _VLLM_DTYPES.get(self.kv_precision, self.kv_precision),
            }
        )


def _emulate(options: EmulateOptions) -> None:
    """Run emulated engines that answer like vLLM's server, batch and cache as it does, and fail on command.

    Faults are set while it runs: POST /emulator/fault on a replica's port or the control port, with an object such as
    {"slow": 4} or {"replica": 3, "freeze": true}; GET /emulator/state shows them.
    """
    config = options.config()
    try:
        if options.show_profile:
            from exaserve.cli.emulate_show import show  # it needs the planner and the table of measurements

            show(config, as_json=options.as_json)
            return
        uvloop.run(
            serve(
                config,
                on_open=lambda emulator: _announce(emulator, as_json=options.as_json),
                stop_with=0 if options.until_stdin_closes else None,
            )
        )
    except ConfigError as error:
        typer.echo(f"error: {error.message}", err=True)
        raise typer.Exit(2) from None


emulate = command("emulate", EmulateOptions, _emulate)
