from __future__ import annotations

import dataclasses
import math
import random

import pytest

from exaserve.report import (
    GateView,
    HeatView,
    RunView,
    ScenarioView,
    Series,
    StepView,
    heat,
    lines,
    number,
    percentiles,
    runs_report,
    seconds,
)


def view(name: str, factor: float = 1.0, scenarios: tuple[str, ...] = ("A", "B")) -> RunView:
    rng = random.Random(name)
    parts = []
    for scenario in scenarios:
        at = [rng.uniform(0, 30) for _ in range(400)]
        ttft = [factor * rng.lognormvariate(-2, 0.5) for _ in at]
        parts.append(ScenarioView(scenario, at, ttft, [t + 1 for t in ttft], 402, failed=1, cut=1))
    replicas = [f"n{i // 8}/r{i % 8}" for i in range(200)]
    heats = (HeatView("P99", replicas, [0.0, 10.0, 20.0], [[rng.random(), math.nan, 2.0] for _ in replicas]),)
    return RunView(
        name,
        30.0,
        2.0,
        parts,
        facts=(("endpoint", "<http://x>"),),
        notes=("late & slow",),
        rows=(("goodput", "3/s"),),
        gates=(GateView("A: p99 <= 1", "0.5", passed=True), GateView("B", "-", passed=None)),
        heats=heats,
        steps=(StepView(1.0, 1.0, 0.1, 0.2, held=True), StepView(2.0, 1.2, 1.0, 4.0, held=False)),
        objectives={"A": 0.5},
    )


def test_text_is_escaped_and_nothing_is_missing():
    text = runs_report("one <run>", [view("x")])
    assert "one &lt;run&gt;" in text
    assert "&lt;http://x&gt;" in text
    assert "late &amp; slow" in text
    for word in (
        "Objectives",
        "goodput",
        "not measured",
        "Distribution",
        "Rate and latency",
        "held up to 1 requests/s",
    ):
        assert word in text
    assert "nan" not in text.lower().replace("finance", "")
    assert "largest of 4 replicas" in text, "200 replicas share 50 lines"


def test_objectives_of_several_runs_stand_beside_each_other():
    one, two = view("first"), view("second")
    missed = dataclasses.replace(two, gates=(GateView("A: p99 <= 1", "3.5", passed=False),))
    text = runs_report("two", [one, missed])
    assert text.count("<h2>Objectives") == 1
    row = text[text.index("A: p99 &lt;= 1") :].split("</tr>")[0]
    assert '<td class="good">0.5 ✓</td><td class="bad">3.5 ✗</td>' in row
    alone = runs_report("one", [dataclasses.replace(one, gates=(GateView("B", "4", True, answers="15", few=True),))])
    assert "<td>15 (few)</td>" in alone


def test_several_runs_have_a_line_each():
    text = runs_report("two", [view("first"), view("second", 3.0)])
    assert "first P99" in text
    assert "second P50" in text
    assert text.count("<figure") < 20


def test_one_run_and_its_page_stay_small():
    """Points are thinned: a page is sent by mail."""
    rng = random.Random(1)
    at = [rng.uniform(0, 600) for _ in range(50_000)]
    many = ScenarioView("A", at, [rng.random() for _ in at], [2.0] * len(at), len(at))
    assert len(runs_report("big", [RunView("x", 600.0, 5.0, [many])])) < 300_000


@pytest.mark.parametrize("count", [0, 1, 2])
def test_hardly_any_answers_are_no_trouble(count):
    parts = [ScenarioView("A", [0.0] * count, [0.1] * count, [0.2] * count, count)]
    text = runs_report("few", [RunView("x", 1.0, 1.0, parts)])
    assert text.startswith("<!doctype html>")
    assert ">nan" not in text


def test_axes_are_logarithmic_where_values_differ_much():
    wide = lines([Series("a", [0, 1, 2], [0.001, 0.1, 10.0])], "wide")
    assert "10 s" in wide
    assert "1.00 ms" in wide or "1 ms" in wide
    assert ">0<" in lines([Series("a", [0, 1, 2], [1.0, 1.1, 1.2])], "narrow")
    assert "M" in lines([Series("a", [0, 1, 2], [math.nan, 1.0, math.nan])], "gap")


def test_percentile_axes_reach_as_far_as_there_are_values():
    assert "99.9 %" in percentiles([("a", [float(i) for i in range(2_000)], 0)], "many")
    assert "99.9 %" not in percentiles([("a", [float(i) for i in range(50)], 0)], "few")


def test_rates_are_drawn_in_their_order_not_in_that_of_the_search():
    steps = [StepView(rate, rate, 0.1, 0.2, held=True) for rate in (10.0, 40.0, 20.0, 30.0)]
    text = runs_report("profile", [dataclasses.replace(view("x"), steps=steps)])
    line = text[text.index("latency by rate") :].split('class="line')[1].split('d="M')[1].split('"')[0]
    xs = [float(point.split()[0]) for point in line.split("L")]
    assert xs == sorted(xs)
    assert len(xs) == 4


def test_what_stands_at_the_edge_of_a_plot_is_not_cut():
    svg = percentiles([("a", [float(i) for i in range(2_000)], 0)], "many")
    assert 'text-anchor="end">99.99 %' in svg


def test_the_steps_of_a_heat_map_are_coloured_in_its_legend_too():
    text = runs_report("one", [view("x")])
    for step in range(10):
        assert f'<i class="h{step}">' in text
        assert f".legend i.h{step}{{background:" in text, "stronger than the rule for other legends"


def test_a_heat_map_leaves_out_what_is_unknown():
    svg = heat(["a", "b"], [0.0, 1.0], [[0.1, math.nan], [1.0, 0.5]], "x", limit=1.0)
    assert svg.count("<rect") == 3
    assert 'class="h9"' in svg


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (5e-5, "50 µs"), (0.00512, "5.12 ms"), (0.0851, "85.1 ms"), (0.85, "850 ms"), (2.2, "2.2 s"),
     (599.0, "599 s"), (1200.0, "20 min"), (math.nan, "-")],
)  # fmt: skip
def test_durations_read_well(value, text):
    assert seconds(value) == text


def test_figures_have_four_digits_and_no_exponent():
    values = (0.0, 0.06667, 3.5512, 113.61, 999.96, 21_350.4, 1_443_137.0, 2.5, 1e-7, -12.3456, math.nan)
    assert [number(value) for value in values] == [
        "0", "0.06667", "3.551", "113.6", "1,000", "21,350", "1,443,137", "2.5", "0.0000001", "-12.35", "-",
    ]  # fmt: skip
