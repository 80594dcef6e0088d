"""Prints a plan: what fits, the layout, load, network, cost; the sweep; every term; a log beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from exaserve.planning import Comparison, Plan, SweepRow, Term
from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB

__all__ = ["show_comparison", "show_plan", "show_sweep", "show_terms"]

OPTIONS_SHOWN_MAX = 8
SWEEP_SHOWN_MAX = 20
NOT_MUCH = 0.05


def _table(title: str, *columns: str, left: int = 1) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i < left else "right", overflow="fold")
    return table


def _bullets(console: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    if lines:
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(Text("  " + line, style=style))
        console.print()


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.2f} s"


def show_plan(console: Console, plan: Plan) -> None:
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
    _show_memory(console, plan, best)
    _show_options(console, plan)
    _show_load(console, plan)
    _show_network(console, plan)
    _show_cost(console, best)
    _bullets(console, "Notes", plan.notes)
    _bullets(console, "The wished count, checked", plan.claims)
    for v in plan.verdicts:
        _bullets(console, f"Perhaps not worth a cluster: {v.reason}", [f"cheaper: {v.alternative}"], "yellow")


def _show_answer(console: Console, plan: Plan, best: Option) -> None:
    r, p = plan.request, best.placement
    parts = [f"tensor parallel {p.tp}"]
    parts += [f"{p.pp} pipeline stages (idle share for one prompt {plan.bubble:.0%})"] if p.pp > 1 else []
    parts += ["experts spread whole"] if p.ep else []
    where = (
        f"{best.count.per_node} replica(s) a node"
        if best.count.per_node
        else f"one replica over {best.count.nodes_per_replica} nodes"
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
        console.print(f"  {plan.replicas:,} replicas on {plan.nodes:,} nodes, {plan.replicas * p.cards:,} cards")
    if best.memory.fits:
        console.print(Text(f"  why not more a node: {best.count.why_not_more}", style="dim"))
    for reason in best.reasons:
        console.print(Text(f"  {reason}", style="red"))
    console.print()


def _show_memory(console: Console, plan: Plan, best: Option) -> None:
    table = _table(
        "Memory of a rank, GiB", "stage", "layers", "usable", "weights", "outside", "peak", "KV cache", "graphs"
    )
    for s in best.memory.stages:
        figures = (s.usable, s.weights, s.non_torch, s.activation, s.kv, s.graphs)
        table.add_row(str(s.stage), str(s.layers), *(f"{v / GIB:.2f}" for v in figures))
    console.print(table)
    engine = best.memory.request.version.label
    lines = [
        *best.memory.says,
        f"(rule of thumb for the whole replica: {best.memory.rule_gb:.0f} GB with its 30 % margin)",
    ]
    _bullets(console, f"{engine} would print", lines)
    del plan


def _show_options(console: Console, plan: Plan) -> None:
    if len(plan.options) < 2:
        return
    table = _table("Layouts", "TP x PP", "weights", "KV tokens", "one carries", "replicas", "cards", "cost/h", "")
    table.columns[-1].justify = "left"
    for o in plan.options[:OPTIONS_SHOWN_MAX]:
        name = f"{o.placement.tp} x {o.placement.pp}{' EP' if o.placement.ep else ''}"
        if o.needed is None or o.cost is None:
            weights = f"{o.memory.weights_gib:.1f}" if o.memory.stages else "-"
            table.add_row(name, weights, f"{o.memory.tokens:,}", "-", "-", "-", "-", "; ".join(o.reasons[:1]))
            continue
        table.add_row(
            name,
            f"{o.memory.weights_gib:.1f}",
            f"{o.memory.tokens:,}",
            f"{o.rate_max_s:.2f}/s",
            f"{o.needed.replicas:,}",
            f"{o.cards:,}",
            f"{o.cost.hour:,.1f}",
            f"then {o.limit} is full" if o.works else "; ".join(o.reasons[:1]),
        )
    console.print(table)


def _show_load(console: Console, plan: Plan) -> None:
    now = plan.now
    if now is None or not plan.request.demand_given:
        return
    speed = f"{now.state.step_s * 1e3:.1f} ms per token"
    head = f"Load: {now.utilisation:.0%} of {plan.replicas:,} replicas, {speed} (estimated)"
    table = _table(head, "class", "requests/s", "tokens in + out", "P50 first", "P99 first", "allowed", "could carry")
    for c, latency in zip(plan.request.demand.classes, now.per_class, strict=True):
        style = "" if latency.holds else "red"
        table.add_row(
            c.name,
            f"{c.rate_s:,.1f}",
            f"{c.prompt_tokens:,} + {c.output_tokens:,}",
            _seconds(latency.ttft_p50_s),
            _seconds(latency.ttft_p99_s),
            _seconds(latency.target_s),
            f"{plan.capacity.get(c.name, 0):,.1f}/s alone",
            style=style,
        )
    console.print(table)
    if plan.pools:
        table = _table(
            "Pools by input length, instead of one", "pool", "prompts up to", "KV block", "replicas", "carry"
        )
        for pool in plan.pools:
            replicas = pool.option.needed.replicas if pool.option.needed else 0
            limit = f"{pool.prompts_up_to:,}" if pool.prompts_up_to else "any"
            table.add_row(
                pool.name, limit, str(pool.block), f"{replicas:,}" if replicas else "-", f"{pool.capacity_s:,.1f}/s"
            )
        console.print(table)
        total = sum(p.option.needed.replicas if p.option.needed else 0 for p in plan.pools)
        shared = plan.best.needed.replicas if plan.best and plan.best.needed else 0
        better = "pools need fewer" if 0 < total < shared else "one pool needs fewer or as many"
        console.print(f"  {total:,} replicas in pools, {shared:,} in one: {better}\n")
    for h in plan.headroom:
        state = "targets still hold" if h.holds else f"targets do not hold; {h.nodes_needed:,} nodes would"
        used = f"{h.utilisation:.0%} used" if math.isfinite(h.utilisation) else "nothing left"
        console.print(f"  without {h.nodes_lost} node(s) ({h.name}): {used}, {state}")
    if plan.headroom:
        console.print()


def _show_network(console: Console, plan: Plan) -> None:
    if plan.flows and plan.request.demand_given:
        table = _table("Links", "traffic", "over", "per step", "load", "of the step", "", left=2)
        for f in plan.flows:
            size = f"{f.step_bytes / 1e6:,.2f} MB" if f.step_bytes else "-"
            style = {"impossible": "red", "bottleneck": "red", "slow": "yellow"}.get(f.verdict, "")
            table.add_row(f.name, f.where, size, f"{f.load:.1%}", f"{f.step_share:.1%}", f.verdict, style=style)
        console.print(table)
    fabric = plan.fabric
    if plan.nodes > 1:
        tiers = f"{fabric.leaves} leaf and {fabric.spines} spine switches" if fabric.spines else "one switch"
        hops = "at most 2 hops" if fabric.fits else f"{fabric.hops} hops: two tiers end at {fabric.nodes_max:,} nodes"
        console.print(f"  fabric: {tiers} of {fabric.radix} ports, {fabric.node_ports:,} ports to nodes, "
                      f"{fabric.uplinks:,} between tiers, {hops}\n")  # fmt: skip


def _show_cost(console: Console, best: Option) -> None:
    c = best.cost
    if c is None:
        return
    console.print(
        f"Cost ({c.source} prices): {c.hour:,.2f} {c.currency} an hour, {c.month:,.0f} a month; "
        f"{c.per_1000_requests:,.3f} per 1,000 requests, {c.per_million_tokens:,.3f} per million tokens "
        f"({c.per_million_output_tokens:,.2f} per million output tokens); {c.energy_kwh_hour:,.1f} kWh an hour\n"
    )


def show_terms(console: Console, terms: Sequence[Term]) -> None:
    """Every term with its formula."""
    table = _table("Every term", "term", "value", "formula", "source")
    table.columns[2].justify = "left"
    table.columns[3].justify = "left"
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
    table = _table(
        "Sweep, cheapest first",
        "card",
        "weights",
        "TP",
        "KV tokens",
        "replicas",
        "cards",
        "tok/s/card",
        "P99 first",
        unit,
        left=2,
    )
    for r in good[:SWEEP_SHOWN_MAX]:
        table.add_row(
            r.hardware,
            r.fmt,
            str(r.tp),
            f"{r.tokens:,}",
            f"{r.replicas:,}",
            f"{r.cards:,}",
            f"{r.tokens_s:,.0f}",
            _seconds(r.ttft_p99_s),
            f"{r.per_million_tokens or 0:.3f}",
        )
    console.print(table)
    out = len(rows) - len(good)
    shown = min(len(good), SWEEP_SHOWN_MAX)
    console.print(
        f"{shown} of {len(good)} that work; {out} of {len(rows)} combinations do not (--json has the reasons)"
    )


def show_comparison(console: Console, rows: Sequence[Comparison]) -> None:
    """A log's figures beside the prediction."""
    table = _table("Log and prediction", "quantity", "unit", "log", "predicted", "off by", left=2)
    for row in rows:
        style = "" if abs(row.deviation) <= NOT_MUCH else "yellow"
        digits = 0 if row.unit == "tokens" else 2
        table.add_row(
            row.name,
            row.unit,
            f"{row.logged:,.{digits}f}",
            f"{row.predicted:,.{digits}f}",
            f"{row.deviation:+.1%}",
            style=style,
        )
    console.print(table)
