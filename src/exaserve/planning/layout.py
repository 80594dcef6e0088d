"""Layouts: which cuts of a model over cards are worth looking at, what each carries, and why a count is what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exaserve.perfmodel import Calibration, EngineProfile, engine_profile
from exaserve.perfmodel.roofline import KV_TOKENS_MAX
from exaserve.perfmodel.shrinkage import prior_of
from exaserve.planning.certainty import Certainty, certainty_of
from exaserve.planning.cost import Cost, cost_of
from exaserve.planning.demand import TrafficDemand
from exaserve.planning.fleet import PlanRequest
from exaserve.planning.memory import GIB, MemoryPlan, plan_memory
from exaserve.planning.network import crossings, flows, network_time
from exaserve.planning.queueing import Waiting, replicas_for, saturation, waiting
from exaserve.planning.weights import Parallelism, check_split

__all__ = ["Count", "Option", "bubble", "candidates", "evaluate", "profile_of"]

STAGES_MAX = 16
STAGES_WELL = 8
"""Pipeline stages: at most 16; above 8 the bubble and the hand-overs cost more than they give."""


@dataclass(frozen=True, slots=True)
class Count:
    """Replicas per node (or nodes per replica), and why not one more."""

    per_node: int
    nodes_per_replica: int
    why_not_more: str


@dataclass(frozen=True, slots=True)
class Option:
    """One layout, judged.

    Attributes:
        memory: the exact sum.
        profile: step times that the layout is sized with, None where it does not fit. predicted: as they are
            predicted, or measured.
        certainty: how far off those may be; None where they are measured, or there are none.
        rate_max_s: what one replica carries within the per-token target, requests/s.
        saturated_s: what it carries without a per-token target, requests/s: where queues grow without end.
        limit: what it runs out of first.
        needed: fewest replicas that hold the targets; None where no number does (``limit`` says why).
        nodes: that these replicas take. cost: of those nodes' cards that replicas use.
        reasons: why it is out; empty if it is not. network: the one of them that is the network, "" if none.
    """

    placement: Parallelism
    memory: MemoryPlan
    profile: EngineProfile | None
    rate_max_s: float
    saturated_s: float
    limit: str
    needed: Waiting | None
    count: Count
    nodes: int
    cards: int
    cost: Cost | None
    reasons: tuple[str, ...]
    network: str = ""
    predicted: EngineProfile | None = None
    certainty: Certainty | None = None

    @property
    def works(self) -> bool:
        return not self.reasons

    @property
    def first_factor(self) -> float:
        """For :func:`exaserve.planning.queueing.waiting`."""
        return self.certainty.first_factor if self.certainty else 1.0


def profile_of(
    memory: MemoryPlan, measured: Calibration | None = None, network: tuple[float, float] = (0.0, 0.0)
) -> EngineProfile:
    """Step times of the replica of a memory plan that fits.

    Args:
        measured: a profile of such a replica; its points move the estimate, as far as each is worth.
        network: seconds of each token and of each step on links the roofline does not know (a measured step has them).
    """
    asked = memory.request
    limits = asked.limits
    tokens = min(memory.tokens, KV_TOKENS_MAX)
    seqs = max(1, min(limits.seqs, limits.tokens))
    made = engine_profile(
        asked.hardware,
        asked.arch,
        asked.placement.tp,
        asked.placement.pp,
        whole_experts=asked.placement.ep,
        engine=asked.version.name,
        version=asked.version.numbers,
        kv_precision="fp8" if asked.kv_bytes < 2 else "bf16",
        kv_tokens=max(tokens, memory.layout.block),
        max_model_len=asked.length,
        max_num_seqs=seqs,
        token_budget=limits.tokens,
        block_size=memory.layout.block,
    )
    if measured is not None:
        prior = prior_of(
            made,
            asked.hardware,
            asked.arch,
            asked.placement.tp,
            whole_experts=asked.placement.ep,
            engine=asked.version.name,
            version=asked.version.numbers,
        )
        held = {name: n for name, n in measured.limits.items() if name == "kv_tokens_max"}
        return replace(measured, limits=held).engine_profile(prior)
    token_s, step_s = network
    return replace(
        made,
        prefill_tokens_per_s=1.0 / (1.0 / made.prefill_tokens_per_s + token_s),
        decode_per_seq_s=made.decode_per_seq_s + token_s,
        decode_fixed_s=made.decode_fixed_s + step_s,
        overhead_s=made.overhead_s + step_s,
    )


def bubble(stages: int, microbatches: int) -> float:
    """Share of time that pipeline stages idle while ``microbatches`` pass through: (p - 1) / (m + p - 1)."""
    return (stages - 1) / (microbatches + stages - 1) if stages > 1 else 0.0


def candidates(r: PlanRequest) -> list[Parallelism]:
    """Cuts worth judging: tensor parallel inside a link group, then as few stages as the memory needs."""
    widest = max(r.fleet.group, 1)
    if r.fleet.group == 1:
        widest = r.fleet.cards_per_node  # PCIe: possible, and judged by what it costs
    if r.fleet.hardware.slice_of:
        widest = 1  # slices of a card cannot reach each other
    sizes = [r.tp] if r.tp else [t for t in (1, 2, 4, 6, 8, 12, 16, 32, 64, 72) if t <= widest]
    found = []
    for tp in sizes:
        stages = [r.pp] if r.pp else [1] if r.fleet.hardware.slice_of else _stages(r, tp)
        for pp in stages:
            for ep in [r.ep] if r.ep is not None else [False, True]:
                placement = Parallelism(tp, pp, bool(ep), r.partition if len(r.partition) == pp else ())
                refused = check_split(r.arch, placement)
                if ep and (r.ep is None) and (tp == 1 or not check_split(r.arch, Parallelism(tp, pp))):
                    continue  # only where experts cannot be cut
                if refused and not (r.tp or r.pp):
                    continue
                found.append(placement)
    return found


def _stages(r: PlanRequest, tp: int) -> list[int]:
    """One stage if the weights fit in it, else the fewest that do, at most 16."""
    usable = r.fleet.card_gib * r.utilization * GIB
    weights = r.arch.parameters * (r.arch.fmt.bits / 8 * 1.03 if r.arch.fmt.quantised else 2.0)
    least = max(1, math.ceil(weights / tp / (usable * 0.93)))
    if least == 1:
        return [1]
    choices = [p for p in (1, 2, 3, 4, 6, 8, 12, 16) if p >= least][:2]
    return choices if tp * least > 1 else [1]


def evaluate(r: PlanRequest, placement: Parallelism, demand: TrafficDemand | None = None) -> Option:
    """Judges one layout against a demand (the request's own unless given)."""
    demand = demand or r.demand.with_targets(r.targets)
    memory = plan_memory(r.memory_request(placement))
    count = count_replicas(r, placement, memory)
    reasons = list(memory.refusals)
    if placement.pp > STAGES_MAX:
        reasons.append(f"{placement.pp} pipeline stages: above {STAGES_MAX} the bubble eats the gain")
    if r.fleet.hardware.slice_of and placement.cards > 1:
        reasons.append(f"{placement.cards} MIG slices cannot be joined: NCCL has no path between them")
    measured = r.profile.limits.get("kv_tokens_max", 0) if r.profile else 0
    if measured and measured < r.length:
        reasons.append(f"the profile's replica holds {measured:,} tokens, a request takes up to {r.length:,}")
    if reasons:
        return Option(placement, memory, None, 0.0, 0.0, "memory", None, count, 0, 0, None, tuple(reasons))
    predicted = profile_of(memory, r.profile, network_time(r.arch, placement, r.fleet.wiring))
    certainty = None if r.profile else certainty_of(memory.request, r.confidence)
    profile = certainty.sized(predicted) if certainty else predicted
    rate, limit = saturation(profile, demand, r.targets.tpot_s)
    # Where the time per token is not the limit, lifting it changes nothing.
    saturated = saturation(profile, demand)[0] if limit == "token time" else rate
    first_factor = certainty.first_factor if certainty else 1.0
    needed, why = replicas_for(profile, demand, r.targets.tpot_s, rate, limit, saturated, first_factor)
    network = _network_reason(r, memory, demand, profile, certainty) if needed is None else ""
    if r.fleet.nodes is not None and needed is None and rate > 0:
        needed = waiting(profile, demand, _fleet_replicas(r, count), saturated, first_factor)
    if not network and needed is not None:
        network = _overloaded(r, placement, needed, count)
    nodes = _nodes(needed.replicas, count) if needed else 0
    cards = needed.replicas * placement.cards if needed else 0
    cost = cost_of(cards, r.fleet.hardware, demand, r.prices, demand.rate_s) if needed else None
    if network:
        reasons.append(network)
    elif needed is None:
        reasons.append(f"no number of replicas holds the targets: {why}")
    elif not needed.holds(r.targets.tpot_s):
        reasons.append(f"targets not held: {why}")
    return Option(
        placement,
        memory,
        profile,
        rate,
        saturated,
        limit,
        needed,
        count,
        nodes,
        cards,
        cost,
        tuple(reasons),
        network,
        predicted,
        certainty,
    )


def _network_reason(
    r: PlanRequest, memory: MemoryPlan, demand: TrafficDemand, profile: EngineProfile, certainty: Certainty | None
) -> str:
    """Why no number of replicas holds the targets, if it is the network that they would hold them without."""
    cut, tpot = memory.request.placement, r.targets.tpot_s
    token_s, step_s = network_time(r.arch, cut, r.fleet.wiring)
    if certainty is None or token_s + step_s <= 0:
        return ""
    without = certainty.sized(profile_of(memory))
    rate, limit = saturation(without, demand, tpot)
    saturated = saturation(without, demand)[0]
    if replicas_for(without, demand, tpot, rate, limit, saturated, certainty.first_factor)[0] is None:
        return ""
    alone = profile.step_s(0, 1, int(demand.context))
    shares = ", ".join(f"{c.name} over {c.where}" for c in crossings(r.arch, cut, r.fleet.wiring) if c.network)
    return (
        f"the network is too slow: {(token_s + step_s) * 1e3:,.1f} of a lone token's {alone * 1e3:,.1f} ms go into "
        f"{shares}; a prompt of {demand.prompt:,.0f} tokens spends {demand.prompt * token_s:,.2f} s there"
    )


def _overloaded(r: PlanRequest, cut: Parallelism, now: Waiting, count: Count) -> str:
    """A port that would have to carry more than it can, such as the clients' streams; "" if there is none."""
    for flow in flows(r.arch, cut, r.fleet.wiring, now.state, count.per_node or 1):
        if flow.verdict == "impossible":
            return f"the network is too slow: {flow.name} would load {flow.where} to {flow.load:,.0%}"
    return ""


def _fleet_replicas(r: PlanRequest, count: Count) -> int:
    assert r.fleet.nodes is not None
    return max(1, r.fleet.nodes * count.per_node if count.per_node else r.fleet.nodes // count.nodes_per_replica)


def _nodes(replicas: int, count: Count) -> int:
    return math.ceil(replicas / count.per_node) if count.per_node else replicas * count.nodes_per_replica


def count_replicas(r: PlanRequest, placement: Parallelism, memory: MemoryPlan) -> Count:
    """How many replicas a node takes, and what the next one would need."""
    per_card = r.fleet.card_gib
    node_gib = per_card * r.fleet.cards_per_node
    need = _replica_gib(memory)
    if placement.cards > r.fleet.cards_per_node:
        span = math.ceil(placement.cards / r.fleet.cards_per_node)
        return Count(0, span, f"one replica takes {placement.cards} cards, that is {span} nodes")
    count = r.fleet.cards_per_node // placement.cards
    more = (count + 1) * placement.cards
    why = (
        f"{count + 1} would take {more} cards of the node's {r.fleet.cards_per_node}; "
        f"at {need:.0f} GiB each (weights, start-up peak, one longest request) "
        f"{(count + 1) * need:.0f} of {node_gib * r.utilization:.0f} usable GiB"
    )
    if (count + 1) * need <= node_gib * r.utilization:
        why += (
            ", which would fit by memory: cards are what is short, a narrower tensor parallel size is the way to more"
        )
    return Count(count, 1, why)


def _replica_gib(memory: MemoryPlan) -> float:
    """What one replica cannot do without, over all its ranks: everything but spare cache."""
    tp = memory.request.placement.tp
    total = sum(s.weights + s.non_torch + s.activation for s in memory.stages) * tp
    return (total + memory.result.needed_bytes * tp * len(memory.stages)) / GIB
