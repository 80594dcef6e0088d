"""Nodes that announce themselves: a node agent's connection to this gateway is the membership of its replicas."""

from __future__ import annotations

from collections.abc import Iterable

from exaserve.discovery.feed import Feed, Tell, silent
from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = ["AgentDiscovery"]


class AgentDiscovery(Feed):
    """Whoever holds the agents' connections says here which node has which replicas.

    The first batch is empty and comes at once: with agents, nobody is known until they have announced themselves.
    """

    def __init__(self, name: str = "agents", tell: Tell = silent) -> None:
        super().__init__(name, tell)
        self._nodes: dict[str, tuple[ReplicaSpec, ...]] = {}
        self.publish(())

    def announce(self, node: str, specs: Iterable[ReplicaSpec], reason: str = "announced by its agent") -> None:
        """All replicas of ``node`` from now on. Said again it replaces what was said before."""
        before = {spec.id for spec in self._nodes.get(node, ())}
        self._nodes[node] = specs = tuple(specs)
        gone = before - {spec.id for spec in specs}
        self._publish({spec.id: reason for spec in specs} | dict.fromkeys(gone, "left out by its agent"))

    def withdraw(self, node: str, reason: str) -> None:
        """``node`` is gone, such as "agent disconnected"; unknown nodes are no mistake."""
        specs = self._nodes.pop(node, None)
        if specs is not None:
            self._publish({spec.id: reason for spec in specs})

    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted(self._nodes))

    def _publish(self, reasons: dict[ReplicaId, str]) -> None:
        self.publish((spec for specs in self._nodes.values() for spec in specs), reasons)
