from __future__ import annotations

import json
import math
import statistics
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.bench.record import Record
from exaserve.bench.stats import WINDOW_SAMPLES_MIN, summarise, windows
from exaserve.workload import distribution, percentile


def record(index: int, at: float, ttft: float | None = 0.1, scenario: str = "A", error: str = "", **fields) -> Record:
    value = Record(index, scenario, at, sent_s=at + 0.01, status=200, error=error, complete=not error, tokens=3)
    if ttft is not None:
        value.first_token_s = at + ttft
        value.last_s = at + ttft + 0.2
        value.token_s = array("d", [at + ttft, at + ttft + 0.1, at + ttft + 0.2])
    for name, item in fields.items():
        setattr(value, name, item)
    return value


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_percentiles_are_numpys(values, q):
    assert percentile(sorted(values), q) == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-6)


def test_percentile_edges():
    assert math.isnan(percentile([], 0.5))
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0], 0.5) == 1.5
    with pytest.raises(ValueError, match="quantile"):
        percentile([1.0], 1.5)


def test_distribution_of_nothing_is_unknown_not_zero():
    empty = distribution([])
    assert empty.count == 0
    assert math.isnan(empty.p99)


def test_failed_and_cut_requests_are_counted_apart_and_flatter_nothing():
    records = [record(i, i / 10) for i in range(20)]
    records += [record(20, 0.5, ttft=None, error="status", status=503, last_s=0.501)]
    records += [record(21, 0.6, ttft=0.0001, error="lost")]
    summary = summarise(records, duration_s=2.0, window_s=1.0)
    assert (summary.all.requests, summary.all.ok, summary.all.failed, summary.all.cut) == (22, 20, 1, 1)
    assert summary.all.ttft.count == 20
    assert summary.all.ttft.p50 == pytest.approx(0.1)
    assert summary.all.ttft_sent.p50 == pytest.approx(0.09)
    assert summary.all.latency.p50 == pytest.approx(0.3)
    assert summary.all.token_gap.p50 == pytest.approx(0.1)
    assert summary.all.errors == {"status": 1, "lost": 1}
    assert summary.all.statuses == {200: 21, 503: 1}
    assert summary.offered_per_s == pytest.approx(11.0)
    # The last three of the twenty end 0.3 s after they were due, in the drain.
    assert summary.requests_per_s == pytest.approx(8.5)
    # Of the first of them two of three tokens come in time, of the second one.
    assert summary.tokens_per_s == pytest.approx(27.0)


def test_scenarios_keep_the_plans_order_and_the_empty_ones():
    records = [record(0, 0.1, scenario="B"), record(1, 0.2, scenario="Z"), record(2, 0.3, scenario="A")]
    summary = summarise(records, duration_s=1.0, window_s=1.0, scenarios=("A", "B", "C"))
    assert [(s.name, s.requests) for s in summary.scenarios] == [("A", 1), ("B", 1), ("C", 0), ("Z", 1)]
    assert sum(s.requests for s in summary.scenarios) == summary.all.requests


def test_warm_up_is_left_out_of_rates_and_latencies():
    records = [record(i, i / 10, ttft=5.0 if i < 10 else 0.1) for i in range(20)]
    summary = summarise(records, duration_s=2.0, window_s=1.0, warmup_s=1.0)
    assert summary.all.requests == 10
    assert summary.all.ttft.max == pytest.approx(0.1)
    assert summary.requests_per_s == pytest.approx(7.0)
    assert summary.windows.p99_s[0] is None


def test_windows_hold_what_was_due_in_them():
    records = [record(i, i * 0.01, ttft=(0.1, 0.2, 0.6)[i // 100]) for i in range(300)]
    result = windows(records, 1.0, 3.0)
    assert result.p99_s == pytest.approx((0.1, 0.2, 0.6))
    assert result.stdev_s == pytest.approx(statistics.pstdev([0.1, 0.2, 0.6]))


def test_windows_with_few_answers_and_half_windows_say_nothing():
    records = [record(i, 0.01 * i) for i in range(100)] + [record(100 + i, 1.5) for i in range(WINDOW_SAMPLES_MIN - 1)]
    result = windows(records, 1.0, 2.9)
    assert result.p99_s[0] == pytest.approx(0.1)
    assert result.p99_s[1:] == (None,)
    assert math.isnan(result.stdev_s)
    assert len(windows([], 0.1, 0.3).p99_s) == 3
    with pytest.raises(ValueError, match="window_s"):
        windows([], 0.0, 1.0)


def test_as_dict_has_no_nan():
    def check(value):
        if isinstance(value, dict):
            for item in value.values():
                check(item)
        elif isinstance(value, list):
            for item in value:
                check(item)
        else:
            assert not (isinstance(value, float) and math.isnan(value))

    check(summarise([record(0, 0.1)], duration_s=1.0, window_s=0.5).as_dict())


def test_tokens_count_in_the_time_in_which_they_came():
    across = record(0, 0.5, ttft=0.1, tokens=8)
    across.token_s = array("d", [0.6, 0.8, 1.2, 1.4])
    across.last_s = 1.4
    summary = summarise([across], duration_s=1.0, window_s=1.0)
    assert summary.tokens_per_s == pytest.approx(4.0)
    assert summary.requests_per_s == 0.0
    assert summary.all.event_gap.max == pytest.approx(0.4)
    assert summary.all.stall.p50 == pytest.approx(0.4)


def test_records_survive_their_json():
    one = record(3, 0.5, scenario="B")
    one.token_s = array("d", [0.6, 0.7])
    assert Record.from_dict(json.loads(json.dumps(one.as_dict()))) == one
