"""A finished run as one JSON document: figures, verdict, and the samples that a comparison needs. PURE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exaserve.bench.load import LoadResult
from exaserve.bench.record import Ending, Record
from exaserve.bench.slo import GateResult
from exaserve.bench.stats import Summary
from exaserve.bench.telemetry import ServerSeries
from exaserve.report import GateView, HeatView, RunView, ScenarioView, StepView, number, seconds

__all__ = [
    "CSV_COLUMNS",
    "KIND",
    "BenchResult",
    "RateStep",
    "client_problems",
    "csv_rows",
    "document",
    "error_kinds",
    "lines_beside",
    "run_view",
    "unlike",
]

KIND = "exaserve-bench"
VERSION = 1
SAMPLES_MAX = 200_000
"""Answers per scenario in the document; of more, evenly many are kept."""
HEAT_COLUMNS_MAX = 60

OFFERED_UNLIKE = 0.02
"""Share by which the offered rates of two runs may differ without a word."""

LAG_P99_S, LAG_P99_SHARE = 0.005, 0.05
LAG_MAX_S, LAG_MAX_SHARE = 0.05, 0.10
CPU_SHARE_MAX = 0.9


@dataclass(frozen=True, slots=True)
class RateStep:
    """One rate of a run that steps it up."""

    rate_per_s: float
    summary: Summary
    held: bool
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {"rate_per_s": self.rate_per_s, "held": self.held, "why": self.why, "summary": self.summary.as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Everything a run gave.

    Attributes:
        name: in tables and plots.
        facts: what was run, as names and values for people and programs.
        records: those due in the measured time.
        spoilt: why the client was not fit to measure; empty for a valid run.
        notes: what else to know.
        cost_per_1000: of requests, in the currency of ``--cost-per-hour``.
    """

    name: str
    facts: Mapping[str, Any]
    summary: Summary
    records: Sequence[Record]
    client: LoadResult
    spoilt: Sequence[str] = ()
    notes: Sequence[str] = ()
    gates: Sequence[GateResult] = ()
    goodput_per_s: float | None = None
    cost_per_1000: float | None = None
    telemetry: ServerSeries = field(default_factory=ServerSeries)
    steps: Sequence[RateStep] = ()

    @property
    def passed(self) -> bool | None:
        """None where there is nothing to judge by, the run is spoilt, or an objective was not measured. A run without
        one good answer has failed whatever the objectives."""
        if not self.summary.all.ok or any(gate.passed is False for gate in self.gates):
            return None if self.spoilt and self.summary.all.ok else False
        judged = bool(self.gates) and all(gate.passed for gate in self.gates)
        return True if judged and not self.spoilt else None


def client_problems(result: LoadResult, summary: Summary) -> list[str]:
    """Why the client's own figures cannot be trusted. A client that is late adds its lateness to every latency."""
    problems = []
    # From the sent time: what the client's lateness has added to the other latency must not excuse it.
    ttft = summary.all.ttft_sent
    p99_allowed = max(LAG_P99_S, LAG_P99_SHARE * (0.0 if math.isnan(ttft.p50) else ttft.p50))
    max_allowed = max(LAG_MAX_S, LAG_MAX_SHARE * (0.0 if math.isnan(ttft.p99) else ttft.p99))
    if result.lag_p99_s > p99_allowed:
        problems.append(
            f"1 % of the time the client was late by {seconds(result.lag_p99_s)} or more "
            f"({seconds(p99_allowed)} is tolerable here): use more --processes or a quieter machine"
        )
    if result.lag_max_s > max_allowed:
        problems.append(
            f"the client stood still for {seconds(result.lag_max_s)} ({seconds(max_allowed)} is tolerable here)"
        )
    if result.cpu_share > CPU_SHARE_MAX:
        problems.append(
            f"a load process used {result.cpu_share:.0%} of a core: the client was at its limit, use more --processes"
        )
    return problems


def _samples(records: Sequence[Record], replicas: Mapping[str, int], scenarios: Sequence[str]) -> dict[str, Any]:
    groups: dict[str, list[Record]] = {name: [] for name in scenarios}
    for record in records:
        groups.setdefault(record.scenario, []).append(record)
    out = {}
    for name, group in groups.items():
        good = [r for r in group if r.verdict is Ending.OK and r.ttft_s is not None and r.latency_s is not None]
        step = max(1, math.ceil(len(good) / SAMPLES_MAX))
        kept = good[::step]
        out[name] = {
            "at_s": [round(r.scheduled_s, 6) for r in kept],
            "ttft_s": [round(r.ttft_s or 0.0, 6) for r in kept],
            "latency_s": [round(r.latency_s or 0.0, 6) for r in kept],
            "replica": [replicas.get(r.replica, -1) for r in kept],
        }
    return out


def document(outcome: BenchResult) -> dict[str, Any]:
    """For JSON."""
    names = sorted({record.replica for record in outcome.records if record.replica})
    client = outcome.client
    return {
        "kind": KIND,
        "version": VERSION,
        "name": outcome.name,
        "facts": dict(outcome.facts),
        "valid": not outcome.spoilt,
        "spoilt": list(outcome.spoilt),
        "notes": list(outcome.notes),
        "verdict": {
            "passed": outcome.passed,
            "objectives": [gate.as_dict() for gate in outcome.gates],
        },
        "summary": outcome.summary.as_dict(),
        "goodput_per_s": outcome.goodput_per_s,
        "cost_per_1000": outcome.cost_per_1000,
        "client": {
            "elapsed_s": client.elapsed_s,
            "lag_max_s": client.lag_max_s,
            "lag_mean_s": client.lag_mean_s,
            "lag_p99_s": client.lag_p99_s,
            "late_max_s": client.late_max_s,
            "cpu_share": client.cpu_share,
            "waited": client.waited,
            "started_at": client.started_at,
        },
        "telemetry": outcome.telemetry.as_dict(),
        "steps": [step.as_dict() for step in outcome.steps],
        "replicas": names,
        "samples": _samples(
            outcome.records, {name: i for i, name in enumerate(names)}, [s.name for s in outcome.summary.scenarios]
        ),
    }


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def run_view(doc: Mapping[str, Any]) -> RunView:
    """The report of a document. KeyError, TypeError or ValueError where it is none."""
    summary, samples = doc["summary"], doc["samples"]
    scenarios = []
    for stats in summary["scenarios"]:
        mine = samples.get(stats["name"], {"at_s": [], "ttft_s": [], "latency_s": []})
        scenarios.append(
            ScenarioView(
                stats["name"],
                mine["at_s"],
                mine["ttft_s"],
                mine["latency_s"],
                stats["requests"],
                stats["failed"],
                stats["cut"],
            )
        )
    objectives = {}
    for gate in doc["verdict"]["objectives"]:
        if gate["metric"] == "p99_ttft_ms":
            objectives[gate["scenario"]] = gate["limit"] / 1000.0
    return RunView(
        name=doc["name"],
        duration_s=summary["duration_s"],
        window_s=summary["windows"]["window_s"],
        scenarios=scenarios,
        facts=[(str(name), _words(value)) for name, value in doc["facts"].items()],
        notes=[*(f"This run is not valid: {reason}." for reason in doc["spoilt"]), *doc["notes"]],
        rows=_rows(doc),
        gates=[_gate(gate) for gate in doc["verdict"]["objectives"]],
        heats=_heats(doc),
        steps=[_step(step) for step in doc["steps"]],
        objectives=objectives,
    )


def _words(value: object) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


def _gate(gate: Mapping[str, Any]) -> GateView:
    return GateView(
        gate["objective"],
        _measured_text(gate),
        gate["passed"],
        answers=f"{gate['samples']:,}" if gate["samples"] else "",
        few="weak" in gate["evidence"],
    )


def _measured_text(gate: Mapping[str, Any]) -> str:
    if gate["value"] is not None:
        return number(gate["value"])
    return str(gate["evidence"].get("reason", "not measured"))


def _step(step: Mapping[str, Any]) -> StepView:
    ttft = step["summary"]["all"]["ttft"]
    return StepView(
        step["rate_per_s"],
        step["summary"]["requests_per_s"],
        _number(ttft["p50"]),
        _number(ttft["p99"]),
        step["held"],
    )


def _rows(doc: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines of the table below the latencies."""
    summary, every = doc["summary"], doc["summary"]["all"]
    rows = [
        ("offered requests/s", number(summary["offered_per_s"])),
        ("answered requests/s", number(summary["requests_per_s"])),
        ("tokens/s", number(summary["tokens_per_s"])),
        ("time per token after the first, P50 / P99", _pair(every["token_gap"])),
        ("longest gap in an answer, P50 / P99", _pair(every["stall"])),
        ("from the sent time: first token P50 / P99", _pair(every["ttft_sent"])),
    ]
    if not math.isnan(spread := _number(summary["windows"]["stdev_s"])):
        rows.append(("spread of windows' P99", f"± {seconds(spread)}"))
    if every.get("reasoned"):
        rows.append(("first token after the reasoning, P50 / P99", _pair(every["ttfa"])))
        rows.append(("reasoning tokens per answer", number(every["reasoning_tokens"] / every["reasoned"])))
    if doc["goodput_per_s"] is not None:
        rows.append(("goodput (within objectives) requests/s", number(doc["goodput_per_s"])))
    if doc["cost_per_1000"] is not None:
        rows.append(("cost per 1,000 requests", number(doc["cost_per_1000"])))
    figures = doc["telemetry"]["figures"]
    for name, text in (("gpu_use", "accelerator use"), ("kv_max", "KV use, largest"), ("kv_spread", "KV use, spread")):
        if name in figures:
            rows.append((text, f"{figures[name]:.3f}" if name == "kv_spread" else f"{figures[name]:.1%}"))
    rows += [(name.replace("_", " "), number(value)) for name, value in doc["telemetry"].get("counts", {}).items()]
    return rows


def lines_beside(docs: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Counts and rates of several documents, one line for each figure: its name, then one text per document."""
    found = [
        {
            **{name: f"{doc['summary']['all'][name]:,}" for name in ("requests", "failed", "cut")},
            **dict(_rows(doc)),
        }
        for doc in docs
    ]
    names = dict.fromkeys(name for rows in found for name in rows)
    return [(name, *(rows.get(name, "-") for rows in found)) for name in names]


_ERROR_TEXTS = {
    "connect": "no connection",
    "lost": "connection lost",
    "timeout": "timed out",
    "protocol": "no HTTP answer",
    "error_event": "error event",
    "no_done": "no [DONE]",
    "no_answer": "no usable answer",
    "unfinished": "unfinished at the end",
    "earlier_turn": "after a failed turn",
}


def error_kinds(errors: Mapping[str, int], statuses: Mapping[int, int]) -> list[str]:
    """What went wrong, in words, with counts."""
    kinds = [f"{_ERROR_TEXTS.get(name, name)} ({n:,})" for name, n in errors.items() if name != "status"]
    return kinds + [f"status {code} ({n:,})" for code, n in statuses.items() if code >= 300]


CSV_COLUMNS = (
    "run",
    "endpoint",
    "load",
    "rate",
    "scenario",
    "requests",
    "ok",
    "failed",
    "cut",
    "measured_s",
    "offered_per_s",
    "answered_per_s",
    "tokens_per_s",
    *(
        f"{what}_{figure}_s"
        for what in ("ttft", "ttfa", "latency", "tpot", "stall")
        for figure in ("mean", "p50", "p90", "p99", "max")
    ),
    "tokens",
    "reasoning_tokens",
    "prompt_tokens",
    "cached_tokens",
)
"""Columns of the table of figures; rates stand in the line of all scenarios only."""


def csv_rows(outcome: BenchResult) -> list[list[object]]:
    """One line per scenario, and one of all; "" where there is no figure."""
    summary, facts = outcome.summary, outcome.facts
    rows: list[list[object]] = []
    for stats in (*summary.scenarios, summary.all):
        whole = stats is summary.all
        rates = (summary.offered_per_s, summary.requests_per_s, summary.tokens_per_s) if whole else ("", "", "")
        spread = [
            "" if math.isnan(value) else round(value, 6)
            for each in (stats.ttft, stats.ttfa, stats.latency, stats.token_gap, stats.stall)
            for value in (each.mean, each.p50, each.p90, each.p99, each.max)
        ]
        rows.append(
            [
                *(outcome.name, facts["endpoint"], facts["load"], facts["rate"], stats.name, stats.requests, stats.ok),
                *(stats.failed, stats.cut, round(summary.duration_s - summary.warmup_s, 6), *rates, *spread),
                *(stats.tokens, stats.reasoning_tokens, stats.prompt_tokens, stats.cached_tokens),
            ]
        )
    return rows


_ALIKE = ("workload", "load", "seed", "stream", "duration", "prompt lengths")


def unlike(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """In what two documents' runs differ that should be alike for their comparison to be one of the servers."""
    out = []
    for name in _ALIKE:
        one, two = first["facts"].get(name), second["facts"].get(name)
        if one != two:
            out.append(f"{name}: {_words(one)} and {_words(two)}")
    one, two = first["summary"]["offered_per_s"], second["summary"]["offered_per_s"]
    if abs(one - two) > OFFERED_UNLIKE * max(one, two):
        out.append(f"offered rate: {number(one)} and {number(two)} requests/s")
    return out


def _pair(figures: Mapping[str, Any]) -> str:
    return f"{seconds(_number(figures['p50']))} / {seconds(_number(figures['p99']))}"


def _heats(doc: Mapping[str, Any]) -> list[HeatView]:
    heats = []
    names, duration_s = doc["replicas"], doc["summary"]["duration_s"]
    count = min(HEAT_COLUMNS_MAX, max(1, math.ceil(duration_s)))
    columns = [i * duration_s / count for i in range(count)]
    if len(names) > 1:
        worst = [[math.nan] * count for _ in names]
        for mine in doc["samples"].values():
            for at, ttft, replica in zip(mine["at_s"], mine["ttft_s"], mine["replica"], strict=True):
                column = min(count - 1, int(at / duration_s * count))
                if replica >= 0 and not worst[replica][column] >= ttft:
                    worst[replica][column] = ttft
        caption = "slowest first token of each replica, by the time at which requests were due (seconds)"
        heats.append(HeatView("Slowest first token", names, columns, worst, caption=caption))
    kv = doc["telemetry"]["kv"]
    if kv:
        rows = sorted(kv)
        use = [[math.nan] * count for _ in rows]
        for line, name in zip(use, rows, strict=True):
            for at, value in kv[name]:
                column = min(count - 1, max(0, int(at / duration_s * count)))
                line[column] = value if math.isnan(line[column]) else max(line[column], value)
        heats.append(HeatView("KV cache use", rows, columns, use, "share", 1.0, "largest share of blocks in use"))
    return heats
