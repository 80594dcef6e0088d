"""What first tokens teach of prefill: near the truth where lengths are mixed, not far from it where they are not."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, facts, rid

from exaserve.domain.request import Outcome
from exaserve.scheduling import Placement
from exaserve.scheduling.learning import PrefillModel, Speed

A, B = 1 / 33_870, 1 / 33_870 / 40_000
"""An 8B model on an H100: seconds per token and per pair of tokens."""


def true_s(tokens: int) -> float:
    return tokens * (A + B * tokens)


def test_prefill_time_grows_faster_than_length_where_attention_says_so() -> None:
    model = PrefillModel(8000.0, 0.25, 10.0, 1000.0)
    rng = Random(3)
    for _ in range(300):
        tokens = rng.choice([327, 4218, 12_842])
        model.observe(tokens, (1e-4 * tokens + 5e-9 * tokens * tokens) * rng.uniform(0.9, 1.1))
    for tokens in (327, 4218, 12_842):
        assert model.seconds(tokens) == pytest.approx(1e-4 * tokens + 5e-9 * tokens * tokens, rel=0.06)


@given(st.lists(st.tuples(st.integers(1, 200_000), st.floats(0.0, 100.0)), max_size=50))
def test_a_fitted_model_never_predicts_nonsense(observations: list[tuple[int, float]]) -> None:
    model = PrefillModel(8000.0, 0.25, 10.0, 1000.0)
    speed = Speed(model, 0.25, 10.0)
    for tokens, took in observations:
        speed.observe(tokens, took)
    times = [model.seconds(t) * speed.factor for t in (1, 100, 10_000, 1_000_000)]
    assert all(0 < a <= b < math.inf for a, b in pairwise(times))


@given(
    length=st.integers(1, 16_000),
    spread=st.floats(0.0, 0.2),
    overhead_s=st.floats(0.0, 0.02),
    noise=st.floats(0.0, 0.5),
    seed=st.integers(0, 100),
    count=st.integers(20, 600),
)
def test_a_mix_of_one_length_predicts_no_nonsense_of_others(
    length: int, spread: float, overhead_s: float, noise: float, seed: int, count: int
) -> None:
    """A step has its own time, short prompts take as long as 256 tokens (it reads the weights all the same): that and
    chance are in every observation, and prompts that are all about equally long show them as if they were time per
    token, or per pair of tokens."""
    rng = Random(seed)
    model = PrefillModel(8000.0, 0.25, 10.0, 1000.0)
    for _ in range(count):
        tokens = max(int(length * rng.uniform(1 - spread, 1 + spread)), 1)
        model.observe(tokens, (true_s(max(tokens, 256)) + overhead_s) * rng.uniform(1 - noise, 1 + noise))
    for tokens in (327, 4218, 12_842, 60_000):
        assert true_s(tokens) / 6 <= model.seconds(tokens) <= 6 * max(true_s(tokens), tokens / 8000.0), tokens
    assert 1 / model.a < 10 / A


@given(st.lists(st.integers(1, 2000), min_size=8, max_size=200), st.randoms(use_true_random=False))
def test_short_prompts_teach_no_quadratic_term(lengths: list[int], rng: Random) -> None:
    model = PrefillModel(8000.0, 0.25, 10.0, 1000.0)
    for tokens in lengths:
        model.observe(tokens, rng.expovariate(1 / (0.001 + true_s(tokens))))
    model.fit()
    assert model.b == 0


def test_a_calibrated_rate_is_only_left_within_its_span() -> None:
    for took_s, bound in ((100.0, 10.0), (1e-9, 0.1)):
        model = PrefillModel(10_000.0, 0.25, 10.0, 10.0)
        for _ in range(400):
            model.observe(1000, took_s)
        assert model.a == pytest.approx(bound / 10_000.0)
        alone = Speed(PrefillModel(10_000.0, 0.25, 10.0, 10.0), 0.25, 10.0)
        for _ in range(400):
            alone.observe(1000, took_s)
        assert 0.1 <= alone.factor <= 10.0


def test_what_was_slow_while_the_model_was_learned_is_not_thought_slow_for_ever() -> None:
    """Both are equally fast, and slower than assumed; one has shown it before the other taught the model."""
    model = PrefillModel(8000.0, 0.25, 10.0, 1000.0)
    early, late = Speed(model, 0.25, 10.0), Speed(model, 0.25, 10.0)
    for speed in (early, late):
        for _ in range(8 if speed is early else 80):
            speed.observe(1000, 1.0)
    assert early.factor == pytest.approx(late.factor, rel=0.1)


@pytest.mark.parametrize("took_s", [0.002, 0.03, 0.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("prompt", [20, 300, 4000])
def test_one_request_at_a_time_goes_to_all(build: Build, took_s: float, seed: int, prompt: int) -> None:
    """However long it takes, and although each replica's first answer is slower than the others."""
    scheduler = build(3, seed=seed)
    rng = Random(seed)
    now, chosen = 0.0, []
    for _ in range(120):
        now += 1.0
        placement = scheduler.place(facts(prompt), now)
        assert isinstance(placement, Placement)
        warm = placement.replica_id in chosen
        chosen.append(placement.replica_id)
        now += took_s * rng.uniform(0.8, 1.2) * (1.0 if warm else 4.0)
        scheduler.tick(now)
        scheduler.first_token(placement, now)
        scheduler.release(placement, now + 0.1, Outcome.COMPLETED)
    assert min(chosen.count(rid(k)) for k in range(3)) >= 20, chosen
