"""Reloads: the cluster file is read and compared beside the loop, and only what differs is carried out on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from exaserve.config import Cluster, diff
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.observe import EventLog

__all__ = ["ClusterChange", "Reloads", "compare"]


_WHILE_IT_RUNS = ("replica ", "scheduling.strategy", "limits", "prices")


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """What a reload has to do.

    Attributes:
        cluster: as it is wanted now.
        lines: all that changes, in words.
        removed / added / changed: replicas; those that changed with their old and new description.
    """

    cluster: Cluster
    lines: tuple[str, ...]
    removed: tuple[ReplicaId, ...]
    added: tuple[ReplicaSpec, ...]
    changed: tuple[tuple[ReplicaSpec, ReplicaSpec], ...]

    @property
    def needs_restart(self) -> list[str]:
        """Settings that only a restart can change."""
        return [line.split(":")[0] for line in self.lines if not line.startswith(_WHILE_IT_RUNS)]


def compare(old: Cluster, new: Cluster) -> ClusterChange:
    """Costs by the size of both clusters: some 50 ms for 3,072 replicas."""
    before = {spec.id: spec for spec in old.replicas()}
    after = {spec.id: spec for spec in new.replicas()}
    return ClusterChange(
        new,
        tuple(diff(old, new)),
        tuple(replica for replica in before if replica not in after),
        tuple(spec for replica, spec in after.items() if replica not in before),
        tuple((before[replica], spec) for replica, spec in after.items() if before.get(replica, spec) != spec),
    )


class Reloads:
    """One reload at a time; what is asked for meanwhile makes one more.

    Args:
        in_use: the cluster as it is; called in a thread, as ``read``.
        read: reads the cluster again. Raises ConfigError where it is wrong.
        take: carries out what differs.
    """

    def __init__(
        self,
        in_use: Callable[[], Cluster],
        read: Callable[[], Cluster],
        take: Callable[[ClusterChange], None],
        log: EventLog,
    ) -> None:
        self._in_use = in_use
        self._read = read
        self._take = take
        self._log = log
        self._asked = asyncio.Event()

    def ask(self) -> None:
        """Read it again, soon."""
        self._asked.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            try:
                difference = await asyncio.to_thread(self._compared)
            except ConfigError as error:
                self._log.error("reload_failed", error=error.message, kept="the configuration in use")
                continue
            except Exception as error:  # noqa: BLE001 -- the next reload must be heard
                self._log.error("reload_failed", error=repr(error), kept="the configuration in use")
                continue
            self._take(difference)

    def _compared(self) -> ClusterChange:
        return compare(self._in_use(), self._read())
