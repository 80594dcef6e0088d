"""Fits find the constants that made the data, with honest errors, and refuse what the data do not carry."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import yaml

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Calibration, EngineProfile, calibration_document, parse_calibration, profile
from exaserve.perfmodel.fitting import (
    DecodePoint,
    Estimate,
    FitRefusal,
    PrefillPoint,
    ProbePoint,
    fit_decode,
    fit_kv,
    fit_prefill,
    fit_weights,
)
from exaserve.perfmodel.shrinkage import Prior

A, B, C = 1e-4, 4e-9, 0.004
FIXED, SEQ, KV = 0.011, 1e-4, 8e-8


def prefill(lengths, noise=0.01, repeats=5, seed=1):
    rng = random.Random(seed)
    return [
        PrefillPoint(t, (C + A * t + B / 2 * t * t) * (1.0 + rng.gauss(0.0, noise)))
        for t in lengths
        for _ in range(repeats)
    ]


def decode(batches, contexts, noise=0.005, seed=1):
    rng = random.Random(seed)
    return [
        DecodePoint(n, n * c, (FIXED + SEQ * n + KV * n * c) * (1.0 + rng.gauss(0.0, noise)), 64, n * c * 1.0 + n * 8)
        for n in batches
        for c in contexts
    ]


def near(estimate: Estimate, truth: float) -> bool:
    return abs(estimate.value - truth) <= 4.0 * estimate.error + 1e-12


def test_prefill_is_found_with_its_quadratic_part():
    fit = fit_prefill(prefill((128, 512, 2048, 8192)))
    assert not fit.refused
    assert near(fit.estimates["prefill_s_per_token"], A)
    assert fit.estimates["prefill_s_per_token"].value == pytest.approx(A, rel=0.03)
    assert near(fit.estimates["prefill_per_pair_s"], B)
    assert near(fit.estimates["first_token_s"], C)


def test_one_late_run_does_not_move_the_fit():
    points = prefill((128, 512, 2048, 8192), noise=0.002)
    points[3] = PrefillPoint(points[3].tokens, points[3].ttft_s * 4)
    assert fit_prefill(points).estimates["prefill_s_per_token"].value == pytest.approx(A, rel=0.03)


def test_prompts_that_only_read_the_weights_say_nothing_of_the_rate():
    points = [PrefillPoint(t, max(0.05, A * t)) for t in (128, 256, 1024, 2048, 8192) for _ in range(4)]
    found = fit_prefill(points, floor_s=0.05).estimates["prefill_s_per_token"]
    assert found.value == pytest.approx(A, rel=0.02)


@pytest.mark.parametrize(("lengths", "count"), [((512,), 1), ((512, 600, 700), 3), ((128, 2048), 2)])
def test_too_few_lengths_are_refused_with_what_is_missing(lengths, count):
    fit = fit_prefill(prefill(lengths))
    assert not fit.estimates
    assert fit.refused[0].what == "prefill rate"
    assert "three lengths" in fit.refused[0].missing


def test_a_quadratic_part_that_cannot_be_seen_is_refused_and_the_rate_is_not():
    fit = fit_prefill(prefill((16, 32, 64, 128), noise=0.02))
    assert [r.what for r in fit.refused] == ["quadratic part of prefill"]
    assert "128" in fit.refused[0].missing
    assert "prefill_per_pair_s" not in fit.estimates
    assert fit.estimates["prefill_s_per_token"].value == pytest.approx(A, rel=0.1)


def test_noise_that_hides_the_rate_is_refused():
    fit = fit_prefill(prefill((128, 256, 512), noise=1.5, repeats=2))
    assert "prefill_s_per_token" not in fit.estimates
    assert fit.refused


def test_decode_is_found():
    fit = fit_decode(decode((1, 4, 16, 64), (128, 2048, 8192)))
    assert not fit.refused
    for name, truth in (("decode_fixed_s", FIXED), ("decode_per_seq_s", SEQ), ("decode_per_kv_token_s", KV)):
        assert near(fit.estimates[name], truth), name
        assert fit.estimates[name].value == pytest.approx(truth, rel=0.15)
    assert fit.residual_share < 0.02


def test_errors_are_honest():
    """The truth lies within two standard errors in most of many fits, and not in all of them."""
    inside = 0
    for seed in range(60):
        found = fit_decode(decode((1, 4, 16, 64), (128, 2048, 8192), noise=0.01, seed=seed)).estimates
        inside += abs(found["decode_fixed_s"].value - FIXED) <= 2.0 * found["decode_fixed_s"].error
    assert 40 <= inside <= 60


@pytest.mark.parametrize(
    ("batches", "contexts", "refused"),
    [
        ((4,), (128, 2048), "decode_per_seq_s"),
        ((1, 16), (512,), "decode_per_kv_token_s"),
        ((), (), "decode_fixed_s"),
    ],
)
def test_what_the_batches_do_not_vary_is_refused(batches, contexts, refused):
    fit = fit_decode(decode(batches, contexts))
    assert refused in [r.what for r in fit.refused]
    assert refused not in fit.estimates
    assert all(r.missing for r in fit.refused)


def test_cache_tokens_per_token():
    assert fit_kv(decode((1, 4, 16), (128, 2048))).estimates["kv_tokens_per_token"].value == pytest.approx(1.0)
    unknown = [DecodePoint(1, 100.0, 0.01, 64)] * 4
    assert fit_kv(unknown).refused


def test_weights_are_found_and_the_unmeasured_refused():
    rng = random.Random(3)
    points = []
    for _ in range(40):
        gb, age, net = rng.uniform(0, 20), rng.uniform(0, 10), rng.uniform(0, 500)
        points.append(ProbePoint(0.3 * gb + 0.5 * age + 0.002 * net + rng.gauss(0, 0.1), gb, age, net))
    fit = fit_weights(points)
    assert not fit.refused
    for name, truth in (("kv_gb", 0.3), ("kv_age_s", 0.5), ("net_mb", 0.002)):
        assert near(fit.estimates[name], truth)
    blind = [ProbePoint(p.delay_s - 0.002 * p.net_mb_s, p.kv_gb, p.kv_age_s) for p in points]
    fit = fit_weights(blind)
    assert set(fit.estimates) == {"kv_gb", "kv_age_s"}
    assert [r.what for r in fit.refused] == ["weight net_mb"]
    assert {r.what for r in fit_weights([]).refused} == {"weight kv_gb", "weight kv_age_s", "weight net_mb"}


def test_a_weight_that_means_nothing_is_refused():
    rng = random.Random(4)
    points = [ProbePoint(0.3 * gb + rng.gauss(0, 0.05), gb, rng.uniform(0, 5)) for gb in range(30)]
    fit = fit_weights(points)
    assert set(fit.estimates) == {"kv_gb"}
    assert "cannot be told from 0" in next(r.why for r in fit.refused if r.what == "weight kv_age_s")


def calibration() -> Calibration:
    constants = {
        "prefill_tokens_per_s": Estimate(10_000.0, 100.0),
        "prefill_per_pair_s": Estimate(4e-9, 1e-10),
        "first_token_s": Estimate(0.004, 0.0005),
        "decode_fixed_s": Estimate(0.011, 1e-4),
        "decode_per_seq_s": Estimate(1e-4, 1e-6),
        "kv_bytes_per_token": Estimate(131_072.0, 0.0),
    }
    limits = {"kv_tokens_max": 450_000, "max_model_len": 16_384, "block_size": 32}
    refused = (FitRefusal("decode_per_kv_token_s", "why", "missing"),)
    return Calibration("m", "vllm", "2026-01-01", constants, {"kv_gb": Estimate(0.1, 0.01)}, limits, refused)


def test_a_profile_survives_its_file():
    one = calibration()
    assert parse_calibration(yaml.safe_load(yaml.safe_dump(calibration_document(one, {"x": 1})))) == one


def test_a_file_of_the_first_version_is_read():
    old = calibration_document(calibration()) | {"version": 1}
    assert parse_calibration(old) == calibration()


def test_points_of_the_evidence_are_read_back():
    evidence = {
        "lone_prompts": [{"tokens": 128, "ttft_s": 0.02, "runs": 5}],
        "batches": [
            {"sequences": 4, "kv_tokens": 640, "step_s": 0.012, "steps": 64, "unsteady": 0.01, "kv_used": None}
        ],
    }
    found = parse_calibration(calibration_document(calibration(), evidence))
    assert found.prefill == (PrefillPoint(128, 0.02),)
    assert (found.decode[0].sequences, found.decode[0].step_s, found.decode[0].unsteady) == (4, 0.012, 0.01)
    for damaged in ({"batches": [{"sequences": 4}]}, {"lone_prompts": [{"tokens": 0, "ttft_s": 1}]}, {"batches": 3}):
        with pytest.raises(ConfigError, match="evidence"):
            parse_calibration(calibration_document(calibration(), damaged))


def test_a_profile_becomes_an_engine():
    made = calibration().engine_profile()
    assert (made.prefill_tokens_per_s, made.decode_fixed_s) == (10_000.0, 0.011)
    assert (made.overhead_s, made.prompt_s, made.first_s) == (0.0, 0.0, 0.004)
    assert (made.kv_tokens_max, made.max_model_len, made.block_size) == (450_000, 16_384, 32)
    assert made.decode_per_kv_token_s == 0.0
    assert calibration().decode_step_s == pytest.approx(0.0111)
    with pytest.raises(ConfigError, match="prefill_tokens_per_s"):
        Calibration().engine_profile()


def test_points_move_the_whole_prediction_and_constants_alone_replace_theirs():
    predicted = EngineProfile(
        40_000.0, 0.009, 1e-5, 5e-8, 500_000, 131_072.0, overhead_s=0.003, overlap=0.8, first_s=0.02, prompt_s=0.005
    )
    alone = calibration().engine_profile(Prior(predicted))
    assert alone.decode_per_kv_token_s == predicted.decode_per_kv_token_s, "refused, so as predicted"
    assert (alone.decode_fixed_s, alone.overlap) == (0.011, 0.0)
    assert alone.overhead_s == pytest.approx(0.011 / 3.0)
    assert alone.first_s + alone.prompt_s + alone.overhead_s == pytest.approx(0.004)
    points = [DecodePoint(n, 200.0 * n, 1.3 * predicted.step_s(0.0, n, 200.0 * n), 64) for n in (1, 4, 16)]
    moved = dataclasses.replace(calibration(), decode=tuple(points)).engine_profile(Prior(predicted))
    assert moved.step_s(0.0, 64, 12_800) == pytest.approx(1.3 * predicted.step_s(0.0, 64, 12_800), rel=0.08)
    assert (moved.kv_tokens_max, moved.kv_bytes_per_token) == (450_000, 131_072.0)


def test_a_combined_profile_is_its_own_whatever_is_predicted():
    truth = EngineProfile(
        30_000.0, 0.009, 1e-5, 5e-8, 400_000, 1.0, overhead_s=0.003, overlap=0.8, first_s=0.02, expert_s=0.01,
        expert_share=0.05,
    )  # fmt: skip
    names = ["prefill_tokens_per_s", "decode_fixed_s", "decode_per_seq_s", "decode_per_kv_token_s", "overhead_s"]
    names += ["overlap", "first_s", "prompt_s", "expert_s", "expert_share", "prefill_per_pair_s"]
    file = Calibration(constants={name: Estimate(getattr(truth, name), 0.0) for name in names})
    file = parse_calibration(calibration_document(file))
    for found in (file.engine_profile(), file.engine_profile(Prior(profile("H100", "Llama-3.1-8B")))):
        assert found.step_s(512, 8, 9_000) == pytest.approx(truth.step_s(512, 8, 9_000))
        assert found.first_token_s(3_000) == pytest.approx(truth.first_token_s(3_000))
    assert file.decode_step_s == pytest.approx(truth.step_s(0.0, 1.0, 0.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "x"}, "is no profile"),
        ({"version": 9}, "version"),
        ({"constants": {"speed": 1}}, "constants.speed: unknown"),
        ({"constants": {"decode_fixed_s": {"value": -1}}}, "0 or more"),
        ({"constants": {"decode_fixed_s": {"value": math.nan}}}, "finite"),
        ({"constants": {"decode_fixed_s": {"error": 1}}}, "needs a number"),
        ({"limits": {"kv_tokens_max": "many"}}, "limits.kv_tokens_max"),
        ({"weights": [1]}, "must be a mapping"),
    ],
)
def test_wrong_profiles_say_what_is_wrong(change, message):
    with pytest.raises(ConfigError, match=message):
        parse_calibration({**calibration_document(calibration()), **change})
