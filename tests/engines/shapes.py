"""Expositions in the shapes that engines really print."""

from __future__ import annotations

from collections.abc import Iterable

CACHE_LABELS = (
    '_block_size_resolved="True",block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="{engine}",'
    'gpu_memory_utilization="0.92",kv_cache_size_tokens="{tokens}",num_gpu_blocks="1000",num_gpu_blocks_override="None",'
    'user_specified_block_size="False"'
)


def family(name: str, kind: str, samples: Iterable[tuple[str, object]], help_text: str = "What it is.") -> str:
    """One family as prometheus_client prints it; ``samples`` are (labels, value)."""
    lines = [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def vllm_now(engines: int = 1, running: float = 3, waiting: float = 2, kv: float = 0.25, tokens: str = "None") -> str:
    """vLLM V1 of today: ``engine`` labels, ``_created`` series, by-reason series, sleep state."""
    who = [f'engine="{engine}",model_name="m"' for engine in range(engines)]
    made = [(labels, 1.7959863147478e09) for labels in who]
    parts = [
        family("python_gc_collections_total", "counter", [('generation="0"', 1557.0)]),
        family("process_open_fds", "gauge", [("", 34.0)]),
        family("vllm:num_requests_running", "gauge", [(labels, float(running)) for labels in who]),
        family("vllm:num_requests_waiting", "gauge", [(labels, float(waiting)) for labels in who]),
        family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            [(f'{labels},reason="{why}"', 99.0) for labels in who for why in ("capacity", "deferred")],
        ),
        family(
            "vllm:engine_sleep_state",
            "gauge",
            [
                (f'{labels},sleep_state="{state}"', value)
                for labels in who
                for state, value in (("awake", 1.0), ("weights_offloaded", 0.0), ("discard_all", 0.0))
            ],
            "Engine sleep state; awake = 0 means engine is sleeping.",
        ),
        family("vllm:kv_cache_usage_perc", "gauge", [(labels, kv + 0.01 * index) for index, labels in enumerate(who)]),
        family("vllm:prefix_cache_queries_total", "counter", [(labels, 200.0) for labels in who]),
        family("vllm:prefix_cache_queries_created", "gauge", made),
        family("vllm:prefix_cache_hits_total", "counter", [(labels, 50.0) for labels in who]),
        family("vllm:external_prefix_cache_hits_total", "counter", [(labels, 7.0) for labels in who]),
        family("vllm:num_preemptions_total", "counter", [(labels, 1.0) for labels in who]),
        family("vllm:num_preemptions_created", "gauge", made),
        family("vllm:prompt_tokens_total", "counter", [(labels, 1.234e06) for labels in who]),
        family("vllm:prompt_tokens_created", "gauge", made),
        family(
            "vllm:prompt_tokens_by_source_total",
            "counter",
            [(f'{labels},source="local_compute"', 20.0) for labels in who],
        ),
        family("vllm:prompt_tokens_cached_total", "counter", [(labels, 4.0) for labels in who]),
        family("vllm:generation_tokens_total", "counter", [(labels, 800.0) for labels in who]),
        family(
            "vllm:time_to_first_token_seconds",
            "histogram",
            [(f'{labels},le="{le}"', 1.0) for labels in who for le in ("0.1", "1.0", "+Inf")],
        ).replace("seconds{", "seconds_bucket{"),
        family(
            "vllm:cache_config_info",
            "gauge",
            [(CACHE_LABELS.format(engine=engine, tokens=tokens), 1.0) for engine in range(engines)],
        ),
    ]
    return "".join(parts)


SGLANG = (
    family("sglang:prompt_tokens_total", "counter", [('model_name="m"', "8.128902e+06")])
    + family("sglang:generation_tokens_total", "counter", [('model_name="m"', "7.557572e+06")])
    + family("sglang:token_usage", "gauge", [('model_name="m"', 0.28)])
    + family("sglang:num_running_reqs", "gauge", [('model_name="m"', 162.0)])
    + family("sglang:num_running_reqs_offline_batch", "gauge", [('model_name="m"', 9.0)])
    + family("sglang:num_used_tokens", "gauge", [('model_name="m"', 123859.0)])
    + family("sglang:num_queue_reqs", "gauge", [('model_name="m"', 2826.0)])
    + family("sglang:max_total_num_tokens", "gauge", [('model_name="m"', 442000.0)])
    + family("sglang:cached_tokens_total", "counter", [('model_name="m"', 61000.0)])
)

LLAMACPP = (
    family("llamacpp:prompt_tokens_total", "counter", [("", 143)])
    + family("llamacpp:prompt_seconds_total", "counter", [("", 8.168)])
    + family("llamacpp:tokens_predicted_total", "counter", [("", 673)])
    + family("llamacpp:requests_processing", "gauge", [("", 2)])
    + family("llamacpp:requests_deferred", "gauge", [("", 5)])
)

TRTLLM = (
    family("trtllm_num_requests_running", "gauge", [('model_name="m"', 4.0)])
    + family("trtllm_num_requests_waiting", "gauge", [('model_name="m"', 1.0)])
    + family("trtllm_kv_cache_utilization", "gauge", [('model_name="m"', 0.5)])
    + family("trtllm_kv_cache_max_blocks", "gauge", [('model_name="m"', 100.0)])
    + family("trtllm_kv_cache_tokens_per_block", "gauge", [('model_name="m"', 32.0)])
    + family("trtllm_prompt_tokens_total", "counter", [('model_name="m"', 900.0)])
    + family("trtllm_generation_tokens_total", "counter", [('model_name="m"', 70.0)])
)

TRITON = family(
    "nv_trt_llm_request_metrics",
    "gauge",
    [('model="t",request_type="scheduled",version="1"', 6), ('model="t",request_type="waiting",version="1"', 3)],
) + family(
    "nv_trt_llm_kv_cache_block_metrics",
    "gauge",
    [
        ('kv_cache_block_type="fraction",model="t"', 0.75),
        ('kv_cache_block_type="max",model="t"', 200),
        ('kv_cache_block_type="tokens_per",model="t"', 64),
    ],
)

TGI = family("tgi_queue_size", "gauge", [("", 3.0)]) + family("tgi_batch_current_size", "gauge", [("", 8.0)])
