"""A simulated run as the report's page and JSON want it."""

from __future__ import annotations

import numpy as np

from exaserve.report import GateView, RunView, ScenarioView
from exaserve.simulate.demand import SimDemand
from exaserve.simulate.objectives import Objective
from exaserve.simulate.record import RunStats
from exaserve.simulate.recorder import Recorder
from exaserve.simulate.settings import SimSettings

__all__ = ["POINTS_MAX", "run_view"]

POINTS_MAX = 40_000
"""Answers per scenario that a page shows; of more, every k-th is taken."""


def run_view(
    policy: str,
    demand: SimDemand,
    recorder: Recorder,
    stats: RunStats,
    settings: SimSettings,
    objectives: tuple[Objective, ...] = (),
) -> RunView:
    """One policy's run."""
    at = demand.at
    first = np.frombuffer(recorder.first, dtype=np.float64)
    last = np.frombuffer(recorder.last, dtype=np.float64)
    good = (at >= settings.warmup_s) & (np.frombuffer(recorder.error, dtype=np.int8) == 0)
    scenarios = []
    notes = []
    for index, name in enumerate(demand.scenarios):
        rows = np.flatnonzero(good & (demand.scenario == index))
        share = -(-len(rows) // POINTS_MAX) or 1
        if share > 1:
            notes.append(f"{name}: plots show every {share}th of {len(rows):,} answers")
        rows = rows[::share]
        figures = stats.scenario(name)
        scenarios.append(
            ScenarioView(
                name,
                at[rows].tolist(),
                (first[rows] - at[rows]).tolist(),
                (last[rows] - at[rows]).tolist(),
                figures.requests,
                figures.failed,
            )
        )
    return RunView(
        name=policy,
        duration_s=demand.duration_s,
        window_s=settings.window_s,
        scenarios=scenarios,
        notes=notes,
        rows=[
            ("spread of P99 over windows", f"± {stats.windows_std:.3f} s"),
            ("waited in the admission queue", f"{stats.queued:,}"),
            ("retried", f"{stats.retried:,}"),
            ("idle capacity while anyone waited", f"{stats.idle_share:.1%}"),
            ("errors", ", ".join(f"{name} {count:,}" for name, count in stats.errors.items()) or "none"),
        ],
        gates=[_gate(objective, stats) for objective in objectives],
        objectives={
            each.scenario: each.limit for each in objectives if each.figure == "ttft_p99" and each.scenario != "all"
        },
    )


def _gate(objective: Objective, stats: RunStats) -> GateView:
    value = objective.value(stats)
    text = f"{value:.2%}" if objective.figure == "errors" else f"{1000.0 * value:,.0f} ms"
    return GateView(objective.text, text, objective.kept(stats))
