"""Replicas from flags or the cluster file: a fixed set, until the file is read again."""

from __future__ import annotations

from collections.abc import Iterable

from exaserve.discovery.feed import Feed
from exaserve.domain.replica import ReplicaSpec

__all__ = ["StaticDiscovery"]


class StaticDiscovery(Feed):
    """A fixed list, which :meth:`replace` swaps."""

    def __init__(self, specs: Iterable[ReplicaSpec], name: str = "static") -> None:
        super().__init__(name)
        self.publish(specs)

    def replace(self, specs: Iterable[ReplicaSpec]) -> None:
        """The set that holds from now on."""
        self.publish(specs)
