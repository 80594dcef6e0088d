"""Points that a known replica would give: the profile made of them is that replica, with a prediction and without."""

from __future__ import annotations

import pytest
import yaml

from exaserve.calibrate import Measurements, combine, evidence, fit_profile, median_error, predict
from exaserve.models import model_from_name
from exaserve.perfmodel import EngineProfile, calibration_document, find_hardware, parse_calibration, profile
from exaserve.perfmodel.fitting import DecodePoint, PrefillPoint
from exaserve.perfmodel.shrinkage import prior_of

LENGTHS = (64, 128, 1024, 2048, 4096, 8192)


def measured(replica: EngineProfile, lengths=LENGTHS, batches=(1, 4, 16, 64), contexts=(128, 2048)) -> Measurements:
    return Measurements(
        [PrefillPoint(n, replica.first_token_s(n)) for n in lengths for _ in range(2)],
        [DecodePoint(n, n * c, replica.step_s(0.0, n, n * c), 64) for n in batches for c in contexts],
        limits={"kv_tokens_max": 400_000, "max_model_len": 32_768},
        model="Llama-3.1-8B",
        kv_bytes_per_token=131_072.0,
    )


@pytest.mark.parametrize("overlap", [0.0, 0.8])
def test_step_times_come_back(overlap: float) -> None:
    truth = EngineProfile(
        20_000.0, 0.012, 1e-4, 6e-8, 400_000, 131_072.0, prefill_per_pair_s=4e-9, overhead_s=0.004, prompt_s=0.003,
        first_s=0.01, overlap=overlap,
    )  # fmt: skip
    found, _ = fit_profile(measured(truth), "2026-01-01", with_weights=False)
    made = found.engine_profile()
    for sequences, context in ((1, 500), (8, 1000), (48, 4000)):
        expected = truth.step_s(0.0, sequences, sequences * context)
        assert made.step_s(0.0, sequences, sequences * context) == pytest.approx(expected, rel=0.01)
    for tokens in (64, 512, 3000, 8000):
        assert made.first_token_s(tokens) == pytest.approx(truth.first_token_s(tokens), rel=0.06 if overlap else 0.02)
    # A step of prompts beside others: what is not hidden is known from short prompts, launches are not.
    for tokens in (2048, 4096):
        assert made.step_s(tokens, 16, 16_000) == pytest.approx(truth.step_s(tokens, 16, 16_000), rel=0.07)
    assert median_error(predict(found, measured(truth))) < 0.01


def test_a_few_points_and_a_prediction_predict_what_was_not_measured() -> None:
    predicted = profile("H100", "Llama-3.1-8B")
    truth = EngineProfile(
        predicted.prefill_tokens_per_s / 1.3, 1.3 * predicted.decode_fixed_s, 1.3 * predicted.decode_per_seq_s,
        1.3 * predicted.decode_per_kv_token_s, 400_000, 131_072.0,
        overhead_s=1.3 * predicted.overhead_s, overlap=predicted.overlap, first_s=predicted.first_s,
    )  # fmt: skip
    few = measured(truth, (128, 1024), (1, 4, 16), (512,))
    alone, fits = fit_profile(few, "2026-01-01", with_weights=False)
    assert {"prefill rate", "decode_per_kv_token_s"} <= {each.what for each in alone.refused}
    prior = prior_of(predicted, find_hardware("H100"), model_from_name("Llama-3.1-8B"), 1)
    found, both = combine(alone, prior)
    assert {each.what for each in found.refused} <= {"kv_tokens_per_token"} | {
        f"weight {n}" for n in ("kv_gb", "kv_age_s", "net_mb")
    }
    assert all(each.error >= 0.0 for each in found.constants.values())
    assert found.constants["decode_fixed_s"].error > 0.0
    made = found.engine_profile()
    off, before = (p.step_s(0.0, 64, 64_000) / truth.step_s(0.0, 64, 64_000) - 1.0 for p in (made, predicted))
    assert abs(off) < 0.3 * abs(before)
    assert made.max_model_len == 32_768
    document = yaml.safe_load(yaml.safe_dump(calibration_document(found, evidence(few, fits, both))))
    rests_on = document["evidence"]["prediction"]
    assert rests_on["points"] == 5
    assert rests_on["residual_after"] < rests_on["residual_before"]
    assert rests_on["terms"]["decode_fixed_s"] == pytest.approx(predicted.decode_fixed_s)
    assert parse_calibration(document).engine_profile() == made
    assert median_error(predict(found, few)) < 0.03
