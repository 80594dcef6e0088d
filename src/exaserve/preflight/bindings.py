"""What the topology means for whoever starts engines: the cards, processors and adapter of each unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exaserve.preflight.judge_topology import judge_topology
from exaserve.preflight.model import Context
from exaserve.preflight.text import cpu_list

__all__ = ["UnitBinding", "unit_bindings"]


@dataclass(frozen=True, slots=True)
class UnitBinding:
    """One engine's part of a machine.

    Attributes:
        devices: numbers of its cards, in the order of ``nvidia-smi`` (PCI bus).
        numa_nodes: of these cards; empty where the machine does not say.
        cpus: processors near them; empty where that is not known, or the list was cut.
        adapters: RDMA adapter nearest to each card, by device name where the output has it; "" for none.
        sure: every link between its cards was seen.
    """

    devices: tuple[int, ...]
    numa_nodes: tuple[int, ...] = ()
    cpus: frozenset[int] = frozenset()
    adapters: tuple[str, ...] = ()
    sure: bool = True


def unit_bindings(topology: str, size: int) -> tuple[UnitBinding, ...]:
    """Units of ``size`` linked cards from the text of ``nvidia-smi topo -m``, the nearest cards together.

    Cards that are in no such unit are in none of the result: an engine over them would cross PCIe. Empty where the text
    has no table; never raises.
    """
    facts = judge_topology(topology, Context(unit=size)).facts
    tables: Sequence[Mapping[str, Any]] = facts.get("tables") or ()
    if not tables:
        return ()
    table = tables[0]
    affinity, nics = table["affinity"], table["nic_of"]
    found = []
    for unit in table["units"]:
        cards = unit["cards"]
        near = [affinity.get(card) or {} for card in cards]
        whole = all(each.get("cpus") and not each.get("cpus_cut") for each in near)
        cpus = frozenset[int]().union(*(cpu_list(each["cpus"]) for each in near)) if whole else frozenset[int]()
        chosen = [nics.get(card) or {} for card in cards]
        found.append(
            UnitBinding(
                devices=tuple(int(re.sub(r"\D", "", card)) for card in cards),
                numa_nodes=tuple(unit["numa"] or ()),
                cpus=cpus,
                adapters=tuple(each.get("name") or each.get("nic") or "" for each in chosen),
                sure=not unit["presumed"],
            )
        )
    return tuple(found)
