from __future__ import annotations

import math

import pytest

from exaserve.bench import Record, summarise
from exaserve.bench.slo import RunFigures, evaluate, goodput, parse_gate, parse_objectives, reference_gates
from exaserve.domain.errors import ConfigError


def record(i: int, ttft: float, scenario: str = "A", error: str = "") -> Record:
    one = Record(i, scenario, i * 0.01, sent_s=i * 0.01, status=200, error=error, complete=not error, tokens=11)
    one.first_token_s = one.scheduled_s + ttft
    one.last_s = one.first_token_s + 1.0
    one.replica = f"r{i % 3}"
    return one


def judged(records, *texts, run=None):
    summary = summarise(records, duration_s=2.0, window_s=0.5)
    return evaluate([parse_gate(t) for t in texts], RunFigures(records, summary, run or {}))


RECORDS = [record(i, 0.1 + i * 0.001) for i in range(199)] + [record(199, 2.0)]


def test_percentiles_in_their_unit_with_the_worst_as_evidence():
    met, missed, seconds = judged(RECORDS, "A: p50_ttft_ms<=250", "p99_ttft_ms <= 200", "A: max_ttft_s < 2.5")
    assert met.passed
    assert met.value == pytest.approx(199.5, abs=1.0)
    assert met.samples == 200
    assert not missed.passed
    assert missed.evidence["beyond_limit"] == 99
    assert missed.evidence["worst"][0]["index"] == 199
    assert missed.evidence["worst"][0]["replica"] == "r1"
    assert seconds.passed
    assert seconds.value == pytest.approx(2.0)


def test_what_was_not_measured_is_missed():
    for text in ("B: p99_ttft_ms<=1e9", "kv_spread<1", "gpu_use>=0", "A: requests_per_s>=0", "B: error_share<1"):
        (result,) = judged(RECORDS, text)
        assert (result.value, result.passed) == (None, False), text
        assert result.evidence["reason"]


def test_figures_of_the_run():
    spread, use = judged(RECORDS, "kv_spread<0.08", "gpu_use>=78%", run={"kv_spread": 0.05, "gpu_use": 0.9})
    assert spread.passed
    assert use.passed
    assert use.gate.limit == 0.78


def test_errors_are_counted_and_named():
    records = [*RECORDS[:98], record(98, 0.1, error="lost"), record(99, 0.1, error="lost")]
    share, cut, failed = judged(records, "error_share<=0.01", "cut<=2", "failed<=0")
    assert share.value == pytest.approx(0.02)
    assert not share.passed
    assert share.evidence["errors"] == {"lost": 2}
    assert cut.passed
    assert failed.passed


def test_few_answers_make_weak_evidence():
    (few,) = judged(RECORDS[:20], "p999_ttft_ms<=1000")
    assert "too few" in few.evidence["weak"]
    (enough,) = judged(RECORDS, "p99_ttft_ms<=1000")
    assert "weak" not in enough.evidence


def test_goodput_counts_requests_within_every_limit_of_their_scenario():
    records = [record(i, 0.1) for i in range(10)] + [record(i, 0.5, "B") for i in range(10, 20)]
    gates = [parse_gate("A: p99_ttft_ms<=200"), parse_gate("B: p99_ttft_ms<=400"), parse_gate("p99_latency_s<=10")]
    assert goodput(records, gates) == 10
    share, rate = judged(records, "A: p99_ttft_ms<=200", "goodput_share>=0.5")
    assert share.passed
    assert rate.value == 1.0
    assert goodput([record(0, 0.1, error="lost")], gates) == 0


def test_spread_of_windows_and_rates():
    spread, rate = judged(RECORDS, "stdev_p99_ttft_ms<=10000", "requests_per_s>=10")
    assert spread.value is not None
    assert not math.isnan(spread.value)
    assert rate.passed


@pytest.mark.parametrize(
    "text",
    ["p99_ttft_ms", "p99_ttft_ms=3", "A: p100_ttft_ms<3", "p99_tft_ms<3", "p99_ttft_ms<fast", "p99_ttft_ms<inf", ""],
)
def test_nonsense_is_no_objective(text):
    with pytest.raises(ConfigError, match="objective"):
        parse_gate(text)


def test_objectives_from_a_file():
    texts = [g.text for g in parse_objectives({"slo": {"A": {"p99_ttft_ms": 850}, "all": {"goodput_share": 0.99}}})]
    assert texts == ["A: p99_ttft_ms <= 850", "goodput_share >= 0.99"]
    assert [g.text for g in parse_objectives(["B: mean_tpot_ms<50"])] == ["B: mean_tpot_ms < 50"]
    for wrong in ({"A": 3}, "x", [3], None):
        with pytest.raises(ConfigError, match="must be"):
            parse_objectives(wrong)


def test_the_first_token_of_the_answer_itself_has_objectives_of_its_own():
    records = [record(i, 0.1) for i in range(10)]
    for one in records:
        assert one.first_token_s is not None
        one.first_answer_s = one.first_token_s + 0.4
    met, missed = judged(records, "p99_ttfa_ms<=600", "p99_ttfa_ms<=300")
    assert (met.passed, missed.passed) == (True, False)
    assert met.value == pytest.approx(500.0)


def test_reference_gates_are_those_of_the_runs_scenarios():
    assert [gate.scenario for gate in reference_gates(["B"])] == ["B", "", "", "", ""]
    assert all(gate.if_measured for gate in reference_gates(["A"]) if not gate.scenario)
    with pytest.raises(ConfigError, match="none of the scenarios A, B and C"):
        reference_gates(["chat"])
