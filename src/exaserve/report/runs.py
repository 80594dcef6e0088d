"""The report of one or several load runs, live or simulated: the same page for both. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from exaserve.report.page import Cell, Figure, page, table
from exaserve.report.svg import Series, bars, heat, lines, percentiles
from exaserve.report.words import number, seconds
from exaserve.workload import distribution, percentile

__all__ = ["GateView", "HeatView", "RunView", "ScenarioView", "StepView", "runs_report"]

HEAT_ROWS_MAX = 64
DOTS_MAX = 1_500


@dataclass(frozen=True, slots=True)
class ScenarioView:
    """One scenario's good answers, in any order; sequences of equal length.

    Attributes:
        at_s: when each was due, seconds from the start.
        ttft_s: to first token, from then, seconds.
        latency_s: to last token, from then, seconds.
        requests / failed / cut: counts; ``requests`` includes good ones.
    """

    name: str
    at_s: Sequence[float]
    ttft_s: Sequence[float]
    latency_s: Sequence[float]
    requests: int
    failed: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class HeatView:
    """A value per replica and window, such as requests, P99 or KV use. NaN where there is none.

    Attributes:
        unit: ``s`` (seconds), ``share`` (0..1) or ``count``.
        limit: value of the darkest colour, None to find it.
    """

    title: str
    replicas: Sequence[str]
    columns_s: Sequence[float]
    values: Sequence[Sequence[float]]
    unit: str = "s"
    limit: float | None = None
    caption: str = ""


@dataclass(frozen=True, slots=True)
class GateView:
    """An objective and whether it was met. ``passed`` None: it was not measured.

    Attributes:
        answers: how many are behind the value, "" where it is of the whole run.
        few: so few answers that the value says little.
    """

    text: str
    value: str
    passed: bool | None
    answers: str = ""
    few: bool = False


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of a run with growing rates."""

    rate_per_s: float
    answered_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    held: bool


@dataclass(frozen=True, slots=True)
class RunView:
    """One run (or one policy of a simulation).

    Attributes:
        duration_s: length of the plan.
        window_s: windows for latency over time.
        facts: what to know of it, as (name, value).
        notes: what spoilt it or limits what it says.
        rows: further lines of the comparison table, as (name, value).
        objectives: P99 to first token to be kept, by scenario, seconds; drawn as a mark.
    """

    name: str
    duration_s: float
    window_s: float
    scenarios: Sequence[ScenarioView]
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    rows: Sequence[tuple[str, str]] = ()
    gates: Sequence[GateView] = ()
    heats: Sequence[HeatView] = ()
    steps: Sequence[StepView] = ()
    objectives: dict[str, float] = field(default_factory=dict)


def runs_report(title: str, runs: Sequence[RunView], intro: str = "") -> str:
    """A page on one run, or on several beside each other (then plots have one line per run)."""
    parts: list[str | Figure | tuple[str, Sequence[Figure]]] = []
    if intro:
        parts.append(f'<p class="soft">{escape(intro)}</p>')
    for run in runs:
        where = f"{run.name}: " if len(runs) > 1 else ""
        parts += [f'<p class="note">{escape(where + note)}</p>' for note in run.notes]
    if any(run.gates for run in runs):
        parts.append(_gates(runs))
    parts.append(_summary(runs))
    parts += [_facts(run, named=len(runs) > 1) for run in runs if run.facts]
    names = _scenario_names(runs)
    parts.append(("Rate and latency", [f for run in runs if run.steps for f in _steps(run)]))
    parts.append(("Time to first token, over time", [_over_time(runs, name) for name in names]))
    parts.append(("Distribution", _distributions(runs, names)))
    parts.append(("Scenarios", _bars(runs, names)))
    parts.append(("Replicas", [_heat(run, view, named=len(runs) > 1) for run in runs for view in run.heats]))
    return page(title, parts)


def _scenario_names(runs: Sequence[RunView]) -> list[str]:
    return list(dict.fromkeys(s.name for run in runs for s in run.scenarios if s.at_s))


def _find(run: RunView, name: str) -> ScenarioView | None:
    return next((s for s in run.scenarios if s.name == name), None)


def _gates(runs: Sequence[RunView]) -> str:
    """Objectives with what was measured; of several runs one column each."""
    if len(runs) > 1:
        return _gates_of_several(runs)
    gates = runs[0].gates
    answers = any(gate.answers for gate in gates)
    rows: list[list[str | Cell]] = []
    for gate in gates:
        words = {True: "met", False: "missed", None: "not measured"}
        behind = [gate.answers + (" (few)" if gate.few else "")] if answers else []
        rows.append([gate.text, gate.value, *behind, Cell(words[gate.passed], gate.passed)])
    head = ["", "measured", *(["answers"] if answers else []), ""]
    return "<h2>Objectives</h2>" + table(head, rows, wrap=True)


def _gates_of_several(runs: Sequence[RunView]) -> str:
    known = [{gate.text: gate for gate in run.gates} for run in runs]
    rows: list[list[str | Cell]] = []
    for text in dict.fromkeys(text for gates in known for text in gates):
        found = [gates.get(text) for gates in known]
        rows.append([text, *(_mark(gate) if gate is not None else "" for gate in found)])
    return "<h2>Objectives</h2>" + table(["", *(run.name for run in runs)], rows, wrap=True)


def _mark(gate: GateView) -> Cell:
    """Not by colour alone, which not everyone sees."""
    sign = {True: "✓", False: "✗", None: "?"}[gate.passed]
    return Cell(f"{gate.value} {sign}", gate.passed)


def _facts(run: RunView, *, named: bool) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in run.facts)
    return f"<h2>{escape(run.name) if named else 'Run'}</h2><dl>{items}</dl>"


def _summary(runs: Sequence[RunView]) -> str:
    head = ["", "requests", "failed", "cut", "P50", "P90", "P99", "P99.9", "whole answer P50", "P99"]
    rows: list[list[str | Cell]] = []
    names = list(dict.fromkeys(s.name for run in runs for s in run.scenarios if s.requests))
    for name in [*names, "all"]:
        for run in runs:
            if name != "all" and _find(run, name) is None:
                continue
            chosen = list(run.scenarios) if name == "all" else [s for s in run.scenarios if s.name == name]
            ttft = distribution(v for s in chosen for v in s.ttft_s)
            whole = distribution(v for s in chosen for v in s.latency_s)
            failed, cut = sum(s.failed for s in chosen), sum(s.cut for s in chosen)
            figures = (ttft.p50, ttft.p90, ttft.p99, ttft.p999, whole.p50, whole.p99)
            rows.append(
                [
                    name if len(runs) == 1 else f"{name}, {run.name}",
                    f"{sum(s.requests for s in chosen):,}",
                    Cell(f"{failed:,}", False if failed else None),
                    Cell(f"{cut:,}", False if cut else None),
                    *(seconds(v) for v in figures),
                ]
            )
        if len(names) == 1:
            break
    text = "<h2>Time to first token</h2>" + table(head, rows)
    further = list(dict.fromkeys(name for run in runs for name, _ in run.rows))
    if further:
        lines_ = [[name, *(dict(run.rows).get(name, "-") for run in runs)] for name in further]
        text += table(["", *(run.name if len(runs) > 1 else "" for run in runs)], lines_, wrap=True)
    return text


def _windows(view: ScenarioView, run: RunView, q: float) -> tuple[list[float], list[float]]:
    count = max(1, math.ceil(run.duration_s / run.window_s - 1e-9))
    buckets: list[list[float]] = [[] for _ in range(count)]
    for at, value in zip(view.at_s, view.ttft_s, strict=True):
        buckets[min(count - 1, max(0, int(at / run.window_s)))].append(value)
    return [(i + 0.5) * run.window_s for i in range(count)], [percentile(sorted(b), q) for b in buckets]


def _over_time(runs: Sequence[RunView], name: str) -> Figure:
    series = []
    for i, run in enumerate(runs):
        view = _find(run, name)
        if view is None or not view.at_s:
            continue
        if len(runs) == 1:
            step = max(1, len(view.at_s) // DOTS_MAX)
            order = sorted(range(len(view.at_s)), key=lambda k: view.at_s[k])[::step]
            series.append(
                Series("requests", [view.at_s[k] for k in order], [view.ttft_s[k] for k in order], 0, dots=True)
            )
            series.append(Series("P50", *_windows(view, run, 0.5), colour=2))
            series.append(Series("P99", *_windows(view, run, 0.99), colour=1))
        else:
            series.append(Series(f"{run.name} P99", *_windows(view, run, 0.99), colour=i))
            series.append(Series(f"{run.name} P50", *_windows(view, run, 0.5), colour=i, dashed=True))
    limit = next((run.objectives[name] for run in runs if name in run.objectives), None)
    caption = f"by the time at which requests were due, in windows of {runs[0].window_s:g} s"
    return Figure(name, lines(series, f"time to first token of {name} over time", limit=limit), caption)


def _distributions(runs: Sequence[RunView], names: Sequence[str]) -> list[Figure]:
    if len(runs) == 1:
        figures = []
        for what, title in (("ttft_s", "Time to first token"), ("latency_s", "Whole answer")):
            groups = [(s.name, getattr(s, what), i) for i, s in enumerate(runs[0].scenarios) if s.at_s]
            figures.append(Figure(title, percentiles(groups, f"percentiles of {title.lower()}")))
        return figures
    return [
        Figure(
            f"{name}, time to first token",
            percentiles(
                [(run.name, view.ttft_s, i) for i, run in enumerate(runs) if (view := _find(run, name)) is not None],
                f"percentiles of time to first token of {name}",
            ),
        )
        for name in names
    ]


def _bars(runs: Sequence[RunView], names: Sequence[str]) -> list[Figure]:
    def value(run: RunView, name: str, q: float) -> float:
        view = _find(run, name)
        return percentile(sorted(view.ttft_s), q) if view is not None else math.nan

    if len(runs) == 1:
        groups = [(f"P{q * 100:g}", [value(runs[0], name, q) for name in names], i) for i, q in enumerate((0.5, 0.99))]
        return [Figure("Time to first token", bars(names, groups, "P50 and P99 per scenario"))]
    return [
        Figure(
            f"P{q * 100:g} to first token",
            bars(
                names, [(run.name, [value(run, n, q) for n in names], i) for i, run in enumerate(runs)], "per scenario"
            ),
        )
        for q in (0.5, 0.99)
    ]


def _steps(run: RunView) -> list[Figure]:
    steps = sorted(run.steps, key=lambda step: step.rate_per_s)  # they were tried in another order
    rates = [step.rate_per_s for step in steps]
    latency = [
        Series("P50", rates, [step.ttft_p50_s for step in steps], 2),
        Series("P99", rates, [step.ttft_p99_s for step in steps], 1),
    ]
    answered = [
        Series("answered", rates, [step.answered_per_s for step in steps], 0),
        Series("offered", rates, rates, 7, dashed=True),
    ]
    held = [step.rate_per_s for step in steps if step.held]
    caption = f"held up to {number(max(held))} requests/s" if held else "not held at the lowest rate"
    return [
        Figure("Time to first token", lines(latency, "latency by rate", "offered requests/s"), caption),
        Figure("Answers", lines(answered, "answers by rate", "offered requests/s", number)),
    ]


_TEXTS = {"s": seconds, "share": lambda v: f"{v:.0%}", "count": lambda v: f"{v:,.0f}"}


def _heat(run: RunView, view: HeatView, *, named: bool) -> Figure:
    rows, values = list(view.replicas), [list(line) for line in view.values]
    caption = view.caption
    if len(rows) > HEAT_ROWS_MAX:
        size = math.ceil(len(rows) / HEAT_ROWS_MAX)
        caption += f" Each line is the largest of {size} replicas."
        groups = [range(i, min(i + size, len(rows))) for i in range(0, len(rows), size)]
        values = [[_largest(values[k][j] for k in group) for j in range(len(view.columns_s))] for group in groups]
        rows = [rows[group[0]] for group in groups]
    title = f"{view.title} ({run.name})" if named else view.title
    svg = heat(rows, view.columns_s, values, view.title, _TEXTS[view.unit], view.limit)
    return Figure(title, svg, caption.strip(), wide=len(rows) > 32)


def _largest(values: Iterable[float]) -> float:
    good = [v for v in values if math.isfinite(v)]
    return max(good, default=math.nan)
