"""The plan as plain values, for JSON and for other programs. Numbers are unrounded; units are in the names."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from exaserve.perfmodel.nearest import Evidence
from exaserve.planning.certainty import SHOWN
from exaserve.planning.explain import explain
from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB, MemoryPlan
from exaserve.planning.planner import ClusterPlan, SweepRow
from exaserve.planning.queueing import Waiting

__all__ = ["memory_dict", "plan_dict", "sweep_dicts"]


def _clean(value: Any) -> Any:
    """JSON has no infinity: null means "no limit"."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    return value


def memory_dict(memory: MemoryPlan) -> dict[str, Any]:
    """One replica's memory: per stage and rank, and what the engine would print."""
    r = memory.request
    return {
        "engine": r.version.label,
        "max_model_len": r.length,
        "max_num_seqs": r.limits.seqs,
        "max_num_batched_tokens": r.limits.tokens,
        "utilization": r.utilization,
        "fits": memory.fits,
        "refusals": list(memory.refusals),
        "warnings": list(memory.warnings),
        "weights_gib": memory.weights_gib,
        "kv_tokens": memory.tokens,
        "concurrency": memory.result.concurrency,
        "longest_model_len": memory.result.max_model_len,
        "rule_of_thumb_gb": memory.rule_gb,
        "engine_says": list(memory.says),
        "stages": [
            {
                "stage": s.stage,
                "layers": s.layers,
                "total_gib": s.total / GIB,
                "usable_gib": s.usable / GIB,
                "weights_gib": s.weights / GIB,
                "non_torch_gib": s.non_torch / GIB,
                "activation_gib": s.activation / GIB,
                "activation_cause": s.activation_cause,
                "graphs_gib": s.graphs / GIB,
                "kv_gib": s.kv / GIB,
                "weight_terms": [{"name": t.name, "gib": t.size_bytes / GIB, "how": t.formula} for t in s.weight_terms],
            }
            for s in memory.stages
        ],
        "kv_groups": [
            {"kind": g.cache.kind, "layers": len(g.indices), "block_tokens": g.block, "page_bytes": g.page_bytes}
            for g in memory.layout.groups
        ],
    }


def _waiting_dict(now: Waiting | None) -> dict[str, Any] | None:
    if now is None:
        return None
    return {
        "replicas": now.replicas,
        "utilisation": now.utilisation,
        "wait_p99_s": now.wait_p99_s,
        "tpot_s": now.state.step_s,
        "batch": now.state.batch,
        "kv_tokens_in_use": now.state.kv_tokens,
        "classes": [asdict(c) for c in now.per_class],
    }


def _option_dict(option: Option) -> dict[str, Any]:
    p = option.placement
    return {
        "tensor_parallel_size": p.tp,
        "pipeline_parallel_size": p.pp,
        "expert_parallel": p.ep,
        "works": option.works,
        "reasons": list(option.reasons),
        "rate_max_s": option.rate_max_s,
        "rate_saturated_s": option.saturated_s,
        "limit": option.limit,
        "replicas_needed": option.needed.replicas if option.needed else None,
        "replicas_per_node": option.count.per_node,
        "nodes_per_replica": option.count.nodes_per_replica,
        "why_not_more_per_node": option.count.why_not_more,
        "nodes": option.nodes,
        "cards": option.cards,
        "weights_gib": option.memory.weights_gib,
        "kv_tokens": option.memory.tokens,
        "cost": asdict(option.cost) if option.cost else None,
    }


def _speed_dict(plan: ClusterPlan, found: Evidence | None) -> dict[str, Any] | None:
    """How sure speeds are; None where they are measured, or nothing starts."""
    best = plan.best
    if best is None or best.certainty is None:
        return None
    c = best.certainty
    return {
        "confidence": c.confidence,
        "token_factor": c.token_factor,
        "first_factor": c.token_factor * c.first_factor,
        "interval_share": SHOWN,
        "token_errors": asdict(c.token),
        "first_errors": asdict(c.first),
        "says": [*c.says, c.measured],
        "predicted": asdict(plan.predicted) if plan.predicted else None,
        "card_rows": found.card_rows if found else None,
        "like_rows": found.like_rows if found else None,
        "nearest": [
            {
                **asdict(n.measurement),
                "distance": n.distance,
                "measured": dict(n.published),
                "predicted": dict(n.predicted),
                "source": n.source,
            }
            for n in (found.nearest if found else ())
        ],
    }


def plan_dict(plan: ClusterPlan, found: Evidence | None = None) -> dict[str, Any]:
    """The whole plan, with what is public about such a replica where that was looked up."""
    r, best = plan.request, plan.best
    result = {
        "model": {
            "name": r.arch.name,
            "parameters": r.arch.parameters,
            "active_parameters": r.arch.active_parameters,
            "layers": len(r.arch.layers),
            "format": r.arch.fmt.name,
            "hybrid": r.arch.is_hybrid,
            "context": r.arch.facts.context,
        },
        "fleet": {
            "hardware": r.fleet.hardware.name,
            "card_gib": r.fleet.card_gib,
            "cards_per_node": r.fleet.cards_per_node,
            "link_group": r.fleet.group,
            "nodes": r.fleet.nodes,
            "network": r.fleet.link.name,
        },
        "demand": {
            "given": r.demand_given,
            "rate_s": r.demand.rate_s,
            "classes": [asdict(c) for c in r.demand.with_targets(r.targets).classes],
            "tpot_target_s": r.targets.tpot_s,
        },
        "works": plan.works,
        "nodes": plan.nodes,
        "replicas": plan.replicas,
        "recommended": _option_dict(best) if best else None,
        "memory": memory_dict(best.memory) if best else None,
        "speed": _speed_dict(plan, found),
        "load": _waiting_dict(plan.now),
        "capacity_s": dict(plan.capacity),
        "mixed_capacity_s": plan.mixed_capacity_s,
        "held_s": plan.held_s,
        "headroom": [asdict(h) for h in plan.headroom],
        "pools": [
            {
                "name": p.name,
                "block_tokens": p.block,
                "prompts_up_to": p.prompts_up_to,
                "replicas": p.option.needed.replicas if p.option.needed else None,
                "capacity_s": p.capacity_s,
            }
            for p in plan.pools
        ],
        "cost": asdict(plan.cost) if plan.cost else None,
        "pipeline_bubble": plan.bubble,
        "network": [{**asdict(f), "verdict": f.verdict} for f in plan.flows],
        "fabric": {**asdict(plan.fabric), "fits": plan.fabric.fits},
        "verdicts": [asdict(v) for v in plan.verdicts],
        "claims": list(plan.claims),
        "notes": list(plan.notes),
        "options": [_option_dict(o) for o in plan.options],
        "terms": [asdict(t) for t in explain(plan)],
    }
    cleaned = _clean(result)
    assert isinstance(cleaned, dict)
    return cleaned


def sweep_dicts(rows: list[SweepRow]) -> list[dict[str, Any]]:
    """A sweep's rows."""
    return [_clean(asdict(row)) for row in rows]
