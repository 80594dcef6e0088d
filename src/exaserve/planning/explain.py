"""Every term of a plan with its formula and the kind of source behind it, as rows of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exaserve.perfmodel.constants import factors, meaning_of, parts, used_parts
from exaserve.perfmodel.fitted import FITTED
from exaserve.perfmodel.fitting import Estimate
from exaserve.perfmodel.work import Work, work_of
from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB, RULE_FRAMEWORK_GB, SAFETY
from exaserve.planning.network import crossings
from exaserve.planning.planner import ClusterPlan
from exaserve.planning.queueing import KV_WATERMARK

__all__ = ["FACTOR_NAMES", "Term", "explain"]

Source = Literal["published", "measured", "fitted", "estimated", "counted", "given"]


@dataclass(frozen=True, slots=True)
class Term:
    """One figure: where it belongs, what it is, its value with unit, how it comes about, and what kind it is.

    ``counted`` follows exactly from the configuration; ``published`` from a data sheet, ``measured`` from public logs
    or a replica of the caller's, ``fitted`` from the constants that public measurements were fitted with,
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
    speed = [*_constants(best), *_speed(plan, best), *_sized(best)]
    return [*_memory(plan, best), *_cache(plan, best), *speed, *_load(plan, best), *_money(plan)]


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


FACTOR_NAMES = {
    "bandwidth": "bandwidth reached",
    "coded_bandwidth": "by weights in the format",
    "experts": "by experts' weights",
    "experts_skew": "tokens as one that is even",
    "layer_s": "a layer besides",
    "moe_s": "routing, a layer",
    "mla_s": "latent cache, a layer",
    "state_s": "state, a layer",
    "reduce_s": "a small all-reduce",
    "link": "link rate reached",
    "matrix": "matrix rate reached",
    "plain_matrix": "by 16-bit weights",
    "experts_matrix": "by experts' products",
    "passes": "passes of activations",
    "expert_passes": "passes of experts' inputs",
    "overlap": "not hidden",
    "sequence_s": "a sequence besides",
    "stream_s": "a streamed token besides",
    "attention": "bandwidth of the cache",
    "attention_matrix": "matrix rate of attention",
    "prompt_s": "prompt, a layer",
    "prompt_moe_s": "prompt, a layer's experts",
    "admit_s": "a step with new prompts",
    "first_s": "every first token",
}
"""Names of what :class:`~exaserve.perfmodel.constants.Factors` holds, in the order in which a step takes place."""


def _work(best: Option) -> Work:
    asked, p = best.memory.request, best.placement
    return work_of(asked.arch, p.tp, p.tp if p.ep else 1, asked.kv_bytes)


def _constants(best: Option) -> list[Term]:
    """The constants that the predicted step is made with: what each is the product of."""
    if best.certainty is None:
        return []
    setup, w = best.certainty.setup, _work(best)
    products = used_parts(setup, w)
    values = factors(parts(setup), FITTED)
    rows = []
    for attribute, label in FACTOR_NAMES.items():
        names = products.get(attribute, ())
        if not names:
            continue
        value = getattr(values, attribute)
        text = _short(value) if attribute.endswith("_s") else f"{value:.3g}"
        known = [f"{name} {_constant(name)}" for name in names if name in FITTED] or [f"{names[0]}: as expected"]
        how = f"{meaning_of(names[0]).text}: {' x '.join(known)}"
        source: Source = "fitted" if any(name in FITTED for name in names) else "estimated"
        rows.append(Term("speed constants", label, text, how, source))
    return rows


def _constant(name: str) -> str:
    value = FITTED[name]
    # Constants in seconds are small ones; all others are shares and factors.
    return _short(value) if meaning_of(name).expected < 0.05 else f"{value:.3g}"


def _short(time_s: float) -> str:
    return f"{time_s * 1e3:.2f} ms" if time_s >= 1e-3 else f"{time_s * 1e6:.1f} us"


def _speed(plan: ClusterPlan, best: Option) -> list[Term]:
    p, card = best.predicted, plan.request.fleet.hardware
    if p is None:
        return []
    measured = plan.request.profile.constants if plan.request.profile else {}
    w = _work(best)

    def row(name: str, value: str, formula: str, *constants: str) -> Term:
        if constants and all(c in measured for c in constants):
            error = max(abs(measured[c].error / measured[c].value) if measured[c].value else 0.0 for c in constants)
            return Term("step time", name, value, f"the given profile, standard error {error:.1%}", "measured")
        return Term("step time", name, value, formula, "fitted")

    read_s = p.decode_fixed_s - p.overhead_s
    weights = (w.plain_bytes + w.coded_bytes) / 1e9
    fixed = (
        f"{weights:,.2f} GB of weights in {read_s * 1e3:.2f} ms, {w.layers} layers besides {p.overhead_s * 1e3:.2f} ms"
    )
    flops = (w.plain_flops + w.coded_flops + w.expert_flops) / 1e9
    prefill = f"{flops:,.1f} G operations a token and rank at what is reached of the matrix rate, + all-reduces"
    pairs = f"{p.prefill_per_pair_s * 1e9:.2f} ms"
    kv = f"{p.decode_per_kv_token_s * 1e9:.1f} us"
    rows = [
        Term("step time", "memory bandwidth", f"{card.bandwidth_gb_s:g} GB/s", "data sheet", card.rate_source),
        row("decode, empty", f"{p.decode_fixed_s * 1e3:.2f} ms", fixed, "decode_fixed_s"),
    ]
    if p.expert_s:
        experts = f"{w.expert_bytes / 1e9:,.1f} GB on a rank; a token hits {p.expert_share:.1%} of what others left"
        rows.append(row("all experts", f"{p.expert_s * 1e3:.2f} ms", experts, "expert_s"))
    rows += [
        row("per sequence", f"{p.decode_per_seq_s * 1e6:.1f} us", "output layer, sampling", "decode_per_seq_s"),
        row("per 1,000 cached tokens", kv, f"{w.kv_bytes:,.0f} B each on a rank, read once", "decode_per_kv_token_s"),
        row("prefill", f"{p.prefill_tokens_per_s:,.0f} tokens/s", prefill, "prefill_tokens_per_s"),
        row(
            "a step with prompts",
            f"+ {p.prompt_s * 1e3:.2f} ms",
            "launched kernel by kernel",
            _first("prompt_s", measured),
        ),
        row("attention over 1,000 x 1,000", pairs, "what kernels reach of the 16-bit rate", "prefill_per_pair_s"),
        row(
            "every first token",
            f"+ {p.first_s * 1e3:.1f} ms",
            "HTTP, tokenising, scheduling",
            _first("first_s", measured),
        ),
    ]
    if not measured:
        for c in crossings(plan.request.arch, best.placement, plan.request.fleet.wiring):
            if c.network:
                value = f"{c.token_s * 1e6:,.1f} us a token + {c.step_delay_s * 1e3:,.2f} ms a step"
                rows.append(Term("step time", c.name, value, f"{c.how}, over {c.where}", "estimated"))
    return rows


def _first(name: str, measured: Mapping[str, Estimate]) -> str:
    """The constant of a profile that a part of the first token's cost is from: older profiles have only their sum."""
    return name if name in measured else "first_token_s"


def _sized(best: Option) -> list[Term]:
    """What the predicted times are multiplied with for sizing."""
    c = best.certainty
    if c is None:
        return []
    how = f"one-sided bound at {c.confidence:.0%}; "
    return [
        Term("sized with", "every step", f"x {c.token_factor:.2f}", how + c.says[0], "measured"),
        Term(
            "sized with",
            "own part of a first token",
            f"x {c.token_factor * c.first_factor:.2f}",
            how + c.says[1],
            "measured",
        ),
    ]


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
