"""Predictions against what real engines printed."""

from __future__ import annotations

import pytest
from tests.planning.public_logs import ROWS, Row

from exaserve.planning import MeasuredMemory
from exaserve.planning.memory import GIB

WITH_WEIGHTS = [r for r in ROWS if r.weights_gib is not None]
WITH_TOKENS = [r for r in ROWS if r.tokens is not None]
WITH_KV = [r for r in ROWS if r.kv_gib is not None]


@pytest.mark.parametrize("row", WITH_WEIGHTS, ids=str)
def test_weights_are_within_three_percent(row: Row) -> None:
    assert row.plan().weights_gib == pytest.approx(row.weights_gib, rel=0.03)


def test_most_weights_are_within_one_percent() -> None:
    close = [abs(r.plan().weights_gib / (r.weights_gib or 1) - 1) < 0.01 for r in WITH_WEIGHTS]
    assert sum(close) >= 0.7 * len(close)


@pytest.mark.parametrize("row", WITH_TOKENS, ids=str)
def test_tokens_are_within_five_percent(row: Row) -> None:
    assert row.plan().tokens == pytest.approx(row.tokens, rel=0.05)


@pytest.mark.parametrize("row", WITH_KV, ids=str)
def test_cache_memory_is_within_five_percent(row: Row) -> None:
    plan = row.plan()
    assert min(s.kv for s in plan.stages) / GIB == pytest.approx(row.kv_gib, rel=0.05)


@pytest.mark.parametrize("row", [r for r in WITH_TOKENS if r.kv_gib is not None], ids=str)
def test_the_log_s_own_cache_memory_gives_its_tokens(row: Row) -> None:
    # Logs print two decimals of GiB, which is up to 0.2 % of the smallest figure here.
    assert row.plan(MeasuredMemory(kv_gib=row.kv_gib)).tokens == pytest.approx(row.tokens, rel=0.005)


@pytest.mark.parametrize(
    ("total", "share", "weights", "outside", "peak", "left"),
    [
        (23.58, 0.90, 14.99, 0.35, 2.07, 3.81),
        (15.99, 0.90, 5.29, 0.06, 1.04, 8.00),
        (44.42, 0.90, 27.72, 0.21, 1.40, 10.65),
        (79.15, 0.696, 8.63, 0.09, 1.16, 45.21),
        (139.72, 1.00, 39.66, 2.53, 0.24, 97.29),
        (23.58, 0.99, 21.21, 0.20, 0.37, 1.57),
    ],
)
def test_the_identity_of_the_engine_s_own_figures(
    total: float, share: float, weights: float, outside: float, peak: float, left: float
) -> None:
    row = Row("six public logs", "Llama-3.1-8B", "RTX-3090", "0.10.2", memory_gib=total, utilization=share, length=2048)
    plan = row.plan(MeasuredMemory(weights, outside, peak))
    assert plan.stages[0].kv / GIB == pytest.approx(left, abs=0.012)


def test_start_up_that_failed_is_predicted_to_fail_by_as_much() -> None:
    # vllm-project/vllm#23278: gpt-oss-120b on one H100, 1,024 sequences: "Available KV cache memory: -2.14 GiB".
    plan = Row("vllm-project/vllm#23278", "openai/gpt-oss-120b", "H100", "0.10.1").plan()
    assert plan.stages[0].kv / GIB == pytest.approx(-2.14, abs=0.1)
    assert not plan.fits
    assert "no memory for cache blocks" in plan.refusals[0]


def test_hybrid_of_linear_and_full_attention_to_the_token() -> None:
    # A public bench of Qwen3.6-35B-A3B, NVFP4, on an RTX 5090 with vLLM 0.24.0 and an fp8 cache:
    # 5.98 GiB, 567,978 tokens, 4.33x of 131,072.
    row = Row(
        "noonghunna/club-3090#612",
        "Qwen/Qwen3.6-35B-A3B",
        "RTX-5090",
        "0.24.0",
        fmt="nvfp4",
        length=131_072,
        seqs=1,
        batched=8192,
        kv_bytes=1.0,
    )
    plan = row.plan(MeasuredMemory(kv_gib=5.98))
    assert plan.tokens == 567_978
    assert plan.result.concurrency == pytest.approx(4.33, abs=0.005)
    assert plan.layout.block == 2096


def test_mla_block_count_of_the_release_that_padded_latents() -> None:
    # vllm-project/vllm#13109: DeepSeek-Coder-V2-Lite, 59.75 GiB are 116,023 blocks.
    row = Row("vllm-project/vllm#13109", "DeepSeek-Coder-V2-Lite-Instruct-AWQ", "H100", "V0 0.7.3", length=163_840)
    assert row.plan(MeasuredMemory(kv_gib=59.75)).tokens / 16 == pytest.approx(116_023, rel=0.001)


def test_cpu_backend_s_given_cache() -> None:
    # A public exposition of opt-125m on the CPU backend with 4 GiB for the cache: 116,496 tokens.
    row = Row("a public fixture", "facebook/opt-125m", "cpu-tiny", "V0 (Jun 2024)", length=2048)
    assert row.plan(MeasuredMemory(kv_gib=4.0)).tokens == pytest.approx(116_496, rel=0.0005)
