"""The tables that ``exaserve bench`` ends with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from exaserve.bench import ScenarioStats
from exaserve.bench.compare import Difference
from exaserve.bench.outcome import BenchResult, RateStep, error_kinds
from exaserve.cli.tables import Cell, Column, log_wide, print_table
from exaserve.report import number, seconds

__all__ = ["show_beside", "show_differences", "show_outcome", "show_steps"]

_FIRST = (
    Column("", left=True),
    Column("requests", 3),
    Column("failed"),
    Column("cut", 1),
    Column("P50"),
    Column("P90", 4),
    Column("P99"),
    Column("P99.9", 5),
    Column("max", 2),
    Column("P99 if from sending", 6),
)
_WHOLE = (
    Column("", left=True),
    Column("P50"),
    Column("P99"),
    Column("P99.9", 5),
    Column("per token P50", 1),
    Column("per token P99", 1),
    Column("gap P99", 4),
    Column("longest gap P50", 3),
    Column("longest gap P99", 2),
    Column("longest gap max", 3),
)
_RATES = (
    Column("offered/s", left=True),
    Column("answered/s"),
    Column("tokens/s", 2),
    Column("first token P50", 1),
    Column("first token P99"),
    Column("whole P99", 3),
    Column("failed", 1),
    Column("held", left=True, wrap=True),
)


def _stats(outcome: BenchResult) -> list[ScenarioStats]:
    scenarios = [s for s in outcome.summary.scenarios if s.requests]
    return [*scenarios, outcome.summary.all] if len(scenarios) != 1 else scenarios


def show_outcome(console: Console, outcome: BenchResult) -> None:
    """Latencies, rates, verdict, and what to know of them."""
    rows: list[list[Cell]] = []
    for s in _stats(outcome):
        t = s.ttft
        figures = [seconds(v) for v in (t.p50, t.p90, t.p99, t.p999, t.max, s.ttft_sent.p99)]
        rows.append([s.name, f"{s.requests:,}", _bad(s.failed), _bad(s.cut), *figures])
    print_table(console, "Time to first token, from the instant each request was due", _FIRST, rows)
    rows = []
    for s in _stats(outcome):
        whole, token, stall = s.latency, s.token_gap, s.stall
        values = (whole.p50, whole.p99, whole.p999, token.p50, token.p99, s.event_gap.p99)
        rows.append([s.name, *(seconds(v) for v in (*values, stall.p50, stall.p99, stall.max))])
    print_table(console, "Whole answers", _WHOLE, rows)
    wide = log_wide(console)
    for line in _lines(outcome):
        wide.print(line, highlight=False, markup=False)
    _show_gates(console, outcome)
    for note in outcome.notes:
        wide.print(f"note: {note}", style="dim", highlight=False, markup=False)
    for reason in outcome.spoilt:
        wide.print(f"NOT VALID: {reason}", style="bold yellow", highlight=False, markup=False)


def _bad(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "")


def _lines(outcome: BenchResult) -> list[str]:
    summary, every = outcome.summary, outcome.summary.all
    measured = summary.duration_s - summary.warmup_s
    uncounted = every.ok - every.tokens_known
    lines = [
        f"measured {number(measured)} s: {number(summary.offered_per_s)} requests/s were due, "
        f"{number(summary.requests_per_s)}/s answered, {number(summary.tokens_per_s)} tokens/s"
        + (f" (counted by events for {uncounted:,} answers)" if uncounted else "")
    ]
    spread = summary.windows
    if not math.isnan(spread.stdev_s):
        known = sum(v is not None for v in spread.p99_s)
        lines.append(
            f"P99 to first token of {known} windows of {spread.window_s:g} s: "
            f"standard deviation ± {seconds(spread.stdev_s)}"
        )
    if every.reasoned:
        first = every.ttfa
        mean = number(every.reasoning_tokens / every.reasoned)
        lines.append(
            f"reasoning: {every.reasoned:,} answers, {mean} tokens on average; "
            f"first token of the answer itself P50 {seconds(first.p50)}, P99 {seconds(first.p99)}"
        )
    lines += _about_prompts(every)
    if outcome.goodput_per_s is not None:
        lines.append(f"goodput: {number(outcome.goodput_per_s)} requests/s within the objectives")
    if outcome.cost_per_1000 is not None:
        lines.append(f"cost: {number(outcome.cost_per_1000)} per 1,000 requests")
    if machines := _about_machines(outcome):
        lines.append(machines)
    if kinds := error_kinds(every.errors, every.statuses):
        lines.append("errors: " + ", ".join(kinds))
    client = outcome.client
    lines.append(
        f"client: own delay P99 {seconds(client.lag_p99_s)}, largest {seconds(client.lag_max_s)}; "
        f"{client.cpu_share:.0%} of a core"
    )
    return lines


def _about_prompts(every: ScenarioStats) -> list[str]:
    if not every.prompt_known:
        return []
    asked, seen = every.prompt_planned, every.prompt_tokens
    lines = []
    if every.prompt_known == every.ok:
        off = f" ({seen / asked - 1.0:+.1%} against the plan)" if asked and seen != asked else " (as planned)"
        lines.append(f"prompts: {seen / every.ok:,.1f} tokens on average by the server's count{off}")
    if every.cached_tokens:
        lines.append(f"prefix cache: {every.cached_tokens / max(1, seen):.1%} of the prompt tokens, by the server")
    return lines


_SHARES = {"gpu_use": "accelerators", "kv_max": "fullest KV cache"}


def _about_machines(outcome: BenchResult) -> str:
    parts = []
    for name, value in outcome.telemetry.figures().items():
        if name in _SHARES:
            parts.append(f"{_SHARES[name]} {value:.1%}")
        elif name == "kv_spread":
            parts.append(f"spread of KV use {value:.3f}")
        else:
            parts.append(f"{name.replace('_', ' ')} {value:.0f}")
    return "; ".join(parts)


def _show_gates(console: Console, outcome: BenchResult) -> None:
    if not outcome.gates:
        return
    columns = (
        Column("", left=True, wrap=True),
        Column("measured"),
        Column("answers", 1),
        Column("", left=True, wrap=True),
    )
    rows: list[list[Cell]] = []
    for gate in outcome.gates:
        state = Text("met", style="green") if gate.passed else Text("missed", style="bold red")
        if "weak" in gate.evidence:
            state.append(", by few answers", style="yellow")
        if gate.value is None:
            missed = gate.passed is False
            state = Text(str(gate.evidence.get("reason", "not measured")), style="bold red" if missed else "yellow")
        value = "-" if gate.value is None else number(gate.value)
        rows.append([gate.gate.text, value, f"{gate.samples:,}" if gate.samples else "", state])
    print_table(console, "Objectives", columns, rows)
    unproven = sum(gate.passed is None for gate in outcome.gates)
    if unproven:
        plural = "objectives were" if unproven > 1 else "objective was"
        log_wide(console).print(f"{unproven} {plural} not measured: this run does not prove them", style="bold yellow")


def show_steps(console: Console, steps: Sequence[RateStep], knee_per_s: float) -> None:
    """Rates tried by ``--profile``."""
    rows: list[list[Cell]] = []
    for step in sorted(steps, key=lambda s: s.rate_per_s):
        s = step.summary
        rows.append(
            [
                number(step.rate_per_s),
                number(s.requests_per_s),
                number(s.tokens_per_s),
                seconds(s.all.ttft.p50),
                seconds(s.all.ttft.p99),
                seconds(s.all.latency.p99),
                _bad(s.all.failed + s.all.cut),
                Text("yes", style="green") if step.held else Text(step.why, style="red"),
            ]
        )
    print_table(console, "Rates", _RATES, rows)
    text = f"knee: holds {number(knee_per_s)} requests/s" if knee_per_s else "no rate held, not even the lowest"
    console.print(text, style="bold", highlight=False)


def show_differences(console: Console, names: tuple[str, str], differences: Sequence[Difference]) -> None:
    """Two runs beside each other."""
    columns = (
        Column("", left=True),
        Column("", left=True),
        Column(names[0]),
        Column(names[1]),
        Column("change"),
        Column("95 % interval of the difference", 2),
        Column("", 1, left=True),
    )
    rows: list[list[Cell]] = []
    last = ""
    for d in differences:
        interval = "too few answers" if math.isnan(d.low) else f"{_signed(d.low)} .. {_signed(d.high)}"
        word = (
            Text("faster", style="green") if d.high < 0.0 else Text("slower", style="red") if d.low > 0.0 else Text("")
        )
        rows.append(
            [
                d.scenario if d.scenario != last else "",
                d.metric.replace("_", " "),
                seconds(d.first),
                seconds(d.second),
                f"{d.change:+.1%}",
                interval,
                word,
            ]
        )
        last = d.scenario
    print_table(console, f"{names[1]} against {names[0]}", columns, rows)


def show_beside(console: Console, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Counts and rates of several runs."""
    rows: list[list[Cell]] = []
    for name, *texts in lines:
        bad = [name in ("failed", "cut") and text != "0" for text in texts]
        rows.append([name, *(Text(t, style="red" if b else "") for t, b in zip(texts, bad, strict=True))])
    print_table(console, "", (Column("", left=True, wrap=True), *(Column(name) for name in names)), rows)


def _signed(value: float) -> str:
    return ("+" if value > 0.0 else "") + seconds(value)
