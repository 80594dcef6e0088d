"""When a cluster is not worth it, and what is cheaper; and the rule-of-thumb arithmetic of the literature, checked."""

from __future__ import annotations

from dataclasses import dataclass

from exaserve.planning.fleet import PlanRequest
from exaserve.planning.layout import Option
from exaserve.planning.memory import GIB, SAFETY

__all__ = ["Objection", "claim_check", "verdicts"]

REQUESTS_PER_DAY_LEAST = 100_000
PARAMETERS_B_LEAST = 13.0


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason against a cluster and the cheaper alternative. ``code`` is stable."""

    code: str
    reason: str
    alternative: str


def verdicts(r: PlanRequest, best: Option | None) -> list[Objection]:
    """Every reason that applies."""
    found = []
    size = r.arch.parameters / 1e9
    if r.demand_given and r.demand.per_day < REQUESTS_PER_DAY_LEAST and not r.offline:
        found.append(
            Objection(
                "low-demand",
                f"{r.demand.per_day:,.0f} requests a day are below {REQUESTS_PER_DAY_LEAST:,}",
                _single(best) if best and best.works else "rent tokens from a hosted service",
            )
        )
    if size < PARAMETERS_B_LEAST and r.demand_given and (best is None or best.cards <= r.fleet.cards_per_node):
        found.append(
            Objection(
                "small-model",
                f"{size:.1f} B parameters are below {PARAMETERS_B_LEAST:g} B and the demand fits into one machine",
                "one engine per card on that machine and a gateway on it; no cluster, no fast network",
            )
        )
    if r.offline:
        found.append(
            Objection(
                "offline",
                "nobody waits: latency targets do not matter",
                "a batch job (the engine's offline mode under a job scheduler) on whatever is idle, at full batches",
            )
        )
    if not r.operations:
        found.append(
            Objection(
                "no-operations",
                "a cluster needs people who watch, patch and repair it",
                "a hosted service, or one managed machine with one engine",
            )
        )
    api = r.prices.api_million_tokens
    if api is not None and best is not None and best.cost is not None and best.cost.per_million_tokens > api:
        found.append(
            Objection(
                "hosted-cheaper",
                f"{best.cost.per_million_tokens:.2f} {best.cost.currency} per million tokens here, "
                f"{api:.2f} from the hosted service given",
                "the hosted service, until the demand has grown "
                f"{best.cost.per_million_tokens / api:.1f} times on the same cards",
            )
        )
    return found


def _single(best: Option) -> str:
    if best.cards <= 1:
        return "one card with one engine carries it"
    return f"{best.cards} cards carry it: one machine, or a hosted service billed by token"


def claim_check(r: PlanRequest, best: Option | None) -> list[str]:
    """Judges a wished count of replicas per node: what it would need of the node, card by card and in gigabytes.

    The literature's own example wants 12 copies of a 70 B model in INT8, 100 to 120 GB each, on nodes of 8 x 80 GB.
    """
    wanted = r.replicas_per_node
    if not wanted:
        return []
    f = r.arch.facts
    weights = r.arch.parameters * r.arch.fmt.bits / 8 / 1e9
    node_gb = r.fleet.card_gib * r.fleet.cards_per_node * GIB / 1e9
    per_token = 2 * len(r.arch.layers) * f.kv_heads * f.head_dim * r.kv_bytes
    # The rule wants room for some ten to twenty requests in flight beside the weights.
    low, high = (weights + 3) * SAFETY, (weights + 3) * SAFETY * 1.2
    lines = [
        f"weights: {r.arch.parameters / 1e9:.1f} x 10^9 x {r.arch.fmt.bits / 8:g} B = {weights:.0f} GB",
        (
            f"KV cache: 2 x {len(r.arch.layers)} layers x {f.kv_heads} heads x {f.head_dim} x {r.kv_bytes:g} B = "
            f"{per_token / 1e3:.0f} kB a token"
        ),
        (
            f"rule of thumb: (weights + 3 GB framework) x {SAFETY} and up to a fifth more for cache: "
            f"{low:.0f} to {high:.0f} GB a copy"
        ),
        f"{wanted} copies: {wanted * low:.0f} to {wanted * high:.0f} GB; the node has {node_gb:.0f} GB: "
        + (
            "fits"
            if wanted * high <= node_gb
            else f"does not fit, {int(node_gb // high)} to {int(node_gb // low)} would"
        ),
    ]
    if best is not None and best.count.per_node:
        cards = wanted * best.placement.cards
        lines.append(
            f"exactly: {best.count.per_node} replicas a node over {best.placement.cards} card(s) each; {wanted} would "
            f"take {cards} cards of {r.fleet.cards_per_node}"
        )
    elif best is not None:
        lines.append(f"exactly: one replica takes {best.count.nodes_per_replica} nodes")
    return lines
