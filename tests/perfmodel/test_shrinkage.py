"""A few points move a whole prediction as far as they and it deserve, and many outweigh it."""

from __future__ import annotations

import dataclasses
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from exaserve.models import model_from_name
from exaserve.perfmodel import EngineProfile, find_hardware, profile
from exaserve.perfmodel.calibration import CONSTANTS, LIMITS
from exaserve.perfmodel.fitting import DecodePoint, PrefillPoint, fit_decode
from exaserve.perfmodel.shrinkage import TERMS, Posterior, Prior, posterior, prior_of, scaled

CASES = (("H100", "Llama-3.1-8B", 1), ("H200", "Qwen3-235B-A22B", 8))


def prior(hardware: str = "H100", model: str = "Llama-3.1-8B", tp: int = 1, spread: float = 0.15) -> Prior:
    return Prior(profile(hardware, model, tp=tp), spread, 0.3)


def batches(p: EngineProfile, sizes, contexts=(1000,), noise=0.0, seed=1) -> list[DecodePoint]:
    rng = random.Random(seed)
    return [
        DecodePoint(n, n * c, p.step_s(0.0, n, n * c) * (1.0 + rng.gauss(0.0, noise)), 64)
        for n in sizes
        for c in contexts
    ]


def at(p: EngineProfile, sequences: int = 64, context: float = 1000.0) -> float:
    return p.step_s(0.0, sequences, sequences * context)


@pytest.mark.parametrize(("hardware", "model", "tp"), CASES)
@pytest.mark.parametrize("factor", [0.75, 1.3])
def test_small_batches_move_what_is_predicted_of_a_large_one(hardware, model, tp, factor):
    known = prior(hardware, model, tp)
    truth = known.profile.slower(factor)
    both = posterior(known, [], batches(truth, (1, 4, 16)))
    assert abs(at(both.profile) / at(truth) - 1.0) < 0.25 * abs(1.0 / factor - 1.0)
    assert both.after < 0.1 * both.before
    # What no point speaks of moves hardly: the first token's own costs.
    assert both.profile.first_s == pytest.approx(known.profile.first_s, rel=0.1)


def test_every_time_of_a_profile_has_a_factor():
    """A field that is added to the profile is a term, a limit, or said here."""
    fields = {each.name for each in dataclasses.fields(EngineProfile)}
    others = {"prefill_tokens_per_s", "decode_fixed_s", "kv_bytes_per_token", "expert_share", "load_s"}
    assert fields - others - set(LIMITS) == set(TERMS) - {"weights", "computing"}
    assert fields - set(LIMITS) - {"load_s"} <= set(CONSTANTS), "so a combined profile's file has it"


def test_the_less_a_prediction_is_believed_the_further_it_moves():
    truth = prior().profile.slower(1.4)
    points = batches(truth, (1,))
    moved = [at(posterior(prior(spread=s), [], points).profile) for s in (0.02, 0.1, 0.5)]
    assert at(prior().profile) < moved[0] < moved[1] < moved[2] < 1.02 * at(truth)


def test_without_points_it_stays_the_prediction_with_its_whole_error():
    both = posterior(prior(), [], [])
    assert both.profile == prior().profile
    assert both.points == 0
    # The terms' own spreads add to that of all of them.
    assert 0.14 < both.error(at) / at(both.profile) < 0.4


def test_many_points_end_at_the_plain_fit():
    truth = EngineProfile(30_000.0, 0.015, 2e-4, 9e-8, 500_000, 1.0)
    points = batches(truth, (1, 4, 16, 64, 128), (128, 2048, 8192), noise=0.005)
    plain = {name: each.value for name, each in fit_decode(points).estimates.items()}
    both = posterior(prior(), [], points)
    for sequences in (1, 8, 32, 96):
        for context in (256, 4096):
            fitted = plain["decode_fixed_s"] + sequences * (
                plain["decode_per_seq_s"] + context * plain["decode_per_kv_token_s"]
            )
            assert both.profile.step_s(0.0, sequences, sequences * context) == pytest.approx(fitted, rel=0.02)


def test_lone_prompts_move_the_prefill_rate_and_the_floor():
    known = prior()
    truth = known.profile.slower(1.3)
    both = posterior(known, [PrefillPoint(t, truth.first_token_s(t)) for t in (128, 2048)] * 3, [])
    assert both.points == 2, "repeats of one length are one point"
    for tokens in (512, 4096):
        assert both.profile.first_token_s(tokens) == pytest.approx(truth.first_token_s(tokens), rel=0.05)


def test_errors_shrink_with_points_and_cover_the_truth():
    """The truth is drawn from the prior; it lies within two standard errors in most of many cases."""
    known, inside, narrower = prior(), 0, 0
    start = posterior(known, [], [])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        spreads = np.sqrt(np.diag(start.covariance))
        truth = _drawn(start, rng.normal(0.0, 1.0, len(spreads)) * spreads)
        both = posterior(known, [], batches(truth, (1, 4, 16), noise=0.01, seed=seed))
        error = both.error(at)
        inside += abs(at(both.profile) - at(truth)) <= 2.0 * error
        narrower += error / at(both.profile) < start.error(at) / at(known.profile)
    assert inside >= 34
    assert narrower == 40


def _drawn(start: Posterior, factors) -> EngineProfile:
    return scaled(start.prior.profile, start.names, factors)


def test_one_point_that_is_far_off_does_not_lead():
    truth = prior().profile.slower(1.2)
    points = batches(truth, (1, 2, 4, 8, 16, 32), (512, 4096))
    points[5] = replace(points[5], step_s=points[5].step_s * 3.0)
    assert at(posterior(prior(), [], points).profile) == pytest.approx(at(truth), rel=0.05)


def test_the_belief_is_that_of_measurements_of_the_like():
    card, arch = find_hardware("H100"), model_from_name("Llama-3.1-8B")
    found = prior_of(profile("H100", "Llama-3.1-8B"), card, arch, 1)
    assert found.rows >= found.groups >= 4
    assert found.like.startswith("H100")
    assert 0.02 < found.step_spread < 0.5
    assert math.isfinite(found.first_spread)
    mixture = prior_of(profile("H100", "gpt-oss-120b"), card, model_from_name("gpt-oss-120b"), 1)
    assert "mixture" in mixture.like
