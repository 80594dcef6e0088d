"""vLLM, V0 to today, and what answers like it (the emulator)."""

from __future__ import annotations

from exaserve.engines.base import Engine, Source

__all__ = ["CACHE_INFO", "LORA_INFO", "SLEEP_STATE", "VLLM"]

CACHE_INFO = b"vllm:cache_config_info"
LORA_INFO = b"vllm:lora_requests_info"
SLEEP_STATE = b"vllm:engine_sleep_state"

VLLM = Engine(
    name="vllm",
    prefixes=(b"vllm:",),
    sources={
        "running": (Source(b"vllm:num_requests_running"),),
        "waiting": (Source(b"vllm:num_requests_waiting"),),
        "kv_use": (Source(b"vllm:kv_cache_usage_perc", "max"), Source(b"vllm:gpu_cache_usage_perc", "max")),
        "preemptions_total": (Source(b"vllm:num_preemptions_total"),),
        "prefix_hits_total": (
            Source(b"vllm:prefix_cache_hits_total"),
            Source(b"vllm:gpu_prefix_cache_hits_total"),
        ),
        "prefix_queries_total": (
            Source(b"vllm:prefix_cache_queries_total"),
            Source(b"vllm:gpu_prefix_cache_queries_total"),
        ),
        "prompt_tokens_total": (Source(b"vllm:prompt_tokens_total"),),
        "generation_tokens_total": (Source(b"vllm:generation_tokens_total"),),
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
    quirks=(
        "num_requests_waiting_by_reason repeats what num_requests_waiting counts",
        "0.8 and older call the cache's use gpu_cache_usage_perc; 0.10 has both names",
        "the value of lora_requests_info is a time; the adapters are in its labels, old series stay",
        "engines that take no completions (pooling models) answer /v1/embeddings only",
    ),
)
