"""Active probes: a real 1-token completion per replica, since a process that answers ``/health`` may still not
generate.

A replica's first probe also asks ``/v1/models`` for what it serves and how long a context it takes, and so does the
first one after it was out or has restarted. All replicas are probed at once at the start, so that a gateway is ready as
soon as they are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

from exaserve.engines.fetch import Fetched, fetch
from exaserve.engines.probe import DIALECTS, NEXT_DIALECT, Ask, ask_completion, ask_models, reason_of
from exaserve.observe import EventLog
from exaserve.serving.fleet import TICK_S, Fleet
from exaserve.serving.member import Member

__all__ = ["Probes"]


class Probes:
    """Probes the fleet's members from :meth:`start` to :meth:`stop`, when their health says so.

    Args:
        on_models: called after a replica's models changed in the scheduler.
        clock: monotonic seconds, the same as the fleet's callers use.
        api_key: what the engines want as bearer token, "" for none.
    """

    def __init__(
        self,
        fleet: Fleet,
        log: EventLog,
        on_models: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        api_key: str = "",
    ) -> None:
        self._fleet = fleet
        self._log = log
        self._on_models = on_models
        self._clock = clock
        self._api_key = api_key
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """Begins probing; needs the running loop."""
        self._timer = asyncio.get_running_loop().call_soon(self._tick)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick)
        now = self._clock()
        fleet = self._fleet
        fleet.tick(now)
        for replica in fleet.due(now):
            if len(self._tasks) >= fleet.config.probes_max:
                break
            member = fleet.member(replica)
            if member is not None:
                task = loop.create_task(self._probe(member, fleet.probe_started(replica)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _probe(self, member: Member, timeout_s: float) -> None:
        """One probe, whatever happens ends in exactly one verdict, unless the replica has been removed meanwhile."""
        result = Fetched(None, b"", "probe cancelled", self._clock(), 0.0)
        try:
            result = await self._ask(member, timeout_s)
        finally:
            if self._fleet.member(member.id) is member:
                error = result.error or reason_of(result.status, result.body)
                self._fleet.probe_finished(
                    member.id, self._clock(), status=result.status, latency_s=result.latency_s, error=error
                )

    async def _ask(self, member: Member, timeout_s: float) -> Fetched:
        """The models where they are due, then the completion."""
        url = member.ledger.url

        async def ask(method: str, path: str, body: bytes) -> Fetched:
            return await fetch(
                url, method, path, timeout_s=timeout_s, body=body, api_key=self._api_key, clock=self._clock
            )

        if self._fleet.models_due(member, self._clock()):
            listing = await self._ask_models(member, ask)
            if listing is not None and member.learns_models:
                return listing
        return await self._ask_completion(member, ask)

    async def _ask_models(self, member: Member, ask: Ask) -> Fetched | None:
        """Takes over what it lists; returns the result where that says that the replica is not well."""
        result, cards = await ask_models(ask)
        if cards is None or self._fleet.member(member.id) is not member:
            return result
        if self._fleet.listed(member.id, cards, self._clock()):
            spec = member.ledger.spec
            self._log.debug(
                "replica_models", replica=member.id, models=",".join(spec.models), max_model_len=spec.max_model_len
            )
            self._on_models()
        if not cards:
            return dataclasses.replace(result, status=None, error="/v1/models lists no model")
        return None

    async def _ask_completion(self, member: Member, ask: Ask) -> Fetched:
        spec = member.ledger.spec
        # What refuses this model in every way and does not list it may be alive, but that is not enough.
        listed = any(card.id == spec.models[0] for card in member.cards)
        first = member.dialect or 0
        result, worked = await ask_completion(ask, spec.models[0], spec.engine, first, alive_is_enough=listed)
        if worked is not None:
            if worked != member.dialect:
                self._log.debug("probe_dialect", replica=member.id, dialect=DIALECTS[worked])
            member.dialect = worked
        elif result.status in NEXT_DIALECT:
            # What worked before does not any more: perhaps another model is served now.
            member.dialect = None
            member.models_at = float("-inf")
        return result
