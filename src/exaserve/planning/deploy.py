"""The plan as a cluster file, which ``exaserve config check``, ``up`` and ``deploy`` read."""

from __future__ import annotations

from exaserve.planning.formats import format_from_name
from exaserve.planning.layout import Option
from exaserve.planning.planner import ClusterPlan

__all__ = ["cluster_file"]

PORTS_PER_POOL = 100


def cluster_file(plan: ClusterPlan, engine: str = "vllm", pools: bool = False) -> str:
    """YAML text. With ``pools``, one pool per class of input length; else one pool for all.

    Raises:
        ValueError: the plan has no layout that starts.
    """
    best = plan.best
    if best is None or not best.memory.fits or not plan.replicas:
        raise ValueError("no layout of this plan would start; there is no cluster to write down")
    r = plan.request
    lines = [
        "# Written by `exaserve plan`. Give every node its address; figures are predictions until measured.",
        (
            f"# {r.arch.name}, {r.arch.fmt.name} weights, {plan.replicas} replicas on {plan.nodes} nodes of "
            f"{r.fleet.cards_per_node} x {r.fleet.hardware.name}"
        ),
        f"nodes: {plan.nodes}",
    ]
    if pools and plan.pools:
        lines.append("pools:")
        for index, pool in enumerate(plan.pools):
            per_node = max(1, -(-(pool.option.needed.replicas if pool.option.needed else 1) // max(1, plan.nodes)))
            name = f"{_served(plan)}-{pool.name.lower()}"
            body = _pool(plan, pool.option, engine, per_node, 8001 + index * PORTS_PER_POOL, name, pool.block)
            lines += [("  - " if i == 0 else "    ") + line for i, line in enumerate(body)]
    else:
        lines += _pool(plan, best, engine, best.count.per_node or 1, 8001, _served(plan), r.block)
    seqs = best.memory.request.limits.seqs
    lines += [
        "scheduling:",
        "  strategy: entropy",
        f"  max_queue_depth: {min(32, seqs)}",
        "  kv_cache_watermark: 0.85",
    ]
    return "\n".join(lines) + "\n"


def _served(plan: ClusterPlan) -> str:
    return plan.request.arch.name.rstrip("/").rsplit("/", 1)[-1]


def _pool(
    plan: ClusterPlan, option: Option, engine: str, per_node: int, port: int, served: str, block: int
) -> list[str]:
    r, p = plan.request, option.placement
    limits = option.memory.request.limits
    lines = [
        f"model: {_quoted(r.arch.name)}",
        f"served_model_name: {_quoted(served)}",
        f"engine: {engine}",
        f"hardware: {r.fleet.hardware.name}",
        f"precision: {_precision(plan, engine)}",
        f"tensor_parallel_size: {p.tp}",
        f"pipeline_parallel_size: {p.pp}",
        f"num_replicas_per_node: {per_node}",
        f"base_port: {port}",
        f"max_model_len: {r.length}",
        f"max_num_seqs: {limits.seqs}",
    ]
    if engine == "emulator":
        lines += ["emulator:", f"  block_size: {block}", f"  token_budget: {limits.tokens}"]
        return lines
    profile = option.profile
    if profile is not None:
        lines += [
            f"kv_tokens_max: {option.memory.tokens}",
            f"prefill_tokens_per_s: {profile.prefill_tokens_per_s:.0f}",
            f"decode_step_s: {profile.decode_fixed_s:.5f}",
        ]
    if engine == "vllm":
        flags = ["--gpu-memory-utilization", f"{r.utilization:g}", "--max-num-batched-tokens", str(limits.tokens)]
        flags += ["--block-size", str(block)] if block != 16 else []
        flags += ["--enable-expert-parallel"] if p.ep else []
        flags += ["--kv-cache-dtype", "fp8"] if r.kv_bytes < 2 else []
        lines.append(f"engine_args: [{', '.join(_quoted(f) for f in flags)}]")
    elif engine == "sglang":
        flags = ["--mem-fraction-static", f"{r.utilization:g}", "--chunked-prefill-size", str(limits.tokens)]
        lines.append(f"engine_args: [{', '.join(_quoted(f) for f in flags)}]")
    return lines


def _precision(plan: ClusterPlan, engine: str) -> str:
    """What the engine must be told: nothing about weights that are published in their format, which it reads there."""
    arch = plan.request.arch
    published = bool(arch.facts.quantization) or format_from_name(arch.name) is not None
    if engine == "emulator" or (arch.fmt.precision == "fp8" and not published):
        return arch.fmt.precision
    return "auto"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
