"""Prints how sure a plan's speeds are: predictions and their intervals, what was sized with, who measured the like."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from exaserve.cli.tables import Cell, Column, print_table
from exaserve.perfmodel.nearest import Evidence, NearRow
from exaserve.planning import Band, ClusterPlan

__all__ = ["band_text", "seconds_text", "show_evidence", "show_speed"]


def seconds_text(value: float, digits: int = 0) -> str:
    """Milliseconds below a second."""
    if not math.isfinite(value):
        return "-"
    return f"{value * 1e3:,.{digits}f} ms" if value < 1 else f"{value:,.2f} s"


def band_text(band: Band | None, digits: int = 0) -> str:
    """A time with its interval: ``21.3 ms (18.0 to 25.6)``; the unit of the ends is named where it is another."""
    if band is None:
        return ""
    if not math.isfinite(band.predicted):
        return f"no end (from {seconds_text(band.low, digits)})"
    head, *ends = (seconds_text(v, digits) for v in (band.predicted, band.low, band.high))
    unit = head[head.index(" ") :]
    if all(end.endswith(unit) for end in ends):
        ends = [end.removesuffix(unit) for end in ends]
    return f"{head} ({ends[0]} to {ends[1] if math.isfinite(band.high) else 'no end'})"


def show_speed(console: Console, plan: ClusterPlan) -> None:
    """What is predicted, with its interval, and what was sized with; or whose measurement it is."""
    lines = _lines(plan)
    if lines:
        console.print(Text("\nSpeeds", style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _lines(plan: ClusterPlan) -> list[str]:
    best, r, found = plan.best, plan.request, plan.predicted
    if r.profile is not None:
        errors = [
            f"{name} {abs(e.error / e.value):.1%}" for name, e in r.profile.constants.items() if e.value and e.error
        ]
        points = len(r.profile.prefill) + len(r.profile.decode)
        how = f": its {points} points, combined with the prediction" if points and not r.profile.combined else ""
        return [f"measured by the given profile{how}; standard errors: {', '.join(errors) or 'none given'}"]
    if best is None or best.certainty is None or found is None:
        return []
    c = best.certainty
    alone = f"a request alone: {band_text(found.alone_token_s, 1)} per token, first token of "
    lines = [f"{alone}{r.demand.prompt:,.0f} in {band_text(found.alone_first_s)}"]
    if r.demand_given:
        rate, target = found.rate_s, f"{r.targets.tpot_s * 1e3:g} ms per token"
        lines.append(
            f"one replica: {rate.predicted:,.2f} requests/s ({rate.low:,.2f} to {rate.high:,.2f}) within {target}; "
            f"sized with {best.rate_max_s:,.2f}"
            if rate.high
            else f"one replica: even a request alone takes longer than {target}"
        )
    if r.demand_given and found.token_s is not None and plan.now is not None:
        lines.append(
            f"under this demand: {band_text(found.token_s, 1)} per token; sized with "
            f"{seconds_text(plan.now.state.step_s, 1)}"
        )
    if r.demand_given:
        lines.append(
            f"sized for {c.confidence:.0%} (--confidence): steps {c.token_factor:.2f} and first tokens "
            f"{c.token_factor * c.first_factor:.2f} times as long as predicted"
        )
    return [*lines, *c.says, c.measured]


def show_evidence(console: Console, found: Evidence) -> None:
    """The nearest public measurements, with what the model says of each."""
    columns = (
        Column("model", left=True), Column("card", left=True), Column("TP", 1), Column("weights", 1, left=True),
        Column("engine", 1, left=True), Column("load", 2, left=True, wrap=True),
        Column("measured", left=True, wrap=True), Column("predicted", left=True, wrap=True),
        Column("source", 3, left=True, wrap=True),
    )  # fmt: skip
    print_table(console, "Nearest public measurements", columns, [_near(row) for row in found.nearest])
    line = f"measured cards like this: {found.card_rows:,} rows, {found.like_rows:,} of this format and kind of model"
    console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _near(row: NearRow) -> list[Cell]:
    m = row.measurement
    lengths = f"{m.prompt:,.0f} + {m.output:,.0f} tokens"
    load = {
        "clients": f"{m.clients:,.0f} client{'' if m.clients == 1 else 's'}, {lengths}",
        "first": f"a prompt of {m.prompt:,.0f} tokens",
        "offline": f"all at once, {lengths}",
        "burst": f"all at once through a server, {lengths}",
        "static": f"a batch of {m.clients:,.0f}, {lengths}",
    }[m.kind]
    texts = [_figures(row.published), _figures(row.predicted)]
    return [m.model, m.card, str(m.tp), m.format, f"{m.engine} {m.version}".strip(), load, *texts, row.source]


def _figures(values: Mapping[str, float]) -> str:
    names = {"token": "a token", "first": "first", "among few": "first", "static": "in all"}
    texts = [
        f"{value:,.0f} tokens/s" if name == "offline" else f"{seconds_text(value, 1)} {names[name]}"
        for name, value in sorted(values.items(), reverse=True)
    ]
    return ", ".join(texts)
