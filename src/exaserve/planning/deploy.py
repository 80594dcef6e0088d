"""The plan as a cluster file, which ``exaserve config check`` reads and ``exaserve up`` starts.

Every pool of a cluster file runs the same number of replicas on every node, each inside one node. What a plan needs is
rounded up to that, and the file says what it starts; what cannot be said so is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from exaserve.domain.errors import ConfigError
from exaserve.models.catalogue import find_shape
from exaserve.models.formats import format_from_name
from exaserve.planning.layout import Option
from exaserve.planning.planner import ClusterPlan

__all__ = ["cluster_file"]

PORTS_PER_POOL = 100


@dataclass(frozen=True, slots=True)
class _Group:
    """Replicas of one kind in the file."""

    name: str
    option: Option
    needed: int
    block: int


def cluster_file(plan: ClusterPlan, engine: str = "vllm", pools: bool = False) -> str:
    """YAML text. With ``pools``, one pool per class of input length; else one pool for all.

    Raises:
        ConfigError: there is nothing that would start, or a cluster file cannot say it; the message names which.
    """
    best, r = plan.best, plan.request
    if best is None or not best.memory.fits or not plan.replicas:
        raise ConfigError("No layout of this plan would start; there is no cluster to write down.", param="write")
    if best.network:
        raise ConfigError(f"This plan would not serve: {best.network}.", param="write")
    _check_engine(plan, engine)
    served = r.arch.name.rstrip("/").rsplit("/", 1)[-1]
    groups = [_Group(served, best, plan.replicas, r.block)]
    if pools and plan.pools:
        groups = [
            _Group(f"{served}-{p.name.lower()}", p.option, p.option.needed.replicas if p.option.needed else 0, p.block)
            for p in plan.pools
        ]
        if not all(g.needed for g in groups):
            short = ", ".join(g.name for g in groups if not g.needed)
            raise ConfigError(f"No number of replicas holds the targets of {short}; leave out --pools.", param="pools")
    for group in groups:
        if not group.option.count.per_node:
            spans = group.option.count.nodes_per_replica
            raise ConfigError(
                f"One replica takes {spans} nodes ({group.option.placement.cards} cards), and a cluster file starts "
                "each replica inside one node. Start these with the engine's own multi-node launch and list them under "
                "replicas, or plan a layout that fits into a node (--tp, --pp, a narrower --format).",
                param="write",
            )
    nodes, counts = _rounded(plan, groups)
    lines = _head(plan, groups, nodes, counts, engine)
    lines += [f"nodes: {nodes}", f"accelerators_per_node: {plan.request.fleet.cards_per_node}"]
    if len(groups) > 1:
        lines.append("pools:")
    for index, (group, per_node) in enumerate(zip(groups, counts, strict=True)):
        body = _pool(plan, group, engine, per_node, 8001 + index * PORTS_PER_POOL)
        lines += [("  - " if i == 0 else "    ") + x for i, x in enumerate(body)] if len(groups) > 1 else body
    lines += [
        "scheduling:",
        "  strategy: entropy",
        f"  max_queue_depth: {min(32, best.memory.request.limits.seqs)}",
        "  kv_cache_watermark: 0.85",
    ]
    return "\n".join(lines) + "\n"


def _check_engine(plan: ClusterPlan, engine: str) -> None:
    planned = plan.request.version.name
    if engine not in ("emulator", planned):
        raise ConfigError(
            f"The plan's memory is {planned}'s; a file for {engine} needs a plan of its own (--engine).",
            param="write_engine",
        )
    if engine == "trtllm":
        raise ConfigError(
            "The plan's memory is vLLM's sum, from which no file for TensorRT-LLM follows: plan with --engine vllm or "
            "sglang, or write one for the emulator (--write-engine emulator).",
            param="write_engine",
        )
    if engine == planned and plan.request.fleet.hardware.slice_of:
        raise ConfigError(
            "Agents give engines whole cards, and MIG slices are named by their UUIDs only: start these engines "
            "yourself and list them under replicas.",
            param="write",
        )
    arch = plan.request.arch
    online = ("fp8", "bnb4") if planned == "vllm" else ("fp8",)
    if engine == planned and arch.fmt.quantised and not _published(plan) and arch.fmt.name not in online:
        raise ConfigError(
            f"{engine} cannot make {arch.fmt.name} weights from the 16-bit ones of {arch.name} as it loads them. "
            f"Name the checkpoint that is published in {arch.fmt.name} and leave out --format.",
            param="format",
        )


def _published(plan: ClusterPlan) -> bool:
    """Whether the checkpoint itself is in the plan's format, so that an engine reads it there."""
    arch = plan.request.arch
    if arch.facts.quantization or format_from_name(arch.name) is not None:
        return True
    try:
        return find_shape(arch.name).native == arch.fmt.precision
    except ConfigError:
        return False


def _rounded(plan: ClusterPlan, groups: Sequence[_Group]) -> tuple[int, list[int]]:
    """Nodes, and replicas of each group on every node, so that the cards of a node suffice.

    Raises:
        ConfigError: no number of nodes (of those there are) does.
    """
    fleet = plan.request.fleet
    most = fleet.nodes or sum(g.needed for g in groups)
    for nodes in range(fleet.nodes or max(1, plan.nodes if len(groups) == 1 else 1), most + 1):
        counts = [-(-g.needed // nodes) for g in groups]
        cards = sum(c * g.option.placement.cards for c, g in zip(counts, groups, strict=True))
        if cards <= fleet.cards_per_node:
            return nodes, counts
    each = " + ".join(f"{g.needed} x {g.option.placement.cards}" for g in groups)
    raise ConfigError(
        f"The pools need {each} cards. A cluster file runs every pool on every node, and that does not fit into "
        f"{fleet.cards_per_node} cards a node{f' on {fleet.nodes} nodes' if fleet.nodes else ''}: leave out --pools.",
        param="pools",
    )


def _head(plan: ClusterPlan, groups: Sequence[_Group], nodes: int, counts: Sequence[int], engine: str) -> list[str]:
    r = plan.request
    started = [nodes * c for c in counts]
    needed = sum(g.needed for g in groups)
    what = f"{sum(started):,} replicas on {nodes:,} nodes of {r.fleet.cards_per_node} x {r.fleet.hardware.name}"
    lines = [
        "# Written by `exaserve plan`. Give every node its address; figures are predictions until measured.",
        f"# {r.arch.name}, {r.arch.fmt.name} weights: this file starts {what}",
    ]
    if sum(started) != needed:
        lines.append(f"# ({needed:,} are needed; every node runs the same number of each pool).")
    if not plan.works and r.demand_given:
        lines.append(f"# They do not hold the demand: {plan.held_s:,.2f} of {r.demand.rate_s:,.2f} requests/s.")
    if engine == "emulator":
        lines.append("# The engines are emulators of that hardware: nothing of the model is loaded.")
    elif "/" not in r.arch.name:
        lines.append(f"# {r.arch.name} is the planner's name of it: put the repository or the folder of the weights.")
    return lines


def _pool(plan: ClusterPlan, group: _Group, engine: str, per_node: int, port: int) -> list[str]:
    r, option = plan.request, group.option
    p, limits = option.placement, option.memory.request.limits
    lines = [
        f"model: {json.dumps(r.arch.name)}",
        f"served_model_name: {json.dumps(group.name)}",
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
        return [*lines, "emulator:", f"  block_size: {group.block}", f"  token_budget: {limits.tokens}"]
    profile = option.predicted  # the scheduler wants what is likely, not what was sized with
    if profile is not None:
        lines += [
            f"kv_tokens_max: {option.memory.tokens}",
            f"prefill_tokens_per_s: {profile.prefill_tokens_per_s:.0f}",
            f"decode_step_s: {profile.decode_fixed_s + profile.decode_per_seq_s:.5f}",
        ]
    flags = _vllm_flags(plan, group) if engine == "vllm" else _sglang_flags(plan, group)
    lines.append(f"engine_args: [{', '.join(json.dumps(f) for f in flags)}]")
    environment = _environment(plan, group)
    return lines + (
        ["environment:", *(f"  {k}: {json.dumps(v)}" for k, v in environment.items())] if environment else []
    )


def _vllm_flags(plan: ClusterPlan, group: _Group) -> list[str]:
    r = plan.request
    flags = ["--gpu-memory-utilization", f"{r.utilization:g}"]
    flags += ["--max-num-batched-tokens", str(group.option.memory.request.limits.tokens)]
    flags += ["--block-size", str(group.block)] if group.block != 16 else []
    flags += ["--enable-expert-parallel"] if group.option.placement.ep else []
    flags += ["--kv-cache-dtype", "fp8"] if r.kv_bytes < 2 else []
    flags += ["--enforce-eager"] if r.eager else []
    flags += ["--quantization", "bitsandbytes"] if r.arch.fmt.name == "bnb4" and not _published(plan) else []
    return flags


def _sglang_flags(plan: ClusterPlan, group: _Group) -> list[str]:
    r = plan.request
    flags = ["--mem-fraction-static", f"{r.utilization:g}"]
    flags += ["--chunked-prefill-size", str(group.option.memory.request.limits.tokens)]
    flags += ["--kv-cache-dtype", "fp8_e4m3"] if r.kv_bytes < 2 else []
    return flags + (["--disable-cuda-graph"] if r.eager else [])


def _environment(plan: ClusterPlan, group: _Group) -> dict[str, str]:
    r, found = plan.request, {}
    if r.version.name == "vllm" and not r.graphs_counted:
        found["VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"] = "0"
    if group.option.placement.partition:
        found["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, group.option.placement.partition))
    return found


def _precision(plan: ClusterPlan, engine: str) -> str:
    """What the engine must be told: nothing about weights that are published in their format, which it reads there."""
    fmt = plan.request.arch.fmt
    if engine == "emulator" or (fmt.precision == "fp8" and not _published(plan)):
        return fmt.precision
    return "auto"
