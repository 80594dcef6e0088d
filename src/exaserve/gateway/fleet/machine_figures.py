"""What agents say of their machines, as metrics and for people: accelerators, network, what watches find."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exaserve.observe import Family, labels
from exaserve.wire import MachineFigures

__all__ = ["accelerators", "as_dict", "families"]

_OF_CARDS = (
    ("memory_free_gb", "free_gb", "Free memory of an accelerator, GB."),
    ("memory_total_gb", "total_gb", "Memory of an accelerator, GB."),
    ("use_ratio", "use", "Share of time in which a kernel ran on an accelerator."),
    ("temperature_celsius", "celsius", "Temperature of an accelerator."),
    ("ecc_errors", "ecc_errors", "Uncorrected memory errors of an accelerator since the last reboot."),
    ("throttled", "throttled", "1 while an accelerator's clocks are held down by heat or power."),
)


def families(nodes: Mapping[str, MachineFigures]) -> Iterable[Family]:
    """Metrics of connected nodes. What a machine does not say has no sample: it is not zero."""
    cards = [(Family(f"exaserve_accelerator_{name}", "gauge", text), field) for name, field, text in _OF_CARDS]
    net = Family("exaserve_node_network_mb_per_second", "gauge", "A node's network traffic, mean over 5 s, MB/s.")
    wrong = Family("exaserve_replica_watch", "gauge", "1 while a node's watch finds something wrong with a replica.")
    slope = Family("exaserve_replica_memory_slope_mb_per_hour", "gauge", "Growth of an engine's memory.")
    for node, figures in nodes.items():
        for index, card in enumerate(figures.cards):
            head = labels(node=node, device=str(index))
            for family, field in cards:
                value = getattr(card, field)
                if value is not None:
                    family.add(float(value), head)
        if figures.net_mb_s is not None:
            net.add(figures.net_mb_s, labels(node=node))
        for watch in figures.watches:
            wrong.add(1.0, labels(replica=watch.replica, watch=watch.name))
        for replica, value in figures.slopes.items():
            slope.add(value, labels(replica=replica))
    return [*(family for family, _ in cards), net, wrong, slope]


def as_dict(figures: MachineFigures) -> dict[str, object]:
    """One node's, for the admin API."""
    return {
        "accelerators": [{name: getattr(card, name) for name in card.__struct_fields__} for card in figures.cards],
        "accelerators_problem": figures.problem,
        "network_mb_s": figures.net_mb_s,
        "watches": [{"replica": each.replica, "name": each.name, "detail": each.detail} for each in figures.watches],
    }


def accelerators(nodes: Mapping[str, MachineFigures]) -> dict[str, object]:
    """All nodes' cards in a few figures, cheap at any size: for ``exaserve status``."""
    cards = [card for figures in nodes.values() for card in figures.cards]
    uses = [card.use for card in cards if card.use is not None]
    return {
        "count": len(cards),
        "use": sum(uses) / len(uses) if uses else None,
        "celsius_max": max((card.celsius for card in cards if card.celsius is not None), default=None),
        "throttled": sum(bool(card.throttled) for card in cards),
        "with_ecc_errors": sum(bool(card.ecc_errors) for card in cards),
        "nodes_with_a_problem": sum(bool(figures.problem) for figures in nodes.values()),
        "watches": sum(len(figures.watches) for figures in nodes.values()),
    }
