"""Replicas from flags or the cluster file: a fixed set, until the file is read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from exaserve.discovery.changes import Change, changes_between
from exaserve.domain.replica import ReplicaSpec

__all__ = ["StaticDiscovery"]


class StaticDiscovery:
    """A :class:`~exaserve.discovery.changes.Discovery` over a list that :meth:`replace` swaps.

    Only the newest list counts: a watcher that is slow sees one batch that leads straight to it, so nothing queues up.
    """

    def __init__(self, specs: Iterable[ReplicaSpec]) -> None:
        self._wanted = tuple(specs)
        self._changed = asyncio.Event()
        self._changed.set()
        self._closed = False

    def replace(self, specs: Iterable[ReplicaSpec]) -> None:
        """The set that holds from now on."""
        self._wanted = tuple(specs)
        self._changed.set()

    async def watch(self) -> AsyncIterator[tuple[Change, ...]]:
        known: tuple[ReplicaSpec, ...] = ()
        first = True
        while True:
            await self._changed.wait()
            if self._closed:
                return
            self._changed.clear()
            wanted = self._wanted
            batch = changes_between(known, wanted)
            known = wanted
            if batch or first:
                first = False
                yield batch

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
