"""Prints a plan: what fits, the layout, load, network, cost; the sweep; every term; a log beside its prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from exaserve.cli.plan_speed import band_text, seconds_text, show_speed
from exaserve.cli.tables import Cell, Column, print_table
from exaserve.planning import ClusterPlan, Comparison, SweepRow, Term
from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB

__all__ = ["show_comparison", "show_plan", "show_sweep", "show_terms"]

OPTIONS_SHOWN_MAX = 8
SWEEP_SHOWN_MAX = 20
NOT_MUCH = 0.05


def _bullets(console: Console, title: str, lines: Sequence[str], style: str = "") -> None:
    if lines:
        console.print(Text(f"\n{title}", style="bold"))
        for line in lines:
            _line(console, line, style)


def _line(console: Console, line: str, style: str = "") -> None:
    """One indented paragraph."""
    console.print(Padding(Text(line, style=style), (0, 0, 0, 2), expand=False))


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
    show_speed(console, plan)
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
    elif best.network:
        head, style = "Starts, but the network is too slow for it", "bold red"
    elif not r.demand_given:
        head, style = "Fits", "bold green"
    elif plan.works:
        head, style = "Recommended", "bold green"
    else:
        head, style = "Starts, but does not hold the demand", "bold yellow"
    console.print(
        Text(f"{head}: {', '.join(parts)}; {where} of {r.fleet.cards_per_node} x {r.fleet.hardware.name}", style)
    )
    if plan.replicas and r.demand_given:
        counts = ((plan.replicas, "replica"), (plan.nodes, "node"), (plan.replicas * p.cards, "card"))
        texts = [_count(n, name) for n, name in counts]
        _line(console, f"{texts[0]} on {texts[1]}, {texts[2]}")
    if best.memory.fits:
        _line(console, f"why not more a node: {best.count.why_not_more}", "dim")
    for reason in best.reasons:
        if r.demand_given or not best.memory.fits or best.network:
            _line(console, reason, "red")
        else:
            _line(console, f"slower than the default targets (--ttft-p99-ms, --tpot-ms): {reason}", "yellow")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _styled(cells: Sequence[str], style: str) -> list[Cell]:
    return [Text(cell, style=style) for cell in cells] if style else list(cells)


def _show_memory(console: Console, best: Option) -> None:
    columns = (
        Column("stage"), Column("layers", 3), Column("usable"), Column("weights"), Column("outside", 2),
        Column("peak", 2), Column("graphs", 2), Column("KV cache"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for s in best.memory.stages:
        figures = (s.usable, s.weights, s.non_torch, s.activation)
        graphs = f"{s.graphs / GIB:.2f}" + ("" if s.graphs_inside else "*")
        cells = [str(s.stage), str(s.layers), *(f"{v / GIB:.2f}" for v in figures), graphs, f"{s.kv / GIB:.2f}"]
        rows.append(list(cells))
    print_table(console, "Memory of a rank, GiB", columns, rows)
    if best.memory.stages and not best.memory.stages[0].graphs_inside and best.memory.stages[0].graphs:
        _line(console, "* beside what is usable: captured once the cache is there", "dim")
    rule = f"(rule of thumb for the whole replica: {best.memory.rule_gb:.0f} GB with its 30 % margin)"
    _bullets(console, f"{best.memory.request.version.label} would print", [*best.memory.says, rule])


def _show_starts(console: Console, plan: ClusterPlan) -> None:
    """Layouts where no demand is given: what starts, and what does not."""
    columns = (Column("TP x PP"), Column("cards"), Column("nodes"), Column("GiB a rank", 1), Column("KV tokens"))
    rows: list[list[Cell]] = []
    out = []
    for o in plan.options[:OPTIONS_SHOWN_MAX]:
        name = f"{o.placement.tp} x {o.placement.pp}{' EP' if o.placement.ep else ''}"
        if o.memory.fits and not o.network:
            figures = [str(o.count.nodes_per_replica), f"{o.memory.fullest_gib:.1f}", f"{o.memory.tokens:,}"]
            rows.append([name, str(o.placement.cards), *figures])
        else:
            out.append(f"{name}: {o.reasons[0]}")
    if rows:
        print_table(console, "Layouts of one replica", columns, rows)
    _bullets(console, "Layouts that do not start", out)


def _show_options(console: Console, plan: ClusterPlan) -> None:
    if len(plan.options) < 2:
        return
    if not plan.request.demand_given:
        _show_starts(console, plan)
        return
    columns = (
        Column("TP x PP"), Column("GiB a rank", 4), Column("KV tokens", 3), Column("one carries", 1),
        Column("full first", 2), Column("replicas"), Column("cards"), Column("cost/h"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    out = []
    for o in plan.options[:OPTIONS_SHOWN_MAX]:
        name = f"{o.placement.tp} x {o.placement.pp}{' EP' if o.placement.ep else ''}"
        if o.reasons:
            out.append(f"{name}: {o.reasons[0]}")
        if o.needed is None or o.cost is None:
            continue
        figures = [f"{o.memory.fullest_gib:.1f}", f"{o.memory.tokens:,}", f"{o.rate_max_s:.2f}/s", o.limit]
        counts = [f"{o.needed.replicas:,}", f"{o.cards:,}", f"{o.cost.hour:,.1f}"]
        rows.append([name, *figures, *counts])
    if rows:
        print_table(console, "Layouts", columns, rows)
    _bullets(console, "Layouts that are out", out)


def _show_load(console: Console, plan: ClusterPlan) -> None:
    now = plan.now
    if now is None:
        return
    speed = f"{now.state.step_s * 1e3:.1f} ms per token"
    kind = "measured step times" if plan.request.profile else f"sized for {plan.request.confidence:.0%}"
    many = _count(plan.replicas, "replica")
    share = f"{plan.request.demand.rate_s / plan.held_s:.0%}" if plan.held_s else "more than"
    head = f"Load: {share} of what {many} carry in the targets, {speed} ({kind})"
    predicted = plan.predicted.first_s if plan.predicted else ()
    columns = (
        Column("class"), Column("requests/s"), Column("in + out", 3), Column("P50 first", 4), Column("P99 first"),
        *([Column("P99 predicted", 2)] if predicted else []), Column("allowed"), Column("alone up to", 1),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for i, (c, latency) in enumerate(zip(plan.request.demand.classes, now.per_class, strict=True)):
        cells = [
            c.name,
            f"{c.rate_s:,.1f}",
            f"{c.prompt_tokens:,} + {c.output_tokens:,}",
            seconds_text(latency.ttft_p50_s),
            seconds_text(latency.ttft_p99_s),
            *([band_text(predicted[i])] if predicted else []),
            seconds_text(latency.target_s),
            f"{plan.capacity.get(c.name, 0):,.1f}/s",
        ]
        rows.append(_styled(cells, "" if latency.holds else "red"))
    print_table(console, head, columns, rows)
    for h in plan.headroom:
        state = "targets still hold" if h.holds else f"targets do not hold; {h.nodes_needed:,} nodes would"
        used = f"{h.utilisation:.0%} used" if math.isfinite(h.utilisation) else "nothing left"
        what = h.name if h.nodes_lost == 1 else f"{h.name} ({h.nodes_lost} nodes)"
        _line(console, f"without one {what}: {used}, {state}")


def _show_pools(console: Console, plan: ClusterPlan) -> None:
    if not plan.pools:
        return
    columns = (
        Column("pool"), Column("prompts up to", 1), Column("KV block", 2), Column("replicas"), Column("carry"),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    for pool in plan.pools:
        replicas = pool.option.needed.replicas if pool.option.needed else 0
        limit = f"{pool.prompts_up_to:,}" if pool.prompts_up_to else "any"
        cells = [pool.name, limit, str(pool.block), f"{replicas:,}" if replicas else "-", f"{pool.capacity_s:,.1f}/s"]
        rows.append(list(cells))
    print_table(console, "Pools by input length, instead of one", columns, rows)
    total = sum(p.option.needed.replicas if p.option.needed else 0 for p in plan.pools)
    shared = plan.best.needed.replicas if plan.best and plan.best.needed else 0
    better = "pools need fewer" if 0 < total < shared else "one pool needs fewer or as many"
    _line(console, f"{total:,} replicas in pools, {shared:,} in one: {better}")


def _show_network(console: Console, plan: ClusterPlan) -> None:
    if plan.flows:
        columns = (
            Column("traffic", left=True, wrap=True), Column("over", 1, left=True, wrap=True), Column("per step", 3),
            Column("load"), Column("of the step"), Column(""),
        )  # fmt: skip
        rows: list[list[Cell]] = []
        for f in plan.flows:
            size = f"{f.step_bytes / 1e6:,.2f} MB" if f.step_bytes else "-"
            style = {"impossible": "red", "bottleneck": "red", "slow": "yellow"}.get(f.verdict, "")
            cells = [f.name, f.where, size, f"{f.load:.1%}", f"{f.step_share:.1%}", f.verdict]
            rows.append(_styled(cells, style))
        print_table(console, "Links", columns, rows)
    fabric = plan.fabric
    if plan.nodes > 1:
        tiers = f"{fabric.leaves} leaf and {fabric.spines} spine switches" if fabric.spines else "one switch"
        hops = "at most 2 hops" if fabric.fits else f"{fabric.hops} hops: two tiers end at {fabric.nodes_max:,} nodes"
        between = f"{fabric.uplinks:,} between tiers, " if fabric.uplinks else ""
        _line(console, f"fabric: {tiers} of {fabric.radix} ports, {fabric.node_ports:,} to nodes, {between}{hops}")


def _show_cost(console: Console, plan: ClusterPlan) -> None:
    c = plan.cost
    if c is None:
        return
    each = (
        f"{c.per_1000_requests:,.3f} per 1,000 requests, {c.per_million_tokens:,.3f} per million tokens "
        f"({c.per_million_output_tokens:,.2f} per million output tokens), of the {c.rate_s:,.2f} requests/s carried"
        if c.rate_s
        else "no request is carried, so none has a price"
    )
    console.print(
        f"\nCost ({c.source} prices): {c.hour:,.2f} {c.currency} an hour, {c.month:,.0f} a month; {each}; "
        f"{c.energy_kwh_hour:,.1f} kWh an hour"
    )


def show_terms(console: Console, terms: Sequence[Term]) -> None:
    """Every term with its formula."""
    columns = (
        Column("term", wrap=True), Column("value", left=True, wrap=True), Column("formula", 1, left=True, wrap=True),
        Column("source", 2, left=True),
    )  # fmt: skip
    rows: list[list[Cell]] = []
    part = ""
    for t in terms:
        if t.part != part:
            part = t.part
            rows.append([Text(part, style="bold"), "", "", ""])
        rows.append(["  " + t.name, t.value, t.formula, t.source])
    print_table(console, "Every term", columns, rows)


def show_sweep(console: Console, rows: Sequence[SweepRow], currency: str) -> None:
    """The best combinations, and how many are out."""
    good = [r for r in rows if r.works]
    columns = (
        Column("card"), Column("weights", left=True), Column("TP"), Column("KV tokens", 3), Column("replicas", 2),
        Column("cards", 1), Column("tok/s/card", 1), Column("per token", 2), Column("P99 first", 2),
        Column("like it", 3), Column(f"{currency}/M tok"),
    )  # fmt: skip
    shown: list[list[Cell]] = []
    for r in good[:SWEEP_SHOWN_MAX]:
        counts = [str(r.tp), f"{r.tokens:,}", f"{r.replicas:,}", f"{r.cards:,}", f"{r.tokens_s:,.0f}"]
        speeds = [band_text(r.token_band_s, 1), band_text(r.first_band_s), f"{r.like_rows:,}"]
        shown.append([r.hardware, r.fmt, *counts, *speeds, f"{r.per_million_tokens or 0:.3f}"])
    print_table(console, "Sweep, cheapest first", columns, shown)
    out = len(rows) - len(good)
    console.print(
        f"{len(shown)} of {len(good)} that work; {out} of {len(rows)} combinations do not (--json has the reasons). "
        "Times are predicted, with the interval that 80% of measurements like each lie in; counts are sized for slower "
        "ones (--confidence)"
    )


def show_comparison(console: Console, rows: Sequence[Comparison]) -> None:
    """A log's figures beside the prediction."""
    columns = (
        Column("quantity", wrap=True), Column("unit", 1, left=True), Column("log"), Column("predicted"),
        Column("off by"),
    )  # fmt: skip
    shown: list[list[Cell]] = []
    for row in rows:
        digits = 0 if row.unit == "tokens" else 2
        figures = [f"{row.logged:,.{digits}f}", f"{row.predicted:,.{digits}f}", f"{row.deviation:+.1%}"]
        shown.append(_styled([row.name, row.unit, *figures], "" if abs(row.deviation) <= NOT_MUCH else "yellow"))
    print_table(console, "Log and prediction", columns, shown)
