"""The exposition: vLLM's names and types, and numbers that agree with what happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from exaserve.emulator.metrics import Stats, StatsHistogram
from exaserve.emulator.server import Emulator

Start = Callable[..., Awaitable[Emulator]]

READ_BY_SCHEDULERS = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:engine_sleep_state": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:iteration_tokens_total": "histogram",
    "vllm:cache_config_info": "gauge",
}


@pytest.mark.parametrize("size", ["compact", "real"])
async def test_names_types_and_numbers(start: Start, size: str) -> None:
    emulator = await start(metrics_size=size)
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        body = {"messages": [{"role": "user", "content": "word " * 40}], "max_tokens": 5, "ignore_eos": True}
        for _ in range(2):
            await client.post("/v1/chat/completions", json=body)
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert {name: families[name].type for name in READ_BY_SCHEDULERS} == READ_BY_SCHEDULERS
    value = {s.name: s.value for f in families.values() for s in f.samples}
    assert value["vllm:generation_tokens_total"] == 10
    assert value["vllm:prompt_tokens_total"] == 2 * 57
    assert (value["vllm:prefix_cache_queries_total"], value["vllm:prefix_cache_hits_total"]) == (114, 48)
    assert value["vllm:time_to_first_token_seconds_count"] == 2
    assert value["vllm:inter_token_latency_seconds_count"] == 8
    assert value["vllm:kv_cache_usage_perc"] == 0
    info = families["vllm:cache_config_info"].samples[0].labels
    assert int(info["block_size"]) * int(info["num_gpu_blocks"]) == int(info["kv_cache_size_tokens"])
    ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert ended == {"stop": 0, "length": 2, "abort": 0, "error": 0, "repetition": 0}
    lines = answer.text.count("\n")
    assert lines < 90 if size == "compact" else lines > 400


def test_histogram_buckets_are_upper_bounds_included() -> None:
    histogram = StatsHistogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert (histogram.cumulative(), histogram.count, histogram.total) == ([2.0, 3.0, 4.0], 4, 12.0)


def test_token_buckets_end_at_the_context_length() -> None:
    assert Stats(2048).prompt_tokens.bounds[-1] == 2000.0
    assert Stats(131_072).prompt_tokens.bounds[-3:] == (20_000.0, 50_000.0, 100_000.0)
