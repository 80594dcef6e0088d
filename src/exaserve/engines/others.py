"""llama.cpp's server, TensorRT-LLM (trtllm-serve and the Triton back end), Text Generation Inference."""

from __future__ import annotations

from exaserve.engines.base import Engine, Source

__all__ = ["LLAMACPP", "TENSORRT_LLM", "TGI", "TRT_BLOCKS", "TRT_BLOCK_TOKENS"]

TRT_BLOCKS = (
    Source(b"trtllm_kv_cache_max_blocks"),
    Source(b"nv_trt_llm_kv_cache_block_metrics", label=(b"kv_cache_block_type", "max")),
)
TRT_BLOCK_TOKENS = (
    Source(b"trtllm_kv_cache_tokens_per_block", "max"),
    Source(b"nv_trt_llm_kv_cache_block_metrics", "max", label=(b"kv_cache_block_type", "tokens_per")),
)

LLAMACPP = Engine(
    name="llamacpp",
    prefixes=(b"llamacpp:",),
    sources={
        "running": (Source(b"llamacpp:requests_processing"),),
        "waiting": (Source(b"llamacpp:requests_deferred"),),
        "kv_use": (Source(b"llamacpp:kv_cache_usage_ratio", "max"),),
        "prompt_tokens_total": (Source(b"llamacpp:prompt_tokens_total"),),
        "generation_tokens_total": (Source(b"llamacpp:tokens_predicted_total"),),
    },
    expected=("running", "waiting", "prompt_tokens_total", "generation_tokens_total"),
    quirks=(
        "no metrics unless started with --metrics",
        "releases since May 2025 say nothing of the KV cache",
        "some releases print broken lines between good ones",
    ),
)

TENSORRT_LLM = Engine(
    name="trtllm",
    prefixes=(b"trtllm_", b"nv_trt_llm_"),
    metrics_paths=("/prometheus/metrics", "/metrics"),
    sources={
        "running": (
            Source(b"trtllm_num_requests_running"),
            Source(b"nv_trt_llm_request_metrics", label=(b"request_type", "scheduled")),
        ),
        "waiting": (
            Source(b"trtllm_num_requests_waiting"),
            Source(b"nv_trt_llm_request_metrics", label=(b"request_type", "waiting")),
        ),
        "kv_use": (
            Source(b"trtllm_kv_cache_utilization", "max"),
            Source(b"nv_trt_llm_kv_cache_block_metrics", "max", label=(b"kv_cache_block_type", "fraction")),
        ),
        "prompt_tokens_total": (Source(b"trtllm_prompt_tokens_total"),),
        "generation_tokens_total": (Source(b"trtllm_generation_tokens_total"),),
    },
    expected=("running", "waiting", "kv_use"),
    quirks=(
        "trtllm-serve answers JSON on /metrics; its exposition is under /prometheus/metrics",
        "that is there with return_perf_metrics only, and its gauges move with enable_iter_perf_stats only",
    ),
)

TGI = Engine(
    name="tgi",
    prefixes=(b"tgi_",),
    sources={
        "running": (Source(b"tgi_batch_current_size"),),
        "waiting": (Source(b"tgi_queue_size"),),
    },
    expected=("running", "waiting"),
    quirks=("says nothing of the KV cache; tgi_batch_current_max_tokens is a bound on the batch, not its use",),
)
