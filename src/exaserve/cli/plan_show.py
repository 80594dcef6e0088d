"""Prints a plan: what fits, the layout, load, network, cost; the sweep; every term; a log beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from exaserve.planning import ClusterPlan, Comparison, SweepRow, Term
from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB

__all__ = ["show_comparison", "show_plan", "show_sweep", "show_terms"]

OPTIONS_SHOWN_MAX = 8
SWEEP_SHOWN_MAX = 20
NOT_MUCH = 0.05
GAP = 3

Row = tuple[str, Sequence[str]]
"""Style and cells."""


def _print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    left: Sequence[str] = (),
    spare: Sequence[str] = (),
) -> None:
    """A table of short cells that never wrap; ``spare`` columns go first where the terminal is too narrow."""
    kept = list(range(len(columns)))
    widths = [max([len(c), *(len(cells[i]) for _, cells in rows)]) for i, c in enumerate(columns)]
    for name in spare:
        if sum(widths[i] + GAP for i in kept) <= console.width:
            break
        kept.remove(columns.index(name))
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i in kept:
        is_left = i == kept[0] or columns[i] in left
        table.add_column(columns[i], justify="left" if is_left else "right", no_wrap=not is_left, overflow="fold",
                         min_width=min(widths[i], 12) if i == kept[0] else None)  # fmt: skip
    for style, cells in rows:
        table.add_row(*(cells[i] for i in kept), style=style)
    console.print(table)


def _bullets(console: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    if lines:
        console.print(Text(title, style="bold"))
        for line in lines:
            _line(console, line, style)
        console.print()


def _line(console: Console, line: str, style: str = "") -> None:
    """One indented paragraph."""
    console.print(Padding(Text(line, style=style), (0, 0, 0, 2), expand=False))


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.2f} s"


def show_plan(console: Console, plan: ClusterPlan) -> None:
    """The whole plan in a terminal."""
    r, best = plan.request, plan.best
    size = f"{r.arch.parameters / 1e9:.1f} B parameters"
    if r.arch.facts.experts:
        size += f" ({r.arch.active_parameters / 1e9:.1f} B active)"
    console.print(Text(f"{r.arch.name}: {size}, {r.arch.fmt.name} weights, {len(r.arch.layers)} layers", style="bold"))
    if best is None:
        _bullets(console, "No layout", plan.notes, "red")
        return
    _show_answer(console, plan, best)
    _show_memory(console, best)
    _show_options(console, plan)
    if plan.request.demand_given:
        _show_load(console, plan)
        _show_pools(console, plan)
        _show_network(console, plan)
        _show_cost(console, plan)
    _bullets(console, "Notes", plan.notes)
    _bullets(console, "The wished count, checked", plan.claims)
    for v in plan.verdicts:
        _bullets(console, f"Perhaps not worth a cluster: {v.reason}", [f"cheaper: {v.alternative}"], "yellow")


def _show_answer(console: Console, plan: ClusterPlan, best: Option) -> None:
    r, p = plan.request, best.placement
    parts = [f"tensor parallel {p.tp}"]
    parts += [f"{p.pp} pipeline stages (idle share for one prompt {plan.bubble:.0%})"] if p.pp > 1 else []
    parts += ["experts spread whole"] if p.ep else []
    each = best.count.per_node
    where = (
        f"{each} replica{'s' if each > 1 else ''} a node" if each else f"{best.count.nodes_per_replica} nodes a replica"
    )
    if not best.memory.fits:
        head, style = "Does not start", "bold red"
    elif plan.works:
        head, style = ("Recommended" if r.demand_given else "Fits"), "bold green"
    else:
        head, style = "Starts, but does not hold the demand", "bold yellow"
    console.print(
        Text(f"{head}: {', '.join(parts)}; {where} of {r.fleet.cards_per_node} x {r.fleet.hardware.name}", style)
    )
    if plan.replicas and r.demand_given:
        counts = ((plan.replicas, "replica"), (plan.nodes, "node"), (plan.replicas * p.cards, "card"))
        texts = [f"{n:,} {name}{'' if n == 1 else 's'}" for n, name in counts]
        _line(console, f"{texts[0]} on {texts[1]}, {texts[2]}")
    if best.memory.fits:
        _line(console, f"why not more a node: {best.count.why_not_more}", "dim")
    for reason in best.reasons:
        _line(console, reason, "red")
    console.print()


def _show_memory(console: Console, best: Option) -> None:
    columns = ("stage", "layers", "usable", "weights", "outside", "peak", "KV cache", "graphs")
    rows: list[Row] = []
    for s in best.memory.stages:
        figures = (s.usable, s.weights, s.non_torch, s.activation, s.kv, s.graphs)
        rows.append(("", [str(s.stage), str(s.layers), *(f"{v / GIB:.2f}" for v in figures)]))
    _print_table(console, "Memory of a rank, GiB", columns, rows)
    rule = f"(rule of thumb for the whole replica: {best.memory.rule_gb:.0f} GB with its 30 % margin)"
    _bullets(console, f"{best.memory.request.version.label} would print", [*best.memory.says, rule])


def _show_options(console: Console, plan: ClusterPlan) -> None:
    if len(plan.options) < 2:
        return
    columns = ("TP x PP", "GiB a rank", "KV tokens", "one carries", "full first", "replicas", "cards", "cost/h")
    rows: list[Row] = []
    out = []
    for o in plan.options[:OPTIONS_SHOWN_MAX]:
        name = f"{o.placement.tp} x {o.placement.pp}{' EP' if o.placement.ep else ''}"
        if o.reasons:
            out.append(f"{name}: {o.reasons[0]}")
        if o.needed is None or o.cost is None:
            continue
        figures = [f"{o.memory.fullest_gib:.1f}", f"{o.memory.tokens:,}", f"{o.rate_max_s:.2f}/s", o.limit]
        counts = [f"{o.needed.replicas:,}", f"{o.cards:,}", f"{o.cost.hour:,.1f}"]
        rows.append(("", [name, *figures, *counts]))
    if rows:
        _print_table(console, "Layouts", columns, rows, spare=("KV tokens", "GiB a rank"))
    _bullets(console, "Layouts that are out", out)


def _show_load(console: Console, plan: ClusterPlan) -> None:
    now = plan.now
    if now is None:
        return
    speed = f"{now.state.step_s * 1e3:.1f} ms per token"
    share = plan.request.demand.rate_s / plan.mixed_capacity_s if plan.mixed_capacity_s else now.utilisation
    head = f"Load: {share:.0%} of what {plan.replicas:,} replicas carry in the targets, {speed} (estimated)"
    columns = ("class", "requests/s", "in + out", "P50 first", "P99 first", "allowed", "alone up to")
    rows: list[Row] = []
    for c, latency in zip(plan.request.demand.classes, now.per_class, strict=True):
        cells = [
            c.name,
            f"{c.rate_s:,.1f}",
            f"{c.prompt_tokens:,} + {c.output_tokens:,}",
            _seconds(latency.ttft_p50_s),
            _seconds(latency.ttft_p99_s),
            _seconds(latency.target_s),
            f"{plan.capacity.get(c.name, 0):,.1f}/s",
        ]
        rows.append(("" if latency.holds else "red", cells))
    _print_table(console, head, columns, rows, spare=("P50 first",))
    for h in plan.headroom:
        state = "targets still hold" if h.holds else f"targets do not hold; {h.nodes_needed:,} nodes would"
        used = f"{h.utilisation:.0%} used" if math.isfinite(h.utilisation) else "nothing left"
        what = h.name if h.nodes_lost == 1 else f"{h.name} ({h.nodes_lost} nodes)"
        _line(console, f"without one {what}: {used}, {state}")
    if plan.headroom:
        console.print()


def _show_pools(console: Console, plan: ClusterPlan) -> None:
    if not plan.pools:
        return
    columns = ("pool", "prompts up to", "KV block", "replicas", "carry")
    rows: list[Row] = []
    for pool in plan.pools:
        replicas = pool.option.needed.replicas if pool.option.needed else 0
        limit = f"{pool.prompts_up_to:,}" if pool.prompts_up_to else "any"
        cells = [pool.name, limit, str(pool.block), f"{replicas:,}" if replicas else "-", f"{pool.capacity_s:,.1f}/s"]
        rows.append(("", cells))
    _print_table(console, "Pools by input length, instead of one", columns, rows)
    total = sum(p.option.needed.replicas if p.option.needed else 0 for p in plan.pools)
    shared = plan.best.needed.replicas if plan.best and plan.best.needed else 0
    better = "pools need fewer" if 0 < total < shared else "one pool needs fewer or as many"
    _line(console, f"{total:,} replicas in pools, {shared:,} in one: {better}")
    console.print()


def _show_network(console: Console, plan: ClusterPlan) -> None:
    if plan.flows:
        columns = ("traffic", "over", "per step", "load", "of the step", "")
        rows: list[Row] = []
        for f in plan.flows:
            size = f"{f.step_bytes / 1e6:,.2f} MB" if f.step_bytes else "-"
            style = {"impossible": "red", "bottleneck": "red", "slow": "yellow"}.get(f.verdict, "")
            rows.append((style, [f.name, f.where, size, f"{f.load:.1%}", f"{f.step_share:.1%}", f.verdict]))
        _print_table(console, "Links", columns, rows, left=("over",))
    fabric = plan.fabric
    if plan.nodes > 1:
        tiers = f"{fabric.leaves} leaf and {fabric.spines} spine switches" if fabric.spines else "one switch"
        hops = "at most 2 hops" if fabric.fits else f"{fabric.hops} hops: two tiers end at {fabric.nodes_max:,} nodes"
        between = f"{fabric.uplinks:,} between tiers, " if fabric.uplinks else ""
        _line(console, f"fabric: {tiers} of {fabric.radix} ports, {fabric.node_ports:,} to nodes, {between}{hops}")
        console.print()


def _show_cost(console: Console, plan: ClusterPlan) -> None:
    c = plan.cost
    if c is None:
        return
    console.print(
        f"Cost ({c.source} prices): {c.hour:,.2f} {c.currency} an hour, {c.month:,.0f} a month; "
        f"{c.per_1000_requests:,.3f} per 1,000 requests, {c.per_million_tokens:,.3f} per million tokens "
        f"({c.per_million_output_tokens:,.2f} per million output tokens); {c.energy_kwh_hour:,.1f} kWh an hour\n"
    )


def show_terms(console: Console, terms: Sequence[Term]) -> None:
    """Every term with its formula."""
    table = Table(title="Every term", title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("term")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("formula")
    table.add_column("source")
    part = ""
    for t in terms:
        if t.part != part:
            part = t.part
            table.add_row(Text(part, style="bold"), "", "", "")
        table.add_row("  " + t.name, t.value, t.formula, t.source)
    console.print(table)


def show_sweep(console: Console, rows: Sequence[SweepRow], currency: str) -> None:
    """The best combinations, and how many are out."""
    good = [r for r in rows if r.works]
    unit = f"{currency}/M tok"
    columns = ("card", "weights", "TP", "KV tokens", "replicas", "cards", "tok/s/card", "P99 first", unit)
    shown: list[Row] = []
    for r in good[:SWEEP_SHOWN_MAX]:
        counts = [str(r.tp), f"{r.tokens:,}", f"{r.replicas:,}", f"{r.cards:,}", f"{r.tokens_s:,.0f}"]
        cells = [r.hardware, r.fmt, *counts, _seconds(r.ttft_p99_s), f"{r.per_million_tokens or 0:.3f}"]
        shown.append(("", cells))
    spare = ("KV tokens", "replicas")
    _print_table(console, "Sweep, cheapest first", columns, shown, left=("weights",), spare=spare)
    out = len(rows) - len(good)
    console.print(
        f"{len(shown)} of {len(good)} that work; {out} of {len(rows)} combinations do not (--json has the reasons)"
    )


def show_comparison(console: Console, rows: Sequence[Comparison]) -> None:
    """A log's figures beside the prediction."""
    shown: list[Row] = []
    for row in rows:
        digits = 0 if row.unit == "tokens" else 2
        figures = [f"{row.logged:,.{digits}f}", f"{row.predicted:,.{digits}f}", f"{row.deviation:+.1%}"]
        shown.append(("" if abs(row.deviation) <= NOT_MUCH else "yellow", [row.name, row.unit, *figures]))
    _print_table(
        console, "Log and prediction", ("quantity", "unit", "log", "predicted", "off by"), shown, left=("unit",)
    )
