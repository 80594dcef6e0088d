"""The command line and environment that start one replica of an engine on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

__all__ = ["LAUNCHERS", "Launch", "LaunchRequest", "block_size_of", "launch"]

_BLOCKS = {"short": 16, "medium": 32, "long": 64}
"""Tokens in a KV block by the length class of a pool's prompts (A6): below 512 tokens, to 4,096, above."""


def block_size_of(prompt_length: str) -> int:
    """Tokens in a KV block for a pool of that length class; 0 (the engine's own choice) for any other word."""
    return _BLOCKS.get(prompt_length, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What a replica is to be.

    Attributes:
        model: path or name that the engine loads.
        served_name: what clients call it.
        host / port: where it listens.
        precision: of the weights; "auto" leaves the choice to the engine.
        quantized: whether the checkpoint is published quantised; then the engine must be told nothing of it.
        tp / pp: tensor and pipeline parallel sizes.
        max_model_len: prompt and output, tokens; 0 leaves the choice to the engine.
        max_num_seqs: sequences at once; 0 leaves the choice to the engine.
        block_size: tokens in one KV block; 0 leaves the choice to the engine.
        memory_share: of a card's memory for the engine, 0..1; 0 leaves the choice to the engine.
        kv_connector / kv_role / kv_connector_config: moves KV between replicas (A7); "" moves none.
        loras: ``(name, path)`` of adapters loaded at the start.
        side_port: first of ten ports that this replica may use beside ``port`` (side channels, rendezvous of ranks).
        cache_dir: folder for compiled kernels and the like, its own; "" leaves the choice to the engine.
        extra: further arguments, last, so that they win.
    """

    model: str
    served_name: str
    host: str
    port: int
    precision: str = "auto"
    quantized: bool = False
    tp: int = 1
    pp: int = 1
    max_model_len: int = 0
    max_num_seqs: int = 0
    block_size: int = 0
    memory_share: float = 0.0
    kv_connector: str = ""
    kv_role: str = "kv_both"
    kv_connector_config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    loras: tuple[tuple[str, str], ...] = ()
    side_port: int = 0
    cache_dir: str = ""
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start it.

    Attributes:
        argv: program and arguments.
        env: variables that its environment gets beside ours.
        files: what has to be written before, by path.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


_TRTLLM_DTYPES = ("bf16", "fp16")
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_ON_THE_FLY = {"fp8": "fp8"}
"""What vLLM and SGLang make of 16-bit weights while they load. All else (awq, gptq, int8, int4, mxfp4, nvfp4) exists
only as published, and the engines read it from the checkpoint themselves: naming it can only contradict that or, for
AWQ and GPTQ, choose a slower kernel."""
_DEFAULT_SEQS = 256
"""What a pool says where nobody has said anything (A16)."""
_LLAMACPP_SLOTS = 4
"""Of a llama.cpp server that chooses for itself."""


def _where_set(**flags: object) -> list[str]:
    """``--flag value`` for every value that is not 0 or empty; ``_`` becomes ``-``."""
    argv: list[str] = []
    for name, value in flags.items():
        if value:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def _precision(r: LaunchRequest) -> list[str]:
    method = None if r.quantized else _ON_THE_FLY.get(r.precision)
    return _where_set(dtype=_DTYPES.get(r.precision), quantization=method)


def _vllm(r: LaunchRequest) -> Launch:
    """``vllm serve``. Adapters may be loaded and unloaded later, so the server is told to allow it."""
    argv = ["vllm", "serve", r.model, "--host", r.host, "--port", str(r.port), "--served-model-name", r.served_name]
    argv += ["--tensor-parallel-size", str(r.tp), "--pipeline-parallel-size", str(r.pp), *_precision(r)]
    argv += _where_set(
        max_model_len=r.max_model_len,
        max_num_seqs=r.max_num_seqs,
        block_size=r.block_size,
        gpu_memory_utilization=r.memory_share,
    )
    env = {}
    if r.side_port:
        env["VLLM_PORT"] = str(r.side_port + 1)
    if r.cache_dir:
        env["VLLM_CACHE_ROOT"] = f"{r.cache_dir}/vllm"
        env["TRITON_CACHE_DIR"] = f"{r.cache_dir}/triton"
        env["TORCHINDUCTOR_CACHE_DIR"] = f"{r.cache_dir}/inductor"
    if r.kv_connector:
        transfer: dict[str, object] = {"kv_connector": r.kv_connector, "kv_role": r.kv_role}
        if r.kv_connector_config:
            transfer["kv_connector_extra_config"] = dict(r.kv_connector_config)
        argv += ["--kv-transfer-config", json.dumps(transfer, separators=(",", ":"))]
        env |= _side_channel(r)
    if r.loras:
        argv += ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in r.loras)]
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return Launch((*argv, *r.extra), env)


def _side_channel(r: LaunchRequest) -> dict[str, str]:
    """Where connectors of vLLM meet each other: their default ports are the same for every replica of a node."""
    env: dict[str, str] = {}
    if r.side_port and r.kv_connector.startswith(("Nixl", "Multi")):
        env |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": r.host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(r.side_port)}
    if r.side_port and r.kv_connector.startswith(("Mooncake", "Multi")):
        env["VLLM_MOONCAKE_BOOTSTRAP_PORT"] = str(r.side_port + 2)
    if r.side_port and r.kv_connector.startswith(("Offloading", "Multi")):
        env |= {"VLLM_P2P_SIDE_CHANNEL_HOST": r.host, "VLLM_P2P_SIDE_CHANNEL_PORT": str(r.side_port + 3)}
    return env


def _sglang(r: LaunchRequest) -> Launch:
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--served-model-name", r.served_name, "--tp-size", str(r.tp), "--pp-size", str(r.pp), "--enable-metrics"]
    argv += _precision(r)
    argv += _where_set(
        context_length=r.max_model_len,
        max_running_requests=r.max_num_seqs,
        page_size=r.block_size,
        mem_fraction_static=r.memory_share,
        nccl_port=r.side_port,
    )
    if r.kv_connector:
        mode = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(r.kv_role)
        argv += _where_set(disaggregation_mode=mode, disaggregation_transfer_backend=r.kv_connector if mode else "")
        if mode == "prefill" and r.side_port:
            argv += ["--disaggregation-bootstrap-port", str(r.side_port + 1)]
    if r.loras:
        argv += ["--enable-lora", "--lora-paths", *(f"{name}={path}" for name, path in r.loras)]
    env = {"TRITON_CACHE_DIR": f"{r.cache_dir}/triton"} if r.cache_dir else {}
    return Launch((*argv, *r.extra), env)


def _trtllm(r: LaunchRequest) -> Launch:
    """``trtllm-serve`` of TensorRT-LLM 1.0 or newer: its flags have underscores, and what has none goes into a file.

    Without the first two lines of that file it has no ``/prometheus/metrics`` and no iteration figures. It takes any
    model name in a request, so the served name needs no flag; quantisation comes with the checkpoint only.
    """
    argv = ["trtllm-serve", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--tp_size", str(r.tp), "--pp_size", str(r.pp)]
    argv += ["--max_seq_len", str(r.max_model_len)] if r.max_model_len else []
    argv += ["--max_batch_size", str(r.max_num_seqs)] if r.max_num_seqs else []
    argv += ["--kv_cache_free_gpu_memory_fraction", str(r.memory_share)] if r.memory_share else []
    config: dict[str, object] = {"return_perf_metrics": True, "enable_iter_perf_stats": True}
    if r.precision in _TRTLLM_DTYPES:
        config["dtype"] = _DTYPES[r.precision]
    if r.block_size:
        # Releases differ in whether this replaces what the flags say of the cache or adds to it.
        share = {"free_gpu_memory_fraction": r.memory_share} if r.memory_share else {}
        config["kv_cache_config"] = {"tokens_per_block": r.block_size, **share}
    if r.kv_connector:
        config["cache_transceiver_config"] = {"backend": r.kv_connector.upper(), **r.kv_connector_config}
    path = f"{r.cache_dir}/trtllm.yaml"  # JSON is YAML
    return Launch((*argv, "--extra_llm_api_options", path, *r.extra), files={path: json.dumps(config, indent=1) + "\n"})


def _llamacpp(r: LaunchRequest) -> Launch:
    """``llama-server``: a GGUF file, or a hub's name with an optional quantisation (``org/name:Q4_K_M``).

    Its context is for all slots together, and each given slot has its share; 256 of them would leave nobody anything.
    """
    slots = 0 if r.max_num_seqs == _DEFAULT_SEQS else r.max_num_seqs
    source = "-m" if r.model.endswith(".gguf") or r.model.startswith(("/", ".")) else "-hf"
    argv = ["llama-server", source, r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--alias", r.served_name, "--metrics"]
    argv += _where_set(parallel=slots, ctx_size=r.max_model_len * (slots or _LLAMACPP_SLOTS))
    return Launch((*argv, *r.extra), {"LLAMA_CACHE": f"{r.cache_dir}/llama.cpp"} if r.cache_dir else {})


LAUNCHERS: Mapping[str, Callable[[LaunchRequest], Launch]] = MappingProxyType(
    {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "llamacpp": _llamacpp}
)


def launch(engine: str, request: LaunchRequest) -> Launch:
    """What starts the engine. KeyError for an engine that is not in :data:`LAUNCHERS`."""
    return LAUNCHERS[engine](request)
