"""SGLang (started with ``--enable-metrics``)."""

from __future__ import annotations

from exaserve.engines.base import Engine, Source

__all__ = ["CACHE_INFO", "SGLANG"]

CACHE_INFO = b"sglang:cache_config_info"

SGLANG = Engine(
    name="sglang",
    prefixes=(b"sglang:",),
    sources={
        "running": (Source(b"sglang:num_running_reqs"),),
        "waiting": (Source(b"sglang:num_queue_reqs"),),
        "kv_use": (Source(b"sglang:token_usage", "max"),),
        "kv_tokens_max": (Source(b"sglang:max_total_num_tokens"),),
        "preemptions_total": (Source(b"sglang:num_retracted_requests_total"),),
        "prefix_hits_total": (Source(b"sglang:cached_tokens_total"),),
        "prefix_queries_total": (Source(b"sglang:prompt_tokens_total"),),
        "prompt_tokens_total": (Source(b"sglang:prompt_tokens_total"),),
        "generation_tokens_total": (Source(b"sglang:generation_tokens_total"),),
    },
    expected=("running", "waiting", "kv_use", "prompt_tokens_total", "generation_tokens_total"),
    copied_over=(b"tp_rank", b"pp_rank", b"pid"),
    quirks=(
        "no metrics unless started with --enable-metrics",
        "tensor and pipeline ranks may each export the same figures; data-parallel ranks export their own",
    ),
)
