from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from exaserve.domain.replica import ReplicaId
from exaserve.health import AnomalyGuard

NAMES = [ReplicaId(f"r{index}") for index in range(12)]


def scores(odd: float) -> dict[ReplicaId, float]:
    """Twelve replicas around 10; the first has ``odd``."""
    return {name: odd if index == 0 else 10.0 + 0.1 * (index % 3) for index, name in enumerate(NAMES)}


def test_three_rounds_far_below_the_mean_are_suspect_for_a_while():
    guard = AnomalyGuard(hold_s=30.0)
    assert guard.observe([scores(1.0)], 0.0) == set()
    assert guard.observe([scores(1.0)], 0.2) == set()
    assert guard.observe([scores(1.0)], 0.4) == {NAMES[0]}
    assert guard.observe([scores(10.0)], 10.0) == {NAMES[0]}
    assert guard.observe([scores(10.0)], 30.5) == set()


def test_interrupted_rounds_are_not_consecutive():
    guard = AnomalyGuard()
    for now in range(20):
        assert guard.observe([scores(10.0 if now % 3 == 2 else 1.0)], float(now)) == set()


def test_high_scores_and_small_groups_are_never_suspect():
    guard = AnomalyGuard()
    few = {name: 0.0 if index == 0 else 100.0 for index, name in enumerate(NAMES[:5])}
    for now in range(10):
        assert guard.observe([scores(100.0)], float(now)) == set()
        assert guard.observe([few], float(now)) == set()


def test_those_with_less_to_do_than_their_peers_are_expected_to_score_low():
    guard = AnomalyGuard()
    for now in range(5):
        assert guard.observe([scores(1.0)], float(now), idle={NAMES[0]}) == set()


def test_only_equals_are_compared():
    guard = AnomalyGuard()
    small = {ReplicaId(f"small{index}"): 1.0 for index in range(6)}
    for now in range(5):
        assert guard.observe([scores(10.0), small], float(now)) == set()


def test_forgotten_is_trusted():
    guard = AnomalyGuard()
    for now in range(3):
        guard.observe([scores(1.0)], float(now))
    guard.forget(NAMES[0])
    assert guard.observe([scores(10.0)], 4.0) == set()


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats(allow_nan=True, allow_infinity=True)), max_size=20))
def test_any_scores(rounds):
    guard = AnomalyGuard()
    for now, one in enumerate(rounds):
        suspects = guard.observe([one], float(now))
        assert len(suspects) < max(1, len(NAMES))


@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=12))
def test_at_most_a_fifth_can_be_suspect_in_one_round(values):
    """Chebyshev: at most 1/k² of the values are k deviations off; with one side only, 1/(1+k²) = 1/5."""
    guard = AnomalyGuard(reports_min=1)
    found = guard.observe([dict(zip(NAMES, values, strict=False))], 0.0)
    assert len(found) <= math.ceil(len(values) / 5)
