"""vLLM, V0 to today.

What surprises: ``num_requests_waiting_by_reason`` repeats what ``num_requests_waiting`` counts; 0.8 and older call the
cache's use ``gpu_cache_usage_perc``, 0.10 has both names. Ray exports the metrics of engines that it runs as
``ray_vllm_…``, its older releases as ``ray_vllm:…``, with labels of its own.
"""

from __future__ import annotations

import json
from typing import Any

from exaserve.engines.base import Engine, Launch, LaunchRequest, MetricSource, flags
from exaserve.engines.exposition import Families, label, samples, whole
from exaserve.engines.precision import precision_flags

__all__ = ["VLLM"]

_CACHE_INFO = b"vllm:cache_config_info"
_SLEEP_STATE = b"vllm:engine_sleep_state"


def _extras(families: Families) -> dict[str, Any]:
    values: dict[str, Any] = {}
    tokens = 0
    for labels, _ in samples(families.lines(_CACHE_INFO, required=True), _CACHE_INFO):
        own = whole(label(labels, b"kv_cache_size_tokens"))
        if not own:
            own = (whole(label(labels, b"num_gpu_blocks")) or 0) * (whole(label(labels, b"block_size")) or 0)
        tokens += own
    if tokens:
        values["kv_tokens_max"] = tokens
    awake = [
        value
        for labels, value in samples(families.lines(_SLEEP_STATE, required=False), _SLEEP_STATE)
        if value is not None and label(labels, b"sleep_state") == "awake"
    ]
    if awake:
        values["asleep"] = min(awake) < 0.5
    return values


def _launch(r: LaunchRequest) -> Launch:
    """``vllm serve``. Adapters may be loaded and unloaded later, so the server is told to allow it."""
    argv = ["vllm", "serve", r.model, "--host", r.host, "--port", str(r.port), "--served-model-name", r.served_name]
    argv += ["--tensor-parallel-size", str(r.tp), "--pipeline-parallel-size", str(r.pp), *precision_flags(r)]
    argv += flags(
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


VLLM = Engine(
    name="vllm",
    prefixes=(b"vllm:",),
    re_exported=(b"ray_vllm:", b"ray_vllm_"),
    sources={
        "running": (MetricSource(b"vllm:num_requests_running"),),
        "waiting": (MetricSource(b"vllm:num_requests_waiting"),),
        "kv_use": (MetricSource(b"vllm:kv_cache_usage_perc", "max"), MetricSource(b"vllm:gpu_cache_usage_perc", "max")),
        "preemptions_total": (MetricSource(b"vllm:num_preemptions_total"),),
        "prefix_hits_total": (
            MetricSource(b"vllm:prefix_cache_hits_total"),
            MetricSource(b"vllm:gpu_prefix_cache_hits_total"),
        ),
        "prefix_queries_total": (
            MetricSource(b"vllm:prefix_cache_queries_total"),
            MetricSource(b"vllm:gpu_prefix_cache_queries_total"),
        ),
        "prompt_tokens_total": (MetricSource(b"vllm:prompt_tokens_total"),),
        "generation_tokens_total": (MetricSource(b"vllm:generation_tokens_total"),),
    },
    expected=(
        "running",
        "waiting",
        "kv_use",
        "kv_tokens_max",
        "preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
    ),
    info=(_CACHE_INFO, _SLEEP_STATE),
    extras=_extras,
    launch=_launch,
    quantizes=("fp8",),
    salted=("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    kv_roles=("kv_both", "kv_producer", "kv_consumer"),
)
