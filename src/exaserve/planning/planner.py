"""The plan: every layout judged, the cheapest that holds recommended, with what it takes and what else to know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exaserve.domain.errors import ConfigError
from exaserve.models.architecture import Architecture
from exaserve.perfmodel import HARDWARE, Hardware
from exaserve.planning.certainty import Band, Predicted, load_bands, predicted
from exaserve.planning.cost import Cost, cost_of
from exaserve.planning.demand import TrafficDemand, block_for_length
from exaserve.planning.fleet import PlanRequest
from exaserve.planning.layout import STAGES_WELL, Option, bubble, candidates, evaluate
from exaserve.planning.memory import uneven_partition
from exaserve.planning.network import Fabric, Flow, fabric, flows
from exaserve.planning.queueing import Waiting, held_rate, saturation, waiting
from exaserve.planning.remedies import remedies
from exaserve.planning.verdicts import Objection, claim_check, verdicts
from exaserve.planning.weights import Parallelism, check_split

__all__ = ["ClusterPlan", "Headroom", "PoolPlan", "SweepRow", "make_plan", "sweep"]

SWEEP_ROWS_MAX = 2_000
"""About three times what a sweep over the whole table has."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One pool of a split by input length (or the only one).

    Attributes:
        block: KV block size for its prompts.
        prompts_up_to: longest prompt routed to it, tokens; 0 for no limit.
        capacity_s: requests/s of this class that its replicas could carry.
    """

    name: str
    block: int
    prompts_up_to: int
    option: Option
    capacity_s: float


@dataclass(frozen=True, slots=True)
class Headroom:
    """What happens when machines are lost, and how many more keep the targets.

    Attributes:
        name: "node", "replica" (where one takes several nodes) or "rack". nodes_lost: how many go at once.
        holds: whether the planned nodes still hold the targets then.
        nodes_needed: nodes that do. utilisation: of the rest, without more.
    """

    name: str
    nodes_lost: int
    holds: bool
    nodes_needed: int
    utilisation: float


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The answer.

    Attributes:
        options: all layouts judged, the best first. best: the one recommended, or the nearest miss.
        nodes: to run, spares not counted (the fleet's own count where it is given).
        replicas: on them.
        now: load and latencies of these replicas, None where they do not carry the demand.
        capacity: requests/s of each class alone that they carry within every target. held_s: of the mix.
        mixed_capacity_s: of the mix, until the time per token, the batch, the cache or compute gives out (first tokens
            may then wait longer than they should).
        pools: by input length; empty where one pool is better or there is one class.
        cost: of these replicas' cards (a given fleet is paid for whether it is needed or not).
        bubble: idle share of pipeline stages for one prompt; 0 without stages.
        predicted: speeds as predicted, with their intervals: all other figures are of the steps that were sized with.
            None where steps are measured, or nothing starts.
    """

    request: PlanRequest
    options: tuple[Option, ...]
    best: Option | None
    works: bool
    nodes: int
    replicas: int
    now: Waiting | None
    capacity: Mapping[str, float]
    mixed_capacity_s: float
    held_s: float
    headroom: tuple[Headroom, ...]
    pools: tuple[PoolPlan, ...]
    flows: tuple[Flow, ...]
    fabric: Fabric
    verdicts: tuple[Objection, ...]
    claims: tuple[str, ...]
    notes: tuple[str, ...]
    cost: Cost | None
    bubble: float
    predicted: Predicted | None = None


def _rank(option: Option, demand_given: bool = True) -> tuple[float, ...]:
    """Working before not, cheap before dear, then few ranks. Without a demand: what starts on the fewest nodes, stages
    and cards.
    """
    p = option.placement
    if not demand_given and option.memory.fits:
        return (0 if option.works else 1, option.count.nodes_per_replica, p.pp, p.cards)
    if option.works and option.needed is not None:
        return (0, option.cards, p.pp, p.tp)
    # Of those that do not: what at least starts, then what carries most per card.
    return (1, 0 if option.memory.fits else 1, -option.rate_max_s / p.cards, p.pp, p.tp)


def make_plan(r: PlanRequest) -> ClusterPlan:
    """Plans. Raises ConfigError where the question contradicts itself."""
    demand = r.demand.with_targets(r.targets)
    options = sorted((evaluate(r, p, demand) for p in candidates(r)), key=lambda o: _rank(o, r.demand_given))
    best = options[0] if options else None
    works = best is not None and best.works
    nodes, replicas, now = _deployment(r, best, demand)
    if r.fleet.nodes is not None and r.demand_given:
        works = now is not None and now.holds(r.targets.tpot_s) and best is not None and not best.network
    carried = best.rate_max_s * replicas if best else 0.0
    held = _held(r, best, demand, replicas)
    notes = _notes(r, best, now, carried, held)
    state = now.state if now else None
    traffic: list[Flow] = []
    if best is not None and state is not None:
        traffic = flows(r.arch, best.placement, r.fleet.wiring, state, best.count.per_node or 1)
    return ClusterPlan(
        request=r,
        options=tuple(options),
        best=best,
        works=works,
        nodes=nodes,
        replicas=replicas,
        now=now,
        capacity=_capacity(r, best, demand, replicas),
        mixed_capacity_s=carried,
        held_s=held,
        headroom=tuple(_headroom(r, best, demand, nodes)),
        pools=tuple(_pools(r, best, demand)),
        flows=tuple(traffic),
        fabric=fabric(max(nodes, 1), r.fleet.nics, r.fleet.radix),
        verdicts=tuple(verdicts(r, best)),
        claims=tuple(claim_check(r, best)),
        notes=tuple(notes),
        cost=cost_of(replicas * best.placement.cards, r.fleet.hardware, demand, r.prices, carried)
        if best and replicas
        else None,
        bubble=_bubble(r, best),
        predicted=_predicted(r, best, demand, replicas),
    )


def _predicted(r: PlanRequest, best: Option | None, demand: TrafficDemand, replicas: int) -> Predicted | None:
    if best is None or best.predicted is None or best.certainty is None:
        return None
    return predicted(best.certainty, best.predicted, demand, r.targets.tpot_s, replicas)


def _deployment(r: PlanRequest, best: Option | None, demand: TrafficDemand) -> tuple[int, int, Waiting | None]:
    """Nodes, replicas and their load: what the demand needs, or what the given nodes carry."""
    if best is None or not best.memory.fits or best.profile is None:
        return r.fleet.nodes or 0, 0, None
    if r.fleet.nodes is None:
        return (best.nodes, best.needed.replicas, best.needed) if best.needed else (0, 0, None)
    replicas = _replicas_on(best, r.fleet.nodes)
    if replicas < 1:
        return r.fleet.nodes, 0, None
    return r.fleet.nodes, replicas, waiting(best.profile, demand, replicas, best.saturated_s, best.first_factor)


def _replicas_on(best: Option, nodes: int) -> int:
    return nodes * best.count.per_node if best.count.per_node else nodes // best.count.nodes_per_replica


def _held(r: PlanRequest, best: Option | None, demand: TrafficDemand, replicas: int) -> float:
    """Requests/s of a mix that so many replicas carry within every target."""
    if best is None or best.profile is None:
        return 0.0
    rate, saturated = best.rate_max_s, best.saturated_s
    if demand.classes != r.demand.with_targets(r.targets).classes:
        rate, saturated = saturation(best.profile, demand, r.targets.tpot_s)[0], saturation(best.profile, demand)[0]
    return held_rate(best.profile, demand, replicas, r.targets.tpot_s, rate, saturated, best.first_factor)


def _capacity(r: PlanRequest, best: Option | None, demand: TrafficDemand, replicas: int) -> dict[str, float]:
    if best is None or best.profile is None:
        return {}
    return {c.name: _held(r, best, demand.only(c), replicas) for c in demand.classes}


def _headroom(r: PlanRequest, best: Option | None, demand: TrafficDemand, nodes: int) -> list[Headroom]:
    if best is None or best.profile is None or not nodes or best.rate_max_s <= 0:
        return []
    found = []
    for name, lost in (
        (("node" if best.count.per_node else "replica"), best.count.nodes_per_replica),
        ("rack", r.fleet.nodes_per_rack),
    ):
        if name == "rack" and nodes <= r.fleet.nodes_per_rack:
            continue
        rest = _replicas_on(best, nodes - lost) if nodes > lost else 0
        left = waiting(best.profile, demand, rest, best.saturated_s, best.first_factor) if rest else None
        holds = left is not None and left.holds(r.targets.tpot_s)
        needed = best.nodes + lost if best.nodes else nodes + lost
        carried = _held(r, best, demand, rest) if rest else 0.0
        used = demand.rate_s / carried if carried else math.inf
        found.append(Headroom(name, lost, holds, needed, used))
    return found


def _pools(r: PlanRequest, best: Option | None, demand: TrafficDemand) -> list[PoolPlan]:
    """A pool for each class of input length, each with its own block size and number of replicas."""
    if best is None or best.profile is None or len(demand.classes) < 2:
        return []
    ordered = sorted(demand.classes, key=lambda c: c.prompt_tokens)
    found = []
    for index, each in enumerate(ordered):
        block = block_for_length(each.prompt_tokens)
        alone = replace(r, demand=demand.only(each), block=block)
        option = evaluate(alone, best.placement, demand.only(each))
        replicas = option.needed.replicas if option.needed else 0
        limit = (each.prompt_tokens + ordered[index + 1].prompt_tokens) // 2 if index + 1 < len(ordered) else 0
        found.append(PoolPlan(each.name, block, limit, option, option.rate_max_s * replicas))
    return found


def _bubble(r: PlanRequest, best: Option | None) -> float:
    if best is None:
        return 0.0
    budget = best.memory.request.limits.tokens
    return bubble(best.placement.pp, max(1, math.ceil(r.demand.prompt / budget)))


def _notes(r: PlanRequest, best: Option | None, now: Waiting | None, carried: float, held: float) -> list[str]:
    if best is None:
        return [f"no cut of {r.arch.name} over these cards is possible: {r.arch.facts.heads} heads"]
    if not best.memory.fits:
        found = remedies(best.memory, r.fleet.cards_per_node)
        return [f"it would start with {each}" for each in found] or [
            "no single flag is enough on a node of these cards"
        ]
    notes = [*best.memory.warnings, *_layout_notes(r, best), *_fleet_notes(r, best, now, carried, held)]
    if r.version.name == "trtllm":
        notes.append(
            "memory is vLLM's sum, for TensorRT-LLM's own is not modelled: its cache differs; speeds are TensorRT-LLM's"
        )
    if not r.demand_given:
        notes.append("no demand given: rates and costs are for one request/s of 1,000 + 200 tokens, to have figures")
    if r.profile is not None:
        missing = [each.what for each in r.profile.refused]
        taken = f"step times are measured ({r.profile.model or 'model not named'}, {r.profile.date or 'undated'})"
        notes.append(taken + (f"; estimated still: {', '.join(missing)}" if missing else ""))
    return notes


def _layout_notes(r: PlanRequest, best: Option) -> list[str]:
    p, fleet, notes = best.placement, r.fleet, []
    if fleet.group < p.tp <= fleet.cards_per_node and fleet.hardware.link in ("nvlink", "xgmi"):
        notes.append(
            f"tensor parallel over {p.tp} cards leaves the group of {fleet.group} that fast links join: "
            "all-reduces cross PCIe, which every step pays"
        )
    if p.tp > fleet.cards_per_node:
        notes.append(f"tensor parallel over {p.tp} cards: all-reduces cross {fleet.link.name}, which every step pays")
    if p.pp > STAGES_WELL:
        notes.append(f"{p.pp} pipeline stages: above {STAGES_WELL} bubble and hand-overs cost more than they give")
    if p.pp > 1 and len(set(fleet.memory_gib)) > 1 and not p.partition:
        parts = ",".join(map(str, uneven_partition(len(r.arch.layers), fleet.memory_gib[: p.pp])))
        notes.append(f"cards differ: --partition {parts} (vLLM: VLLM_PP_LAYER_PARTITION) gives layers by memory")
    elif p.pp > 1 and len(r.arch.layers) % p.pp:
        notes.append(f"{len(r.arch.layers)} layers over {p.pp} stages are uneven; the fullest decides")
    if fleet.cards_per_node % p.cards and p.cards < fleet.cards_per_node:
        notes.append(f"{fleet.cards_per_node % p.cards} card(s) of every node stay unused")
    if p.cards > fleet.cards_per_node and p.tp < fleet.group:
        notes.append("a wider tensor parallel size inside the node would need fewer hops between nodes")
    return notes


def _fleet_notes(r: PlanRequest, best: Option, now: Waiting | None, carried: float, held: float) -> list[str]:
    card, there, notes = r.fleet.hardware, r.fleet.nodes, []
    if there is not None and r.demand_given and best.needed is not None and best.works:
        if best.nodes > there:
            asked = r.demand.rate_s
            says = (
                f"the demand needs {best.nodes:,} nodes, {there:,} {'is' if there == 1 else 'are'} there: they carry "
            )
            says += f"{carried:,.2f} of {asked:,.2f} requests/s" if carried < asked else f"all {asked:,.2f} requests/s"
            late = [c for c in now.per_class if not c.holds] if now else []
            if late:
                says += f", but the first token of {late[0].name} takes {late[0].ttft_p99_s:,.2f} s (P99)"
            notes.append(f"{says}; within every target {held:,.2f}")
        elif best.nodes < there:
            notes.append(f"{best.nodes} nodes would hold the demand, {there} are there and paid for")
    if r.arch.fmt.precision == "fp8" and not card.fp8_tflops:
        notes.append(f"{card.name} has no fp8 units: weights are widened, memory is saved but no time")
    if card.slice_of:
        notes.append(f"cards are MIG slices of the {card.slice_of}: one engine each, nothing joins them")
    return notes


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination of card, format and layout.

    Attributes:
        weights_gib: on a rank of the first stage. tokens: cache of one replica.
        tokens_s: output tokens per second and card at the highest rate within the targets; this, ``ttft_p99_s`` and
            ``tpot_s`` are of the steps that were sized with.
        first_band_s / token_band_s: as predicted, with their intervals: P99 to the first token of the class that waits
            longest, and per token; None where it does not work.
        like / like_rows: what measurements that the interval per token is from have in common with this; how many.
    """

    hardware: str
    fmt: str
    tp: int
    pp: int
    fits: bool
    works: bool
    why: str
    weights_gib: float
    tokens: int
    replicas: int
    cards: int
    tokens_s: float
    ttft_p99_s: float
    tpot_s: float
    hour: float
    per_million_tokens: float | None
    first_band_s: Band | None
    token_band_s: Band | None
    like: str
    like_rows: int


def sweep(
    r: PlanRequest,
    architectures: Mapping[str, Architecture],
    cards: Sequence[Hardware] = (),
    sizes: Sequence[int] = (1, 2, 4, 8),
) -> list[SweepRow]:
    """Every card, format and tensor parallel size under the request's demand; best first.

    Args:
        architectures: the model in each format to compare.
        cards: empty for every real accelerator of the table.
    """
    demand = r.demand.with_targets(r.targets)
    hardware = list(cards) or [h for h in HARDWARE.values() if h.link != "none" and h.name != "GB10"]
    if r.profile is not None:
        raise ConfigError("A profile is of one replica on one card; a sweep compares cards.", param="profile")
    rows: list[SweepRow] = []
    for card in hardware:
        for name, arch in architectures.items():
            asked = r.on(card, arch)
            for tp in sizes:
                if tp > r.fleet.cards_per_node or len(rows) >= SWEEP_ROWS_MAX:
                    continue
                rows.append(_row(evaluate(asked, _cut(asked, tp), demand), name, demand))
    return sorted(rows, key=lambda row: (row.per_million_tokens is None, row.per_million_tokens or 0.0, row.hardware))


def _cut(r: PlanRequest, tp: int) -> Parallelism:
    ep = bool(r.arch.facts.experts) and bool(_whole_experts(r, tp))
    return Parallelism(tp, 1, ep)


def _whole_experts(r: PlanRequest, tp: int) -> list[str]:
    """Why experts cannot be cut over ``tp`` ranks, so that they must be spread whole; empty where they can."""
    without = check_split(r.arch, Parallelism(tp, 1))
    return without if without and not check_split(r.arch, Parallelism(tp, 1, ep=True)) else []


def _row(option: Option, fmt: str, demand: TrafficDemand) -> SweepRow:
    p, needed, certainty = option.placement, option.needed, option.certainty
    bands: list[Band] = []
    if needed and option.works and certainty and option.predicted:
        bands = load_bands(certainty, option.predicted, demand, needed.replicas)
    return SweepRow(
        hardware=option.memory.request.hardware.name,
        fmt=fmt,
        tp=p.tp,
        pp=p.pp,
        fits=option.memory.fits,
        works=option.works,
        why="; ".join(option.reasons[:1]),
        weights_gib=option.memory.weights_gib,
        tokens=option.memory.tokens,
        replicas=needed.replicas if needed else 0,
        cards=option.cards,
        tokens_s=option.rate_max_s * demand.output / p.cards,
        ttft_p99_s=max((c.ttft_p99_s for c in needed.per_class), default=0.0) if needed else 0.0,
        tpot_s=needed.state.step_s if needed else 0.0,
        hour=option.cost.hour if option.cost else 0.0,
        per_million_tokens=option.cost.per_million_tokens if option.cost and option.works else None,
        first_band_s=max(bands[1:], key=lambda b: b.predicted) if bands else None,
        token_band_s=bands[0] if bands else None,
        like=certainty.token.like if certainty else "",
        like_rows=certainty.token.rows if certainty else 0,
    )
