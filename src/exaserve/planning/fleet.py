"""What there is, or is to be bought, and everything else a plan is asked with."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from exaserve.domain.errors import ConfigError
from exaserve.models.architecture import Architecture
from exaserve.perfmodel import Calibration, Hardware
from exaserve.planning.certainty import CONFIDENCE, check_confidence
from exaserve.planning.cost import Prices
from exaserve.planning.demand import Targets, TrafficDemand
from exaserve.planning.memory import MemoryRequest
from exaserve.planning.network import NetworkLink, Wiring
from exaserve.planning.options import EngineOptions
from exaserve.planning.weights import Parallelism

__all__ = ["Machines", "PlanRequest"]

SEQS_PLANNED = 256
"""Sequences a replica runs at once in a plan with a demand, unless given."""

LENGTH_LEAST = 8192


@dataclass(frozen=True, slots=True)
class Machines:
    """What a plan may put replicas on.

    Attributes:
        link_group: cards that fast links (NVLink, xGMI) join; 0 takes all of a node where the card has such links, and
            1 where it has none.
        nodes: None: as many as the demand needs.
        nics: ports towards other nodes per node. radix: ports of a switch.
        memory_gib: what the driver reports of a card, where it differs from the table; one figure per stage.
    """

    hardware: Hardware
    link: NetworkLink
    cards_per_node: int = 8
    link_group: int = 0
    nodes: int | None = None
    nics: int = 1
    nodes_per_rack: int = 8
    radix: int = 64
    memory_gib: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("cards_per_node", "nics", "nodes_per_rack", "radix"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1.", param=name)
        if self.nodes is not None and self.nodes < 1:
            raise ConfigError("nodes must be at least 1.", param="nodes")

    @property
    def group(self) -> int:
        if self.link_group:
            return min(self.link_group, self.cards_per_node)
        return self.cards_per_node if self.hardware.link in ("nvlink", "xgmi") else 1

    @property
    def wiring(self) -> Wiring:
        """For :mod:`exaserve.planning.network`."""
        return Wiring(self.hardware, self.link, self.cards_per_node, self.group, self.nics)

    @property
    def card_gib(self) -> float:
        return self.memory_gib[0] if self.memory_gib else self.hardware.memory_gib


@dataclass(frozen=True, slots=True)
class PlanRequest(EngineOptions):
    """A question to the planner.

    Attributes:
        demand_given: whether the demand is the caller's, or one assumed to have figures at all.
        tp / pp: 0 leaves the choice to the planner. ep: None too.
        replicas_per_node: a count that someone wants, to be judged; 0 if none.
        offline / operations: work without waiting users; whether there is a team that operates a cluster.
        profile: a measured replica of this model on these cards, cut by ``tp`` and ``pp``: its figures take the place
            of the roofline's.
        confidence: share of public measurements like this one that are no slower than what is sized with; 0.5 takes
            the prediction as it is. A measured profile is taken as it is.
    """

    arch: Architecture
    fleet: Machines
    demand: TrafficDemand
    demand_given: bool = True
    targets: Targets = field(default_factory=Targets)
    tp: int = 0
    pp: int = 0
    ep: bool | None = None
    partition: tuple[int, ...] = ()
    replicas_per_node: int = 0
    prices: Prices = field(default_factory=Prices)
    offline: bool = False
    operations: bool = True
    profile: Calibration | None = None
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    @property
    def length(self) -> int:
        """Longest request to plan for: as given; else the demand's with a quarter to spare; else the model's."""
        if self.max_model_len:
            return self.max_model_len
        if not self.demand_given:
            return self.arch.facts.context
        wanted = max(LENGTH_LEAST, 1 << (int(self.demand.longest * 1.25) - 1).bit_length())
        return min(self.arch.facts.context, wanted)

    def memory_request(self, placement: Parallelism) -> MemoryRequest:
        """The start-up of one replica that is cut so."""
        given = self.options() | {
            "max_model_len": self.length,
            "max_num_seqs": self.max_num_seqs or (SEQS_PLANNED if self.demand_given else 0),
        }
        return MemoryRequest(self.arch, self.fleet.hardware, placement, self.fleet.memory_gib, **given)

    def on(self, hardware: Hardware, arch: Architecture) -> PlanRequest:
        """The same question for another card or format."""
        return replace(self, arch=arch, fleet=replace(self.fleet, hardware=hardware, memory_gib=()))
