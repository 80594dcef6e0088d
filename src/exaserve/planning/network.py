"""What crosses links: bytes per hop and step, load, share of the step's time, and the fabric that carries it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from exaserve.domain.errors import ConfigError
from exaserve.perfmodel import Hardware
from exaserve.planning.architecture import Architecture
from exaserve.planning.queueing import Steady
from exaserve.planning.weights import Parallelism

__all__ = ["LINKS", "Fabric", "Flow", "NetworkLink", "fabric", "find_link", "flows"]

BUSY = 0.7
"""Load of a link above which queues grow: it is then the bottleneck."""

SLOW = 0.10
"""Share of a step spent on a link above which it is worth another layout."""

EVENT_BYTES = 250
"""One streamed event to a client, bytes, with HTTP framing and TCP/IP headers."""


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """A port, one direction: 10^9 bytes per second that reach an application, seconds for a small message.

    Rates are the standards' less framing; latencies are what public benchmarks show between two hosts on one switch
    (TCP for Ethernet, RDMA verbs for the others).
    """

    name: str
    gb_s: float
    latency_s: float
    rdma: bool = True


LINKS: Mapping[str, NetworkLink] = MappingProxyType(
    {
        link.name: link
        for link in (
            NetworkLink("ethernet-1", 0.117, 40e-6, rdma=False),
            NetworkLink("ethernet-10", 1.17, 25e-6, rdma=False),
            NetworkLink("ethernet-25", 2.9, 20e-6, rdma=False),
            NetworkLink("ethernet-100", 11.6, 15e-6, rdma=False),
            NetworkLink("roce-25", 2.9, 2.5e-6),
            NetworkLink("roce-100", 11.8, 2.0e-6),
            NetworkLink("roce-200", 23.6, 2.0e-6),
            NetworkLink("roce-400", 47.5, 2.0e-6),
            NetworkLink("infiniband-edr", 12.1, 0.9e-6),
            NetworkLink("infiniband-hdr", 24.3, 0.8e-6),
            NetworkLink("infiniband-ndr", 48.6, 0.8e-6),
            NetworkLink("infiniband-xdr", 97.0, 0.8e-6),
        )
    }
)
_ALIASES = {"1g": "ethernet-1", "10g": "ethernet-10", "25g": "ethernet-25", "100g": "ethernet-100"}


def find_link(name: str) -> NetworkLink:
    """The link of a name: ``infiniband-ndr``, ``ib-ndr``, ``ndr``, ``roce-100``, ``10g``. Raises ConfigError."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    key = _ALIASES.get(key, key).replace("ib-", "infiniband-").replace("eth-", "ethernet-").removesuffix("gbe")
    for candidate in (key, f"infiniband-{key}", f"ethernet-{key}"):
        if candidate in LINKS:
            return LINKS[candidate]
    raise ConfigError(f"Unknown network {name!r}. Known: {', '.join(LINKS)}.", param="network")


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of traffic.

    Attributes:
        name / where: what moves, over which link.
        step_bytes: bytes per hop and step on one port (0 for traffic that is no part of a step).
        rate_gb_s: mean load, 10^9 bytes/s on that port.
        load: of the port's rate.
        step_share: time of the transfer over the step's time.
        formula: how ``step_bytes`` comes about.
    """

    name: str
    where: str
    step_bytes: float
    rate_gb_s: float
    load: float
    step_share: float
    formula: str

    @property
    def verdict(self) -> str:
        if self.load > 1:
            return "impossible"
        if self.load > BUSY:
            return "bottleneck"
        return "slow" if self.step_share > SLOW else "ok"


def flows(
    arch: Architecture,
    placement: Parallelism,
    hardware: Hardware,
    link: NetworkLink,
    state: Steady,
    cards_per_node: int,
    nics: int,
    replicas_per_node: int,
) -> list[Flow]:
    """Traffic of one replica in steady state, and of a node's clients."""
    f = arch.facts
    tokens = state.batch + state.prefill_tokens
    found = []
    inside = placement.tp <= cards_per_node
    if placement.tp > 1:
        size = 2 * len(arch.layers) / placement.pp * tokens * f.hidden * 2 * 2 * (placement.tp - 1) / placement.tp
        port = hardware.link_gb_s if inside else link.gb_s * nics / min(cards_per_node, placement.tp)
        delay = 0.0 if inside else 2 * len(arch.layers) * link.latency_s * 2
        where = f"{hardware.link} in the node" if inside else f"{link.name} between nodes"
        how = f"2 all-reduces x {len(arch.layers)} layers x {tokens:.0f} tokens x {f.hidden} x 2 B x 2(t-1)/t"
        found.append(_flow("tensor parallel all-reduce", where, size, port, delay, state, how))
    if placement.ep:
        away = 1 - 1 / placement.tp
        size = len(arch.layers) * tokens / placement.tp * f.top_k * f.hidden * 3 * away
        port = hardware.link_gb_s if inside else link.gb_s
        where = f"{hardware.link} in the node" if inside else f"{link.name} between nodes"
        how = f"tokens x {f.top_k} experts x {f.hidden} x (1 B there + 2 B back) x {len(arch.layers)} layers"
        found.append(_flow("expert parallel all-to-all", where, size, port, 0.0, state, how))
    if placement.pp > 1:
        crossing = placement.cards > cards_per_node
        size = tokens * f.hidden * 2 * 2 / (placement.tp if not crossing else 1)
        port = link.gb_s if crossing else hardware.link_gb_s
        delay = link.latency_s if crossing else 5e-6
        where = f"{link.name} between nodes" if crossing else f"{hardware.link} in the node"
        how = f"{tokens:.0f} tokens x {f.hidden} x 2 B x 2 (hidden state and residual), per hop"
        found.append(_flow(f"pipeline hand-over, {placement.pp - 1} hops", where, size, port, delay, state, how))
    streamed = state.batch / state.step_s * EVENT_BYTES * replicas_per_node / 1e9
    found.append(
        Flow(
            "streams to clients",
            f"{link.name}, one port of the node",
            0.0,
            streamed,
            streamed / link.gb_s,
            0.0,
            f"{state.batch / state.step_s * replicas_per_node:.0f} tokens/s x {EVENT_BYTES} B an event",
        )
    )
    return found


def _flow(name: str, where: str, size: float, port: float, delay: float, state: Steady, how: str) -> Flow:
    rate = size / state.step_s / 1e9
    took = size / (port * 1e9) + delay
    return Flow(name, where, size, rate, rate / port if port else math.inf, min(1.0, took / state.step_s), how)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A two-tier leaf and spine network without oversubscription, and whether the cluster fits into it.

    Attributes:
        leaves / spines: switches; spines 0 where one switch joins all.
        ports: used on leaves towards nodes, and between tiers.
        hops: switches-to-switch hops between the two farthest nodes: 0 on one leaf, 2 over a spine.
        nodes_max: what two tiers carry.
    """

    radix: int
    leaves: int
    spines: int
    node_ports: int
    uplinks: int
    hops: int
    nodes_max: int

    @property
    def fits(self) -> bool:
        return self.hops <= 2


def fabric(nodes: int, nics: int, radix: int = 64) -> Fabric:
    """The smallest fabric for ``nodes`` with ``nics`` ports each on switches of ``radix`` ports."""
    ports = nodes * nics
    nodes_max = radix * radix // 2 // max(1, nics)
    if ports <= radix:
        return Fabric(radix, 1, 0, ports, 0, 0, nodes_max)
    down = radix // 2
    leaves = math.ceil(ports / down)
    spines = math.ceil(leaves * down / radix)
    return Fabric(radix, leaves, spines, ports, leaves * down, 2 if leaves <= radix else 4, nodes_max)
