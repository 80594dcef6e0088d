"""SGLang.

It has no metrics unless started with ``--enable-metrics``. Tensor and pipeline ranks may each export the same figures;
data-parallel ranks export their own.
"""

from __future__ import annotations

from typing import Any

from exaserve.engines.base import Engine, Launch, LaunchRequest, MetricSource, flags, without_labels
from exaserve.engines.exposition import Families, label, samples, whole
from exaserve.engines.precision import precision_flags

__all__ = ["SGLANG"]

_CACHE_INFO = b"sglang:cache_config_info"
_COPIED_OVER = (b"tp_rank", b"pp_rank", b"pid")


def _extras(families: Families) -> dict[str, Any]:
    tokens: dict[bytes, int] = {}
    for labels, _ in samples(families.lines(_CACHE_INFO, required=False), _CACHE_INFO):
        rank = without_labels(labels, _COPIED_OVER)
        tokens[rank] = (whole(label(labels, b"num_pages")) or 0) * (whole(label(labels, b"page_size")) or 0)
    total = sum(tokens.values())
    return {"kv_tokens_max": total} if total else {}


def _launch(r: LaunchRequest) -> Launch:
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", r.model, "--host", r.host, "--port", str(r.port)]
    argv += ["--served-model-name", r.served_name, "--tp-size", str(r.tp), "--pp-size", str(r.pp), "--enable-metrics"]
    argv += precision_flags(r)
    argv += flags(
        context_length=r.max_model_len,
        max_running_requests=r.max_num_seqs,
        page_size=r.block_size,
        mem_fraction_static=r.memory_share,
        nccl_port=r.side_port,
    )
    if r.kv_connector:
        mode = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(r.kv_role)
        argv += flags(disaggregation_mode=mode, disaggregation_transfer_backend=r.kv_connector if mode else "")
        if mode == "prefill" and r.side_port:
            argv += ["--disaggregation-bootstrap-port", str(r.side_port + 1)]
    if r.loras:
        argv += ["--enable-lora", "--lora-paths", *(f"{name}={path}" for name, path in r.loras)]
    env = {"TRITON_CACHE_DIR": f"{r.cache_dir}/triton"} if r.cache_dir else {}
    return Launch((*argv, *r.extra), env)


SGLANG = Engine(
    name="sglang",
    prefixes=(b"sglang:",),
    re_exported=(b"ray_sglang:", b"ray_sglang_"),
    sources={
        "running": (MetricSource(b"sglang:num_running_reqs"),),
        "waiting": (MetricSource(b"sglang:num_queue_reqs"),),
        "kv_use": (MetricSource(b"sglang:token_usage", "max"),),
        "kv_tokens_max": (MetricSource(b"sglang:max_total_num_tokens"),),
        "preemptions_total": (MetricSource(b"sglang:num_retracted_requests_total"),),
        "prefix_hits_total": (MetricSource(b"sglang:cached_tokens_total"),),
        "prefix_queries_total": (MetricSource(b"sglang:prompt_tokens_total"),),
        "prompt_tokens_total": (MetricSource(b"sglang:prompt_tokens_total"),),
        "generation_tokens_total": (MetricSource(b"sglang:generation_tokens_total"),),
    },
    expected=("running", "waiting", "kv_use", "prompt_tokens_total", "generation_tokens_total"),
    copied_over=_COPIED_OVER,
    info=(_CACHE_INFO,),
    extras=_extras,
    launch=_launch,
    quantizes=("fp8",),
    salted=("/v1/chat/completions", "/v1/completions", "/v1/responses"),
)
