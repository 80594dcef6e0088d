from __future__ import annotations

import random

import numpy as np
import pytest

from exaserve.bench import Record, Summary, summarise
from exaserve.bench.compare import block_bootstrap, compare_runs
from exaserve.bench.knee import KneeSearch, judge_step


def samples(seed: int, factor: float, count: int = 800, sticky: float = 0.0) -> dict[str, dict[str, list[float]]]:
    rng = random.Random(seed)
    ttft, state = [], 0.0
    for _ in range(count):
        state = sticky * state + rng.gauss(0.0, (1.0 - sticky**2) ** 0.5)
        ttft.append(factor * 0.1 * float(np.exp(0.3 * state)))
    at = [i * 0.01 for i in range(count)]
    return {"A": {"at_s": at, "ttft_s": ttft, "latency_s": [t + 1.0 for t in ttft]}}


def test_a_true_difference_is_certain_and_has_its_sign():
    found = {d.metric: d for d in compare_runs(samples(1, 1.0), samples(2, 0.8))}
    assert found["p50_ttft"].certain
    assert found["p50_ttft"].high < 0.0
    assert found["p50_ttft"].change == pytest.approx(-0.2, abs=0.05)
    assert found["p50_ttft"].low <= found["p50_ttft"].second - found["p50_ttft"].first <= found["p50_ttft"].high


def test_equal_runs_rarely_differ():
    """95 % intervals are wrong about once in twenty; here in 12 pairs."""
    wrong = sum(
        d.certain
        for seed in range(12)
        for d in compare_runs(samples(seed, 1.0, 200), samples(seed + 100, 1.0, 200))
        if d.metric == "mean_ttft"
    )
    assert wrong <= 3


def test_blocks_widen_the_interval_where_neighbours_are_alike():
    values = np.array(samples(1, 1.0, 2_000, sticky=0.95)["A"]["ttft_s"])

    def mean(v):
        return v.mean(axis=-1)

    drawn = block_bootstrap(values, mean, np.random.default_rng(1), 500)
    alone = block_bootstrap(np.random.default_rng(2).permutation(values), mean, np.random.default_rng(1), 500)
    assert drawn.std() > 2.0 * alone.std()


def test_too_few_answers_give_no_interval():
    (first, *_) = compare_runs(samples(1, 1.0, 6), samples(2, 1.0, 6))
    assert np.isnan(first.low)
    assert not first.certain
    assert first.as_dict()["low_s"] is None


def test_only_common_scenarios_are_compared():
    assert compare_runs(samples(1, 1.0), {"B": samples(1, 1.0)["A"]}) == []


@pytest.mark.parametrize("knee", [3.0, 12.0, 95.0, 1_000.0])
def test_the_search_closes_in_on_the_knee(knee):
    search = KneeSearch(4.0)
    tried = []
    for rate in search.rates():
        tried.append(rate)
        search.tell(rate, held=rate <= knee)
    assert len(tried) <= search.steps_max
    assert search.held_per_s <= knee < search.broke_per_s
    assert search.broke_per_s - search.held_per_s <= 0.2 * knee + 0.5


def step_at(rate_per_s: float, *, answer_s: float, answered: float = 1.0, step_s: float = 15.0) -> Summary:
    """A step whose answers take ``answer_s`` after a first token, and which come at this share of the rate."""
    records = []
    for i in range(int(rate_per_s * step_s)):
        record = Record(i, "A", i / rate_per_s, status=200)
        record.first_token_s = record.scheduled_s / answered + 0.1
        record.last_s = record.first_token_s + answer_s
        record.complete = record.done = True
        records.append(record)
    return summarise(records, duration_s=step_s, window_s=1.0, warmup_s=1.5, scenarios=["A"])


@pytest.mark.parametrize("answer_s", [0.1, 2.0, 5.0])
def test_a_rate_holds_although_the_first_seconds_of_a_step_have_no_answers(answer_s: float) -> None:
    assert judge_step(step_at(10.0, answer_s=answer_s), (), (), ()) == (True, "")


@pytest.mark.parametrize("answer_s", [0.1, 2.0, 5.0])
def test_a_rate_at_which_answers_fall_behind_does_not_hold(answer_s: float) -> None:
    held, why = judge_step(step_at(10.0, answer_s=answer_s, answered=0.8), (), (), ())
    assert not held
    assert "answered in time" in why


def test_a_step_shorter_than_its_answers_asks_for_a_longer_one() -> None:
    held, why = judge_step(step_at(10.0, answer_s=12.0), (), (), ())
    assert (held, "--step" in why) == (False, True)
