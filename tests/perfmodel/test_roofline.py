"""The performance model: real memory logs, the shape of the roofline, and errors that help."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.domain.errors import ConfigError
from exaserve.models import FORMATS, MODELS, model_from_name
from exaserve.perfmodel import HARDWARE, profile
from exaserve.perfmodel.work import work_of


@pytest.mark.parametrize("name", HARDWARE)
def test_every_accelerator_gives_a_valid_profile_or_says_why_not(name: str) -> None:
    profile(name, "Llama-3.2-1B").validate()


@pytest.mark.parametrize("name", MODELS)
def test_every_model_fits_somewhere(name: str) -> None:
    tp = 8 if MODELS[name].heads % 8 == 0 else 1
    prediction = profile("B300", name, tp=tp)
    prediction.validate()
    assert prediction.max_model_len == min(MODELS[name].context, prediction.kv_tokens_max)


@pytest.mark.parametrize("name", MODELS)
def test_model_rows_are_consistent(name: str) -> None:
    row = MODELS[name]
    assert row.active_b <= row.params_b
    assert row.heads % row.kv_heads == 0
    assert bool(row.experts) == (row.active_b < row.params_b)
    assert row.experts_per_token <= row.experts
    assert row.sliding_layers <= row.layers
    assert row.native in FORMATS


def test_kv_bytes_follow_the_published_identity() -> None:
    llama = model_from_name("Llama-3.1-8B")
    assert work_of(llama).kv_bytes == 2 * 32 * 8 * 128 * 2 == 131_072
    assert work_of(llama, kv_bytes=1.0).kv_bytes == 65_536
    # 4 heads over 8 ranks: replicated, so a rank's share stops shrinking at one head.
    assert work_of(model_from_name("Qwen3-235B-A22B"), tp=8).kv_bytes == 2 * 94 * 1 * 128 * 2 == 48_128
    # MLA: 576 values, no factor 2, the same on every rank.
    deepseek = model_from_name("DeepSeek-V3")
    assert work_of(deepseek).kv_bytes == work_of(deepseek, tp=8).kv_bytes == 576 * 61 * 2


def test_kv_capacity_is_near_what_engines_log() -> None:
    # A public log: Qwen3-235B-A22B in FP8 over 8 L40S holds 238,208 tokens.
    assert profile("L40S", "Qwen3-235B-A22B", "fp8", tp=8).kv_tokens_max == pytest.approx(238_208, rel=0.1)


def test_a_precision_or_split_changes_capacity_in_the_right_direction() -> None:
    plain = profile("H100", "Llama-3.1-8B", max_model_len=8192)
    assert profile("H100", "Llama-3.1-8B", "fp8", max_model_len=8192).kv_tokens_max > plain.kv_tokens_max
    assert profile("H100", "Llama-3.1-8B", tp=2, max_model_len=8192).kv_tokens_max > 2 * plain.kv_tokens_max
    narrow = profile("H100", "Llama-3.1-8B", kv_precision="fp8", max_model_len=8192)
    assert narrow.kv_tokens_max == pytest.approx(2 * plain.kv_tokens_max, rel=0.001)
    assert profile("A100-40", "Llama-3.1-8B", max_model_len=8192).kv_tokens_max < plain.kv_tokens_max


def test_the_two_ends_of_the_roofline() -> None:
    p = profile("H100", "Llama-3.1-8B")
    # Decode at batch 1 reads the weights once: 16 GB at most of 3.35 TB/s.
    assert 0.0048 < p.step_s(0, 1, 100) < 0.010
    # Decode is bound by memory, so 8 sequences take little longer than one.
    assert p.step_s(0, 8, 800) < 1.1 * p.step_s(0, 1, 100)
    # Prefill is bound by compute: twice the tokens, nearly twice the time.
    assert p.step_s(8000, 0, 0) == pytest.approx(2 * p.step_s(4000, 0, 0), rel=0.1)
    assert 15_000 < p.prefill_tokens_per_s < 62_000
    # A prompt that rides along with decode costs less than the two one after the other.
    assert p.step_s(64, 8, 800) < 0.8 * (p.step_s(64, 0, 0) + p.step_s(0, 8, 800))


def test_tensor_parallel_is_faster_but_not_free() -> None:
    one, four = profile("H100", "Llama-3.1-8B"), profile("H100", "Llama-3.1-8B", tp=4)
    assert 1.5 < one.step_s(0, 1, 0) / four.step_s(0, 1, 0) < 4
    assert 1.5 < four.prefill_tokens_per_s / one.prefill_tokens_per_s < 4
    # The link matters: the same split over PCIe wins less.
    assert profile("L40S", "Llama-3.1-8B", tp=4).overhead_s > four.overhead_s


def test_pipeline_raises_throughput_not_latency() -> None:
    one, two = profile("H100", "Llama-3.1-8B"), profile("H100", "Llama-3.1-8B", pp=2)
    assert two.step_s(0, 1, 0) >= one.step_s(0, 1, 0)
    assert 1.3 < two.prefill_tokens_per_s / one.prefill_tokens_per_s < 2


def test_a_mixture_of_experts_reads_more_weights_for_more_sequences() -> None:
    p = profile("H100", "Mixtral-8x7B", tp=2)
    assert p.step_s(0, 16, 0) > 2 * p.step_s(0, 1, 0)
    dense = profile("H100", "Llama-3.1-8B")
    assert dense.step_s(0, 16, 0) < 1.2 * dense.step_s(0, 1, 0)


@given(
    prefill=st.integers(0, 8192),
    seqs=st.integers(0, 256),
    kv=st.integers(0, 400_000),
    more=st.integers(1, 4096),
)
def test_more_work_never_takes_less_time(prefill: int, seqs: int, kv: int, more: int) -> None:
    for name in ("Llama-3.1-8B", "gpt-oss-20b"):
        p = profile("H100", name, max_model_len=8192)
        base = p.step_s(prefill, seqs, kv)
        assert base > 0
        assert p.step_s(prefill + more, seqs, kv) >= base
        assert p.step_s(prefill, seqs + more, kv) >= base
        assert p.step_s(prefill, seqs, kv + more) >= base
        assert p.step_s(prefill, seqs, kv, float(more)) >= base


def test_prefill_of_a_long_prompt_pays_for_attention() -> None:
    p = profile("A100-80", "Llama-3.1-8B")
    assert p.prefill_s(12_842) > 12_842 / 4_218 * p.prefill_s(4_218)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"hardware": "H10O"}, "Did you mean H100"),
        ({"model": "Llama-3.1-9B"}, "Did you mean Llama-3.1-8B"),
        ({"precision": "fp9"}, "Did you mean fp8"),
        ({"kv_precision": "int3"}, "Unknown kv_precision"),
        ({"model": "Llama-3.1-70B"}, "does not fit on 1 x H100"),
        ({"tp": 3}, "does not divide"),
        ({"tp": 0}, "at least 1"),
        ({"pp": 99}, "exceeds"),
        ({"utilization": 1.5}, "utilisation"),
        ({"max_model_len": 10_000_000}, "outside what the KV cache holds"),
        ({"max_num_seqs": 9000}, "token budget"),
    ],
)
def test_errors_name_the_way_out(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        profile(**({"hardware": "H100", "model": "Llama-3.1-8B"} | arguments))  # type: ignore[arg-type]


def test_a_profile_is_a_value() -> None:
    p = profile("L4", "Llama-3.2-3B")
    assert dataclasses.replace(p, max_num_seqs=8) != p
    assert profile("L4", "Llama-3.2-3B") == p
