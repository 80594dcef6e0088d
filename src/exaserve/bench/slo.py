"""Objectives: what a run must reach, and the verdict with its evidence. PURE.

An objective is ``[SCENARIO:] METRIC OP VALUE``, such as ``A: p99_ttft_ms<=850`` or ``error_share<0.01``; without a
scenario it is about all requests. A figure that was not measured is a missed objective, never a met one; of a set that
goes by a name (``reference``), it is *not measured*, which is neither.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exaserve.bench.record import Ending, Record
from exaserve.bench.stats import Summary
from exaserve.domain.errors import ConfigError
from exaserve.workload import percentile

__all__ = [
    "REFERENCE_OBJECTIVES",
    "Gate",
    "GateResult",
    "RunFigures",
    "evaluate",
    "goodput",
    "parse_gate",
    "parse_objectives",
    "reference_gates",
    "unknown_scenarios",
]

REFERENCE_OBJECTIVES = (
    "A: p99_ttft_ms<=850",
    "B: p99_ttft_ms<=2200",
    "C: p99_ttft_ms<=5500",
    "gpu_use>=0.78",
    "out_of_memory<=0",
    "nccl_failures<=0",
    "discovery_failures<=0",
)
"""What goes with the reference mix, under the name ``reference``; those of the machines need a metrics address."""
WORST_MAX = 5
"""Requests named as evidence."""

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
}
_TEXT = re.compile(r"^(?:(?P<scenario>[^:<>=]+):)?\s*(?P<metric>[a-zA-Z0-9_]+)\s*(?P<op><=|>=|<|>)\s*(?P<value>\S+)$")
_LATENCY = re.compile(
    r"^(?:(?P<q>p\d{2}|p99\d{1,2})|(?P<other>mean|max))_(?P<what>ttft_sent|ttft|ttfa|latency|tpot|stall)_(?P<unit>ms|s)$"
)
_VALUES: dict[str, Callable[[Record], float | None]] = {
    "ttft": lambda r: r.ttft_s,
    "ttfa": lambda r: r.ttfa_s,
    "ttft_sent": lambda r: r.ttft_sent_s,
    "latency": lambda r: r.latency_s,
    "tpot": lambda r: r.token_gap_s,
    "stall": lambda r: r.stall_s,
}
_LARGER_IS_BETTER = frozenset({"goodput_share", "goodput_per_s", "requests_per_s", "tokens_per_s", "gpu_use"})
_OF_MACHINES = ("discovery_failures", "gpu_use", "kv_max", "kv_spread", "nccl_failures", "out_of_memory")
_OF_THE_RUN = (*_OF_MACHINES, "cost_per_1000")
_OTHERS = (
    *sorted(_LARGER_IS_BETTER - {"gpu_use"}),
    *_OF_THE_RUN,
    "cut",
    "error_share",
    "failed",
    "stdev_p99_ttft_ms",
    "stdev_p99_ttft_s",
)


@dataclass(frozen=True, slots=True)
class Gate:
    """One objective. ``scenario`` "" is all requests; ``limit`` in the metric's own unit.

    Attributes:
        if_measured: part of a named set: where the run has no such figure, the objective is not missed.
    """

    scenario: str
    metric: str
    op: str
    limit: float
    if_measured: bool = False

    @property
    def text(self) -> str:
        return f"{self.scenario + ': ' if self.scenario else ''}{self.metric} {self.op} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class GateResult:
    """An objective with what was measured.

    Attributes:
        value: None where it was not measured.
        passed: None where it was not measured and that is no miss.
        samples: answers behind the value, 0 for figures of the whole run.
        evidence: what shows it: requests over the limit, the worst of them, errors by kind.
    """

    gate: Gate
    value: float | None
    passed: bool | None
    samples: int
    evidence: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "objective": self.gate.text,
            "scenario": self.gate.scenario or "all",
            "metric": self.gate.metric,
            "limit": self.gate.limit,
            "value": self.value,
            "passed": self.passed,
            "samples": self.samples,
            "evidence": self.evidence,
        }


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What objectives are judged by.

    Attributes:
        records: those due in the measured time.
        run: figures of the whole run by name (``kv_max`` …), as far as they are known.
    """

    records: Sequence[Record]
    summary: Summary
    run: Mapping[str, float] = field(default_factory=dict)


def parse_gate(text: str) -> Gate:
    """One objective.

    Raises:
        ConfigError: it does not read as one, or its metric is unknown.
    """
    match = _TEXT.match(text.strip())
    if match is None:
        raise ConfigError(f"objective {text!r} must look like 'A: p99_ttft_ms<=850'")
    return _gate((match["scenario"] or "").strip(), match["metric"], match["op"], match["value"])


def _gate(scenario: str, metric: str, op: str, value: object) -> Gate:
    metric = metric.lower()
    if metric not in _OTHERS and _LATENCY.match(metric) is None:
        raise ConfigError(
            f"objective metric {metric!r} is unknown; it is a latency such as p99_ttft_ms (p50 … p999, mean, max; "
            f"ttft, ttft_sent, ttfa, latency, tpot, stall; ms or s), or one of {', '.join(sorted(_OTHERS))}"
        )
    try:
        limit = float(str(value).rstrip("%")) / (100.0 if str(value).endswith("%") else 1.0)
    except ValueError:
        raise ConfigError(f"objective limit {value!r} of {metric} must be a number") from None
    if not math.isfinite(limit):
        raise ConfigError(f"objective limit {value!r} of {metric} must be finite")
    return Gate("" if scenario == "all" else scenario, metric, op, limit)


def reference_gates(scenarios: Sequence[str]) -> list[Gate]:
    """:data:`REFERENCE_OBJECTIVES`, those of the scenarios that a run has and those of the machines.

    Raises:
        ConfigError: the run has none of the scenarios.
    """
    gates = [parse_gate(text) for text in REFERENCE_OBJECTIVES]
    mine = [replace(g, if_measured=not g.scenario) for g in gates if g.scenario in ("", *scenarios)]
    if not any(gate.scenario for gate in mine):
        raise ConfigError("--slo reference: the run has none of the scenarios A, B and C; give limits of your own")
    return mine


def unknown_scenarios(gates: Iterable[Gate], scenarios: Sequence[str]) -> list[str]:
    """Scenarios that objectives name and a run does not have."""
    return [gate.scenario for gate in gates if gate.scenario and gate.scenario not in scenarios]


def parse_objectives(document: Any, name: str = "objectives") -> list[Gate]:
    """Objectives of a YAML or JSON document: a list of texts, or a mapping ``{scenario: {metric: limit}}``, where the
    direction goes without saying. Either may stand under the key ``slo``.

    Raises:
        ConfigError: neither, or a metric is unknown.
    """
    if isinstance(document, dict) and set(document) == {"slo"}:
        document = document["slo"]
    if isinstance(document, list) and all(isinstance(item, str) for item in document):
        return [parse_gate(item) for item in document]
    if not isinstance(document, dict) or not all(isinstance(value, dict) for value in document.values()):
        raise ConfigError(f"{name}: must be a list such as ['A: p99_ttft_ms<=850'], or a mapping of scenarios")
    return [
        _gate(str(scenario), str(metric), ">=" if str(metric).lower() in _LARGER_IS_BETTER else "<=", limit)
        for scenario, limits in document.items()
        for metric, limit in limits.items()
    ]


def evaluate(gates: Iterable[Gate], measured: RunFigures) -> list[GateResult]:
    """Judges every objective."""
    every = list(gates)
    return [_judge(gate, every, measured) for gate in every]


def goodput(records: Sequence[Record], gates: Sequence[Gate]) -> int:
    """Requests with a good answer within every limit that an objective sets for one request of their scenario."""
    limits: dict[str, list[tuple[Callable[[Record], float | None], float]]] = {}
    for gate in gates:
        match = _LATENCY.match(gate.metric)
        if match is not None and gate.op in ("<", "<="):
            factor = 1e-3 if match["unit"] == "ms" else 1.0
            limits.setdefault(gate.scenario, []).append((_VALUES[match["what"]], gate.limit * factor))

    def good(record: Record) -> bool:
        if record.verdict is not Ending.OK:
            return False
        mine = limits.get(record.scenario, []) + limits.get("", [])
        return all((value := read(record)) is None or value <= limit for read, limit in mine)

    return sum(good(record) for record in records)


def _judge(gate: Gate, gates: Sequence[Gate], measured: RunFigures) -> GateResult:
    records = [r for r in measured.records if not gate.scenario or r.scenario == gate.scenario]
    match = _LATENCY.match(gate.metric)
    if match is not None:
        return _latency(gate, match, records)
    value, samples, evidence = _figure(gate, gates, records, measured)
    if value is None:
        return GateResult(gate, None, None if gate.if_measured else False, samples, evidence)
    return GateResult(gate, value, _OPERATORS[gate.op](value, gate.limit), samples, evidence)


def _latency(gate: Gate, match: re.Match[str], records: Sequence[Record]) -> GateResult:
    read, factor = _VALUES[match["what"]], 1000.0 if match["unit"] == "ms" else 1.0
    found = [(v * factor, r) for r in records if r.verdict is Ending.OK and (v := read(r)) is not None]
    if not found:
        good = sum(r.verdict is Ending.OK for r in records)
        return GateResult(gate, None, passed=False, samples=0, evidence={"reason": _why_none(match["what"], good)})
    ordered = sorted(v for v, _ in found)
    if match["other"] == "mean":
        value = math.fsum(ordered) / len(ordered)
    elif match["other"] == "max":
        value = ordered[-1]
    else:
        digits = match["q"][1:]
        value = percentile(ordered, int(digits) / 10.0 ** len(digits))
    passed = _OPERATORS[gate.op](value, gate.limit)
    over = sum(not _OPERATORS[gate.op](v, gate.limit) for v in ordered)
    worst = sorted(found, key=lambda pair: pair[0], reverse=gate.op in ("<", "<="))[:WORST_MAX]
    evidence: dict[str, Any] = {
        "beyond_limit": over,
        "worst": [
            {"index": r.index, "scheduled_s": round(r.scheduled_s, 6), "value": round(v, 6), "replica": r.replica}
            for v, r in worst
        ],
    }
    if match["q"] and len(ordered) * (1.0 - int(match["q"][1:]) / 10.0 ** len(match["q"][1:])) < 1.0:
        evidence["weak"] = f"{len(ordered)} answers are too few for {match['q']}: it is close to the largest"
    return GateResult(gate, value, passed, len(ordered), evidence)


def _why_none(what: str, good: int) -> str:
    """Why good answers have no such figure."""
    if not good:
        return "not judged: no good answer to measure"
    if what in ("tpot", "stall"):
        return f"not judged: {good:,} answers came in one piece"
    return f"not judged: {good:,} answers do not show it"


def _how_to_measure(metric: str) -> str:
    sources = {
        "cost_per_1000": "give --cost-per-hour",
        "gpu_use": "give --metrics of a gateway with node agents, or --prometheus",
        "out_of_memory": "no metrics address told of engines' ends",
        "nccl_failures": "no metrics address told of engines' ends",
        "discovery_failures": "give --metrics of a gateway with a registry",
    }
    return f"not measured: {sources.get(metric, 'give --metrics or --prometheus')}"


def _figure(
    gate: Gate, gates: Sequence[Gate], records: Sequence[Record], measured: RunFigures
) -> tuple[float | None, int, dict[str, Any]]:
    """Value, samples and evidence of a metric that is not a latency."""
    metric, summary, count = gate.metric, measured.summary, len(records)
    if metric in _OF_THE_RUN:
        value = measured.run.get(metric)
        return value, 0, {} if value is not None else {"reason": _how_to_measure(metric)}
    stats = next((s for s in (summary.all, *summary.scenarios) if s.name == (gate.scenario or "all")), None)
    if stats is None or not count:
        return None, 0, {"reason": f"no request of {gate.scenario or 'any scenario'}"}
    if metric in ("failed", "cut"):
        return float(getattr(stats, metric)), count, {"errors": stats.errors, "statuses": stats.statuses}
    if metric == "error_share":
        return (stats.failed + stats.cut) / count, count, {"errors": stats.errors, "statuses": stats.statuses}
    if metric.startswith("goodput"):
        good = goodput(records, gates)
        measured_s = max(summary.duration_s - summary.warmup_s, 1e-9)
        return good / (count if metric == "goodput_share" else measured_s), count, {"good": good}
    if metric.startswith("stdev"):
        factor = 1000.0 if metric.endswith("_ms") else 1.0
        spread = summary.windows.stdev_s * factor
        windows = [None if v is None else v * factor for v in summary.windows.p99_s]
        return (None if math.isnan(spread) else spread), count, {"windows": windows}
    if gate.scenario:
        return None, 0, {"reason": f"{metric} is measured over all scenarios only"}
    return float(getattr(summary, metric)), count, {}
