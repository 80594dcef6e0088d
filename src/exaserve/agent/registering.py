"""A node's replicas as instances of a Consul service, for gateways and others that look there.

Each replica that has been ready is an instance with a TTL check: passing while it may take requests, critical with its
reason while not, gone when it is stopped or the agent ends. Consul being away changes nothing on the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from exaserve.agent.lifecycle import UnitState
from exaserve.agent.tasks import where_failed
from exaserve.agent.unit import ReplicaUnit
from exaserve.config import ConsulRegisterSettings
from exaserve.discovery import SourceError
from exaserve.discovery.consul import ConsulRegistration
from exaserve.discovery.http import Tls
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.observe import EventLog

__all__ = ["Registrar"]

_GONE = (UnitState.STOPPED, UnitState.FAILED)


class Registrar:
    """Keeps the entries of one node's units from :meth:`start` to :meth:`close`.

    Args:
        node: for the log.
    """

    def __init__(self, node: str, settings: ConsulRegisterSettings, log: EventLog) -> None:
        self._node = node
        self._settings = settings
        self._log = log
        self._entries: dict[ReplicaId, tuple[ReplicaSpec, ConsulRegistration]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._trouble = ""

    def start(self, units: Mapping[ReplicaId, ReplicaUnit]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(units))

    def poke(self) -> None:
        """A unit has changed: Consul hears of it at once."""
        self._changed.set()

    async def close(self) -> None:
        """Takes every entry away."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(entry.close() for _, entry in self._entries.values()))

    async def _run(self, units: Mapping[ReplicaId, ReplicaUnit]) -> None:
        while True:
            self._changed.clear()
            trouble = ""
            try:
                for replica in [each for each in self._entries if each not in units]:
                    await self._leave(replica)
                for unit in list(units.values()):
                    await self._tell(unit)
            except SourceError as error:
                trouble = str(error)
            except Exception as error:  # noqa: BLE001 -- the entries must go on beating
                trouble = where_failed(error)
            if trouble != self._trouble:
                self._trouble = trouble
                event = self._log.warning if trouble else self._log.info
                event("consul_unreachable" if trouble else "consul_reached", node=self._node, why=trouble or None)
            try:
                async with asyncio.timeout(self._settings.ttl_s / 3):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _tell(self, unit: ReplicaUnit) -> None:
        replica = unit.spec.id
        spec, entry = self._entries.get(replica, (None, None))
        if unit.state in _GONE:
            await self._leave(replica)
        elif entry is not None or unit.ready:
            if entry is None or spec != unit.spec:
                entry = await self._enter(unit.spec, entry)
            why = f"{unit.state.value}: {unit.reason}"
            await entry.beat("passing" if unit.ready else "critical", why)

    async def _enter(self, spec: ReplicaSpec, before: ConsulRegistration | None) -> ConsulRegistration:
        settings = self._settings
        entry = ConsulRegistration(
            settings.service,
            spec,
            settings.server,
            token_file=settings.token_file,
            tls=Tls(settings.ca_file, settings.cert_file, settings.key_file),
            ttl_s=settings.ttl_s,
            tags=settings.tags,
        )
        try:
            await entry.register()
        except BaseException:
            await entry.hang_up()
            raise
        self._entries[spec.id] = spec, entry
        if before is None:
            self._log.info("replica_registered", replica=spec.id, service=settings.service)
        else:
            await before.hang_up()
        return entry

    async def _leave(self, replica: ReplicaId) -> None:
        if (known := self._entries.pop(replica, None)) is not None:
            await known[1].close()
