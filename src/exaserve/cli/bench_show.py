"""The tables that ``exaserve bench`` ends with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from exaserve.bench import ScenarioStats
from exaserve.bench.compare import Difference
from exaserve.bench.outcome import BenchResult, RateStep
from exaserve.report import seconds

__all__ = ["show_beside", "show_differences", "show_outcome", "show_steps"]

_LOG_WIDTH = 140
"""A table is worth reading in a log too: it is not squeezed into the 80 columns assumed without a terminal."""


def _wide(console: Console) -> Console:
    return console if console.is_terminal else Console(file=console.file, width=_LOG_WIDTH)


def _stats(outcome: BenchResult) -> list[ScenarioStats]:
    scenarios = [s for s in outcome.summary.scenarios if s.requests]
    return [*scenarios, outcome.summary.all] if len(scenarios) != 1 else scenarios


def show_outcome(console: Console, outcome: BenchResult) -> None:
    """Latencies, rates, verdict, and what to know of them."""
    wide = _wide(console)
    table = Table(title="Time to first token, from the instant each request was due", title_justify="left")
    for name in ("", "requests", "failed", "cut", "P50", "P90", "P99", "P99.9", "max", "P99 if from sending"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for s in _stats(outcome):
        t = s.ttft
        table.add_row(
            s.name,
            f"{s.requests:,}",
            _bad(s.failed),
            _bad(s.cut),
            *(seconds(v) for v in (t.p50, t.p90, t.p99, t.p999, t.max)),
            seconds(s.ttft_sent.p99),
        )
    wide.print(table)
    table = Table(title="Whole answers", title_justify="left")
    for name in (
        "",
        "P50",
        "P99",
        "P99.9",
        "per token P50",
        "per token P99",
        "gap P99",
        "longest gap P50",
        "P99",
        "max",
    ):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for s in _stats(outcome):
        whole, token, stall = s.latency, s.token_gap, s.stall
        figures = (
            whole.p50,
            whole.p99,
            whole.p999,
            token.p50,
            token.p99,
            s.event_gap.p99,
            stall.p50,
            stall.p99,
            stall.max,
        )
        table.add_row(s.name, *(seconds(v) for v in figures))
    wide.print(table)
    for line in _lines(outcome):
        wide.print(line, highlight=False)
    _show_gates(wide, outcome)
    for note in outcome.notes:
        wide.print(f"note: {note}", style="dim", highlight=False)
    for reason in outcome.spoilt:
        wide.print(f"NOT VALID: {reason}", style="bold yellow", highlight=False)


def _bad(count: int) -> Text:
    return Text(f"{count:,}", style="red" if count else "")


def _lines(outcome: BenchResult) -> list[str]:
    summary, every = outcome.summary, outcome.summary.all
    measured = summary.duration_s - summary.warmup_s
    lines = [
        f"measured {measured:.4g} s: {summary.offered_per_s:,.4g} requests/s were due, "
        f"{summary.requests_per_s:,.4g}/s answered, {summary.tokens_per_s:,.4g} tokens/s"
        + (
            ""
            if every.tokens_known == every.ok
            else f" (counted by events for {every.ok - every.tokens_known:,} answers)"
        )
    ]
    spread = summary.windows
    if not math.isnan(spread.stdev_s):
        known = sum(v is not None for v in spread.p99_s)
        lines.append(
            f"P99 to first token of {known} windows of {spread.window_s:g} s: "
            f"standard deviation ± {seconds(spread.stdev_s)}"
        )
    if every.prompt_known:
        asked, seen = every.prompt_planned, every.prompt_tokens
        if every.prompt_known == every.ok:
            off = f" ({seen / asked - 1.0:+.1%} against the plan)" if asked and seen != asked else " (as planned)"
            lines.append(f"prompts: {seen / every.ok:,.1f} tokens on average by the server's count{off}")
        if every.cached_tokens:
            lines.append(f"prefix cache: {every.cached_tokens / max(1, seen):.1%} of the prompt tokens, by the server")
    if outcome.goodput_per_s is not None:
        lines.append(f"goodput: {outcome.goodput_per_s:,.4g} requests/s within the objectives")
    if outcome.cost_per_1000 is not None:
        lines.append(f"cost: {outcome.cost_per_1000:,.4g} per 1,000 requests")
    figures = outcome.telemetry.figures()
    if figures:
        names = {"gpu_use": "accelerators", "kv_max": "fullest KV cache", "kv_spread": "spread of KV use"}
        lines.append(
            "; ".join(f"{names[n]} {v:.3f}" if n == "kv_spread" else f"{names[n]} {v:.1%}" for n, v in figures.items())
        )
    if every.errors:
        kinds = [f"{name} ({n:,})" for name, n in every.errors.items() if name != "status"]
        kinds += [f"status {code} ({n:,})" for code, n in every.statuses.items() if code >= 400]
        lines.append("errors: " + ", ".join(kinds))
    client = outcome.client
    lines.append(
        f"client: own delay P99 {seconds(client.lag_p99_s)}, largest {seconds(client.lag_max_s)}; "
        f"{client.cpu_share:.0%} of a core"
    )
    return lines


def _show_gates(console: Console, outcome: BenchResult) -> None:
    if not outcome.gates:
        return
    table = Table(title="Objectives", title_justify="left")
    for name in ("", "measured", "answers", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for gate in outcome.gates:
        state = Text("met", style="green") if gate.passed else Text("missed", style="bold red")
        if "weak" in gate.evidence:
            state.append(", by few answers", style="yellow")
        if gate.value is None:
            state = Text(str(gate.evidence.get("reason", "not measured")), style="bold red")
        value = "-" if gate.value is None else f"{gate.value:,.4g}"
        table.add_row(gate.gate.text, value, f"{gate.samples:,}" if gate.samples else "", state)
    console.print(table)


def show_steps(console: Console, steps: Sequence[RateStep], knee_per_s: float) -> None:
    """Rates tried by ``--profile``."""
    table = Table(title="Rates", title_justify="left")
    for name in ("offered/s", "answered/s", "tokens/s", "first token P50", "P99", "whole P99", "failed", "held"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in sorted(steps, key=lambda s: s.rate_per_s):
        s = step.summary
        table.add_row(
            f"{step.rate_per_s:,.4g}",
            f"{s.requests_per_s:,.4g}",
            f"{s.tokens_per_s:,.4g}",
            seconds(s.all.ttft.p50),
            seconds(s.all.ttft.p99),
            seconds(s.all.latency.p99),
            _bad(s.all.failed + s.all.cut),
            Text("yes", style="green") if step.held else Text(step.why, style="red"),
        )
    _wide(console).print(table)
    text = f"knee: holds {knee_per_s:,.4g} requests/s" if knee_per_s else "no rate held, not even the lowest"
    console.print(text, style="bold", highlight=False)


def show_differences(console: Console, names: tuple[str, str], differences: Sequence[Difference]) -> None:
    """Two runs beside each other."""
    table = Table(title=f"{names[1]} against {names[0]}", title_justify="left")
    for name in ("", "", names[0], names[1], "change", "95 % interval of the difference", ""):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    last = ""
    for d in differences:
        interval = "too few answers" if math.isnan(d.low) else f"{_signed(d.low)} .. {_signed(d.high)}"
        word = (
            Text("faster", style="green") if d.high < 0.0 else Text("slower", style="red") if d.low > 0.0 else Text("")
        )
        if d.scenario != last and last:
            table.add_section()
        table.add_row(
            d.scenario if d.scenario != last else "",
            d.metric.replace("_", " "),
            seconds(d.first),
            seconds(d.second),
            f"{d.change:+.1%}",
            interval,
            word,
        )
        last = d.scenario
    _wide(console).print(table)


def show_beside(console: Console, names: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Counts and rates of several runs."""
    table = Table()
    for name in ("", *names):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, *texts in lines:
        bad = [name in ("failed", "cut") and text != "0" for text in texts]
        table.add_row(name, *(Text(t, style="red" if b else "") for t, b in zip(texts, bad, strict=True)))
    _wide(console).print(table)


def _signed(value: float) -> str:
    return ("+" if value > 0.0 else "") + seconds(value)
