"""What crosses links: bytes per hop and step, load, share of the step's time, and the fabric that carries it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from exaserve.domain.errors import ConfigError
from exaserve.models.architecture import Architecture
from exaserve.perfmodel import Hardware
from exaserve.planning.queueing import Steady
from exaserve.planning.weights import Parallelism

__all__ = [
    "LINKS",
    "Crossing",
    "Fabric",
    "Flow",
    "NetworkLink",
    "Wiring",
    "crossings",
    "fabric",
    "find_link",
    "flows",
    "network_time",
]

BUSY = 0.7
"""Load of a link above which queues grow: it is then the bottleneck."""

SLOW = 0.10
"""Share of a step spent on a link above which it is worth another layout."""

PCIE_GB_S, PCIE_LATENCY_S = 25.0, 30e-6
"""One direction of a PCIe 4.0 x16 slot, 10^9 bytes/s, and one small all-reduce over it, seconds."""

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


@dataclass(frozen=True, slots=True)
class Crossing:
    """One kind of traffic inside a replica and the port it takes.

    Attributes:
        token_bytes: on one port for each token of a step. port_gb_s: that port, 10^9 bytes/s in one direction.
        step_delay_s: latency of a whole step's messages, whatever their size.
        network: whether it leaves what the step-time model already knows: the cards' own links in a node.
        how: the formula of ``token_bytes``.
    """

    name: str
    where: str
    token_bytes: float
    port_gb_s: float
    step_delay_s: float
    network: bool
    how: str

    @property
    def token_s(self) -> float:
        return self.token_bytes / (self.port_gb_s * 1e9)


@dataclass(frozen=True, slots=True)
class Wiring:
    """What traffic of a replica crosses: see :class:`exaserve.planning.fleet.Machines`."""

    hardware: Hardware
    link: NetworkLink
    cards_per_node: int
    group: int
    nics: int


def crossings(arch: Architecture, cut: Parallelism, wiring: Wiring) -> list[Crossing]:
    """What one replica's ranks send each other in every step."""
    f, hw, link = arch.facts, wiring.hardware, wiring.link
    layers = len(arch.layers)
    outside = f"{link.name} between nodes"
    inside = f"{hw.link} in the node"
    node_ports = link.gb_s * wiring.nics
    found = []
    if cut.tp > 1:
        size = 2 * layers / cut.pp * f.hidden * 2 * 2 * (cut.tp - 1) / cut.tp
        how = f"2 all-reduces x {layers} layers x {f.hidden} x 2 B x 2(t-1)/t a token"
        name = "tensor parallel all-reduce"
        if cut.tp > wiring.cards_per_node:
            port = node_ports / wiring.cards_per_node
            delay = 2 * layers / cut.pp * 2 * link.latency_s
            found.append(Crossing(name, outside, size, port, delay, network=True, how=how))
        elif cut.tp > wiring.group and hw.link in ("nvlink", "xgmi"):
            # Between two groups that NVLink joins each by itself, all-reduces go over the host's PCIe.
            delay = 2 * layers / cut.pp * PCIE_LATENCY_S
            found.append(Crossing(name, "pcie in the node", size, PCIE_GB_S, delay, network=True, how=how))
        else:
            found.append(Crossing(name, inside, size, hw.link_gb_s, 0.0, network=False, how=how))
    if cut.ep:
        across = cut.tp > wiring.cards_per_node
        size = layers / cut.pp / cut.tp * f.top_k * f.hidden * 3 * (1 - 1 / cut.tp)
        how = f"{f.top_k} experts x {f.hidden} x (1 B there + 2 B back) x {layers} layers a token"
        port = node_ports / wiring.cards_per_node if across else hw.link_gb_s
        delay = 2 * layers / cut.pp * link.latency_s if across else 0.0
        where = outside if across else inside
        found.append(Crossing("expert parallel all-to-all", where, size, port, delay, network=across, how=how))
    if cut.pp > 1:
        across = cut.cards > wiring.cards_per_node
        size = f.hidden * 2 * 2 / (cut.tp if not across else 1)
        hops = -(-cut.cards // wiring.cards_per_node) - 1 if across else cut.pp - 1
        port = node_ports if across else hw.link_gb_s
        delay = hops * link.latency_s if across else 0.0
        how = f"{f.hidden} x 2 B x 2 (hidden state and residual) a token, per hop"
        name = f"pipeline hand-over, {cut.pp - 1} hops"
        where = outside if across else inside
        found.append(Crossing(name, where, size, port, delay, network=across, how=how))
    return found


def network_time(arch: Architecture, cut: Parallelism, wiring: Wiring) -> tuple[float, float]:
    """Seconds that each token, and that each step, spends on links the step-time model does not know."""
    found = [c for c in crossings(arch, cut, wiring) if c.network]
    return sum(c.token_s for c in found), sum(c.step_delay_s for c in found)


def flows(
    arch: Architecture, placement: Parallelism, wiring: Wiring, state: Steady, replicas_per_node: int
) -> list[Flow]:
    """Traffic of one replica in steady state, and of a node's clients."""
    tokens = state.batch + state.prefill_tokens
    link = wiring.link
    found = []
    for c in crossings(arch, placement, wiring):
        size = tokens * c.token_bytes
        rate = size / state.step_s / 1e9
        took = size / (c.port_gb_s * 1e9) + c.step_delay_s
        share = min(1.0, took / state.step_s)
        how = f"{tokens:.0f} tokens x {c.how}"
        found.append(Flow(c.name, c.where, size, rate, rate / c.port_gb_s, share, how))
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
