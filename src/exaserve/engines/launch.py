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
    """Program and arguments, and the variables that its environment gets beside ours."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_QUANTIZATIONS = {"fp8": "fp8", "awq": "awq", "gptq": "gptq"}
"""Others (int8, int4, mxfp4, nvfp4) are read from the published weights by the engines themselves."""


def _where_set(**flags: object) -> list[str]:
    """``--flag value`` for every value that is not 0 or empty; ``_`` becomes ``-``."""
    argv: list[str] = []
    for name, value in flags.items():
        if value:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv


def _precision(wanted: str) -> list[str]:
    return _where_set(dtype=_DTYPES.get(wanted), quantization=_QUANTIZATIONS.get(wanted))


def _vllm(r: LaunchRequest) -> Launch:
    """``vllm serve``. Adapters may be loaded and unloaded later, so the server is told to allow it."""
    argv = ["vllm", "serve", r.model, "--host", r.host, "--port", str(r.port), "--served-model-name", r.served_name]
    argv += ["--tensor-parallel-size", str(r.tp), "--pipeline-parallel-size", str(r.pp), *_precision(r.precision)]
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
        if r.kv_connector == "NixlConnector" and r.side_port:
            env |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": r.host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(r.side_port)}
    if r.loras:
        argv += ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in r.loras)]
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return Launch((*argv, *r.extra), env)


def _sglang(r: LaunchRequest) -> Launch:
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--served-model-name", r.served_name, "--tp-size", str(r.tp), "--pp-size", str(r.pp), "--enable-metrics"]
    argv += _precision(r.precision)
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
    """``trtllm-serve``: its flags have underscores. What has no flag (block size, connector) goes into a YAML file that
    ``engine_args`` names."""
    argv = ["trtllm-serve", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--tp_size", str(r.tp), "--pp_size", str(r.pp)]
    argv += ["--max_seq_len", str(r.max_model_len)] if r.max_model_len else []
    argv += ["--max_batch_size", str(r.max_num_seqs)] if r.max_num_seqs else []
    argv += ["--kv_cache_free_gpu_memory_fraction", str(r.memory_share)] if r.memory_share else []
    return Launch((*argv, *r.extra))


def _llamacpp(r: LaunchRequest) -> Launch:
    # llama.cpp divides its context between its slots.
    slots = r.max_num_seqs or 1
    argv = ["llama-server", "-m", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--alias", r.served_name, "--metrics"]
    argv += _where_set(parallel=r.max_num_seqs, ctx_size=r.max_model_len * slots)
    for _, path in r.loras:
        argv += ["--lora", path]
    return Launch((*argv, *r.extra), {"LLAMA_CACHE": f"{r.cache_dir}/llama.cpp"} if r.cache_dir else {})


LAUNCHERS: Mapping[str, Callable[[LaunchRequest], Launch]] = MappingProxyType(
    {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "llamacpp": _llamacpp}
)


def launch(engine: str, request: LaunchRequest) -> Launch:
    """What starts the engine. KeyError for an engine that is not in :data:`LAUNCHERS`."""
    return LAUNCHERS[engine](request)
