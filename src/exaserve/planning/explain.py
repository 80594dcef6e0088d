"""Every term of a plan with its formula and the kind of source behind it, as rows of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB, RULE_FRAMEWORK_GB, SAFETY
from exaserve.planning.network import crossings
from exaserve.planning.planner import ClusterPlan
from exaserve.planning.queueing import KV_WATERMARK

__all__ = ["Term", "explain"]

Source = Literal["published", "measured", "estimated", "counted", "given"]


@dataclass(frozen=True, slots=True)
class Term:
    """One figure: where it belongs, what it is, its value with unit, how it comes about, and what kind it is.

    ``counted`` follows exactly from the configuration; ``published`` from a data sheet, ``measured`` from public logs,
    ``estimated`` from a model; ``given`` by the caller.
    """

    part: str
    name: str
    value: str
    formula: str
    source: Source


def explain(plan: ClusterPlan) -> list[Term]:
    """All terms of the recommended layout."""
    best = plan.best
    if best is None:
        return []
    return [*_memory(plan, best), *_cache(plan, best), *_speed(plan, best), *_load(plan, best), *_money(plan)]


def _memory(plan: ClusterPlan, best: Option) -> list[Term]:
    r = plan.request
    rows = []
    card = r.fleet.hardware
    for s in best.memory.stages:
        part = "memory of a rank" if len(best.memory.stages) == 1 else f"memory of a rank, stage {s.stage}"
        source: Source = "given" if r.fleet.memory_gib else card.memory_source
        rows.append(Term(part, "usable", _gib(s.usable), f"{s.total / GIB:.2f} GiB x {r.utilization:g}", source))
        rows += [Term(part, f"- {t.name}", _gib(t.size_bytes), t.formula, "counted") for t in s.weight_terms]
        rows.append(Term(part, "- outside PyTorch", _gib(s.non_torch), "libraries, NCCL buffers", "estimated"))
        rows.append(Term(part, "- activation peak", _gib(s.activation), s.activation_cause, "estimated"))
        if s.graphs_inside:
            rows.append(Term(part, "- CUDA graphs", _gib(s.graphs), "the engine's estimate, taken first", "estimated"))
        rows.append(Term(part, "= for KV cache", _gib(s.kv), "usable less all of these", "counted"))
        if not s.graphs_inside:
            rows.append(Term(part, "CUDA graphs", _gib(s.graphs), "outside the share, must fit beside it", "estimated"))
    rule = f"(weights + cache of one request + {RULE_FRAMEWORK_GB:g} GB framework) x {SAFETY}, whole replica"
    rows.append(Term("memory of a rank", "rule of thumb", f"{best.memory.rule_gb:.0f} GB", rule, "estimated"))
    return rows


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _cache(plan: ClusterPlan, best: Option) -> list[Term]:
    r, layout, result = plan.request, best.memory.layout, best.memory.result
    rows = []
    for g in layout.groups:
        c = g.cache
        how = {
            "full": f"{c.heads} KV heads over {best.placement.tp} ranks (at least 1 each) x {c.width} values",
            "sliding": f"window {c.window}, {c.heads} KV heads x {c.width} values",
            "chunked": f"chunks of {c.window}, {c.heads} KV heads x {c.width} values",
            "mla": f"latent vector of {c.width} values, the same on every rank",
            "state": "fixed size per sequence",
        }[c.kind]
        name = f"{len(g.indices)} layers, {c.kind}"
        rows.append(Term("KV cache", name, f"{g.page_bytes / 1024:.0f} KiB a block of {g.block or 1}", how, "counted"))
    if layout.groups:
        rows += [
            Term(
                "KV cache",
                "per token on a rank",
                f"{layout.bytes_per_token() / 1024:.1f} KiB",
                f"{r.kv_bytes:g} B a value, {len(layout.groups)} group(s)",
                "counted",
            ),
            Term(
                "KV cache",
                "capacity",
                f"{result.tokens:,} tokens",
                f"{result.blocks:,} blocks, the fullest rank decides",
                "counted",
            ),
            Term(
                "KV cache",
                "concurrency",
                f"{result.concurrency:.2f}",
                f"requests of {r.length:,} tokens at once",
                "counted",
            ),
        ]
    return rows


def _speed(plan: ClusterPlan, best: Option) -> list[Term]:
    p, card = best.profile, plan.request.fleet.hardware
    if p is None:
        return []
    measured = plan.request.profile.constants if plan.request.profile else {}

    def row(name: str, value: str, formula: str, *constants: str) -> Term:
        if constants and all(c in measured for c in constants):
            return Term("step time", name, value, "the given profile", "measured")
        return Term("step time", name, value, formula, "estimated")

    bandwidth = f"weights once, {(p.decode_fixed_s - p.overhead_s) * 1e3:.2f} ms, + what each layer costs besides"
    prefill = "2 x active parameters / what kernels reach of the matrix rate, + all-reduces"
    pairs = f"{p.prefill_per_pair_s * 1e9:.2f} ms"
    kv = f"{p.decode_per_kv_token_s * 1e9:.1f} us"
    rows = [
        Term("step time", "memory bandwidth", f"{card.bandwidth_gb_s:g} GB/s", "data sheet", card.rate_source),
        row("prefill", f"{p.prefill_tokens_per_s:,.0f} tokens/s", prefill, "prefill_tokens_per_s"),
        row("decode, empty", f"{p.decode_fixed_s * 1e3:.2f} ms", bandwidth, "decode_fixed_s"),
        row("per sequence", f"{p.decode_per_seq_s * 1e6:.1f} us", "compute and sampling", "decode_per_seq_s"),
        row("per 1,000 cached tokens", kv, "their KV read once", "decode_per_kv_token_s"),
        row("attention over 1,000 x 1,000", pairs, "what kernels reach of the 16-bit rate", "prefill_per_pair_s"),
    ]
    if not measured:
        for c in crossings(plan.request.arch, best.placement, plan.request.fleet.wiring):
            if c.network:
                value = f"{c.token_s * 1e6:,.1f} us a token + {c.step_delay_s * 1e3:,.2f} ms a step"
                rows.append(Term("step time", c.name, value, f"{c.how}, over {c.where}", "estimated"))
    return rows


def _load(plan: ClusterPlan, best: Option) -> list[Term]:
    now, d = plan.now, plan.request.demand
    source: Source = "given" if plan.request.demand_given else "estimated"
    rows = [
        Term("load", "demand", f"{d.rate_s:,.1f} requests/s", f"{d.prompt:,.0f} + {d.output:,.0f} tokens", source),
        Term(
            "load",
            "one replica carries",
            f"{best.rate_max_s:.2f} requests/s",
            f"until {best.limit} is full (cache up to {KV_WATERMARK:.0%})",
            "estimated",
        ),
    ]
    if now is None:
        return rows
    rows += [
        Term(
            "load",
            "utilisation",
            f"{now.utilisation:.0%}",
            f"of the rate at which {plan.replicas} replicas' queues grow without end",
            "estimated",
        ),
        Term("load", "batch", f"{now.state.batch:.1f} sequences", "rate x output x step time", "estimated"),
        Term(
            "load", "per output token", f"{now.state.step_s * 1e3:.1f} ms", "fixed point of the step time", "estimated"
        ),
        Term("load", "P99 before a replica", f"{now.wait_p99_s * 1e3:.0f} ms", "M/G/k, Allen and Cunneen", "estimated"),
    ]
    rows += [
        Term(
            "load",
            f"P99 first token, {c.name}",
            f"{c.ttft_p99_s * 1e3:,.0f} ms",
            f"wait + one step + own prefill; target {c.target_s * 1e3:,.0f} ms",
            "estimated",
        )
        for c in now.per_class
    ]
    return rows


def _money(plan: ClusterPlan) -> list[Term]:
    cost = plan.cost
    if cost is None:
        return []
    source: Source = "given" if cost.source == "given" else "estimated"
    card = f"{plan.replicas * plan.best.placement.cards if plan.best else 0} cards x price per card hour"
    return [
        Term("cost", "per hour", f"{cost.hour:,.2f} {cost.currency}", card, source),
        Term(
            "cost",
            "per 1,000 requests",
            f"{cost.per_1000_requests:.3f} {cost.currency}",
            f"of the {cost.rate_s:,.2f} requests/s that are carried",
            source,
        ),
        Term(
            "cost",
            "per million tokens",
            f"{cost.per_million_tokens:.3f} {cost.currency}",
            "prompt and output together",
            source,
        ),
        Term(
            "cost",
            "energy",
            f"{cost.energy_kwh_hour:.1f} kWh an hour",
            "65 % of board power + host, x PUE",
            "estimated",
        ),
    ]
