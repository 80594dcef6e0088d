"""What creeps is told once, and what only fills up is not."""

from __future__ import annotations

import math
from random import Random

import pytest

from exaserve.agent.slow_faults import Creep, IdleKv, KvAge, LogGrowth

MINUTE = 60.0


def findings(watch, samples):
    return [found for sample in samples if (found := watch.sampled(*sample)) is not None]


def test_a_leak_is_found_within_hours() -> None:
    rng = Random(1)
    found = findings(Creep(), [(8000.0 + 2.0 * k + rng.gauss(0, 20), k * MINUTE) for k in range(300)])
    assert [(each.what, each.bad) for each in found] == [("memory_creep", True)]


def test_a_cache_that_fills_and_noise_are_no_leak() -> None:
    rng = Random(2)
    fills = [(8000.0 + 500.0 * (1 - math.exp(-k / 20)), k * MINUTE) for k in range(600)]
    assert not any(each.bad for each in findings(Creep(), fills[120:]))
    noise = [(8000.0 + rng.gauss(0, 100), k * MINUTE) for k in range(600)]
    assert findings(Creep(), noise) == []


def test_a_restart_forgets_the_slope() -> None:
    watch = Creep()
    findings(watch, [(8000.0 + 2.0 * k, k * MINUTE) for k in range(200)])
    watch.reset()
    assert watch.slope_mb_per_h == 0.0
    assert watch.due(200 * MINUTE)


def test_kv_that_stays_at_idle_is_told_and_its_end_too() -> None:
    watch = IdleKv(idle_s=10.0)
    busy = [(4, 0, 0.5, t) for t in range(5)]
    idle = [(0, 0, 0.3, t) for t in range(5, 30)]
    back = [(0, 0, 0.0, 31.0)]
    found = findings(watch, busy + idle + back)
    assert [each.bad for each in found] == [True, False]
    assert findings(IdleKv(), [(0, 0, 0.0, float(t)) for t in range(30)]) == []
    assert findings(IdleKv(), [(None, None, 0.3, float(t)) for t in range(30)]) == [], "unknown is not idle"


def test_a_log_that_repeats_itself_is_told() -> None:
    found = findings(LogGrowth(), [(k * 5_000_000, float(k)) for k in range(130)])
    assert [each.bad for each in found] == [True]
    assert findings(LogGrowth(), [(k * 500, float(k)) for k in range(130)]) == []


def test_kv_age_is_the_mean_age_of_what_runs() -> None:
    age = KvAge()
    assert age.sampled(0, 10.0) == 0.0
    assert age.sampled(2, 10.0) == 0.0
    assert age.sampled(3, 12.0) == pytest.approx((2000 + 2000 + 0) / 3)
    assert age.sampled(1, 13.0) == 1000.0, "the oldest leave first"
    assert age.sampled(None, 14.0) is None
    assert age.sampled(1, 15.0) == 0.0
