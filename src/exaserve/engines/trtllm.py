"""TensorRT-LLM: ``trtllm-serve``, and the back end of Triton.

``trtllm-serve`` answers JSON on ``/metrics``. Its exposition is under ``/prometheus/metrics``, with
``return_perf_metrics`` only, and its gauges move with ``enable_iter_perf_stats`` only. An adapter is chosen by a field
of the request, not by the model's name. It refuses fields that it does not know, and ``cache_salt`` is one of them in
most releases, so it is not sent.
"""

from __future__ import annotations

import json
from typing import Any

from exaserve.engines.base import Engine, Launch, LaunchRequest, MetricSource, first_value
from exaserve.engines.exposition import Families
from exaserve.engines.precision import DTYPES

__all__ = ["TRTLLM"]

_PRECISIONS = ("bf16", "fp16")
_BLOCKS = (
    MetricSource(b"trtllm_kv_cache_max_blocks"),
    MetricSource(b"nv_trt_llm_kv_cache_block_metrics", label=(b"kv_cache_block_type", "max")),
)
_BLOCK_TOKENS = (
    MetricSource(b"trtllm_kv_cache_tokens_per_block", "max"),
    MetricSource(b"nv_trt_llm_kv_cache_block_metrics", "max", label=(b"kv_cache_block_type", "tokens_per")),
)


def _extras(families: Families) -> dict[str, Any]:
    blocks = first_value(families, _BLOCKS, required=False)
    per_block = first_value(families, _BLOCK_TOKENS, required=False)
    return {"kv_tokens_max": int(blocks * per_block)} if blocks and per_block else {}


def _launch(r: LaunchRequest) -> Launch:
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
    if r.precision in _PRECISIONS:
        config["dtype"] = DTYPES[r.precision]
    if r.block_size:
        # Releases differ in whether this replaces what the flags say of the cache or adds to it.
        share = {"free_gpu_memory_fraction": r.memory_share} if r.memory_share else {}
        config["kv_cache_config"] = {"tokens_per_block": r.block_size, **share}
    if r.kv_connector:
        config["cache_transceiver_config"] = {"backend": r.kv_connector.upper(), **r.kv_connector_config}
    path = f"{r.cache_dir}/trtllm.yaml"  # JSON is YAML
    return Launch((*argv, "--extra_llm_api_options", path, *r.extra), files={path: json.dumps(config, indent=1) + "\n"})


TRTLLM = Engine(
    name="trtllm",
    aliases=("tensorrt-llm",),
    prefixes=(b"trtllm_", b"nv_trt_llm_"),
    metrics_paths=("/prometheus/metrics", "/metrics"),
    sources={
        "running": (
            MetricSource(b"trtllm_num_requests_running"),
            MetricSource(b"nv_trt_llm_request_metrics", label=(b"request_type", "scheduled")),
        ),
        "waiting": (
            MetricSource(b"trtllm_num_requests_waiting"),
            MetricSource(b"nv_trt_llm_request_metrics", label=(b"request_type", "waiting")),
        ),
        "kv_use": (
            MetricSource(b"trtllm_kv_cache_utilization", "max"),
            MetricSource(b"nv_trt_llm_kv_cache_block_metrics", "max", label=(b"kv_cache_block_type", "fraction")),
        ),
        "prompt_tokens_total": (MetricSource(b"trtllm_prompt_tokens_total"),),
        "generation_tokens_total": (MetricSource(b"trtllm_generation_tokens_total"),),
    },
    expected=("running", "waiting", "kv_use"),
    info=tuple(source.name for source in _BLOCKS + _BLOCK_TOKENS),
    extras=_extras,
    launch=_launch,
    named_adapters=False,
    kv_roles=("kv_both",),
)
