"""Active probes: a real 1-token completion per replica, since a process that answers ``/health`` may still not
generate.

A replica's first probe also asks ``/v1/models`` for what it serves and how long a context it takes, and so does the
first one after it was out or has restarted. All replicas are probed at once at the start, so that a gateway is ready as
soon as they are.

A replica that rejects one kind of request, which its peers accept, is asked for that kind too, until it is mended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Coroutine

from exaserve.engines.fetch import Fetched, fetch
from exaserve.engines.probe import (
    DIALECTS,
    NEXT_DIALECT,
    ROUTES,
    Ask,
    ask_completion,
    ask_models,
    completion_probe,
    reason_of,
)
from exaserve.observe import EventLog
from exaserve.serving.fleet import TICK_S, Fleet
from exaserve.serving.member import Member
from exaserve.serving.trials import Trial, Trials

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
        # Often enough that a probe comes before a client's request would.
        round_s = min(fleet.config.probe_interval_s, 0.5 * fleet.scheduler.config.reject_shun_s)
        self._trials = Trials(fleet.scheduler, ROUTES, round_s)
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
                self._spawn(self._probe(member, fleet.probe_started(replica)))
        for trial in self._trials.due(now, max(fleet.config.probes_max - len(self._tasks), 0)):
            member = fleet.member(trial[0])
            if member is not None and member.up:
                self._spawn(self._try(trial, member))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, trial: Trial, member: Member) -> None:
        """Asks for a kind of request that clients get rejected; says nothing of the replica's health."""
        replica, model, route = trial
        timeout_s = self._fleet.config.probe_timeout_s
        method, path, body = completion_probe(ROUTES[route], model, "")
        result = await self._fetch(member, timeout_s, method, path, body)
        if self._fleet.member(replica) is member and self._trials.finished(
            trial, result.status, self._clock(), timeout_s
        ):
            self._log.info("replica_accepts_again", replica=replica, model=model, route=route)

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

    async def _fetch(self, member: Member, timeout_s: float, method: str, path: str, body: bytes) -> Fetched:
        url = member.ledger.url
        return await fetch(url, method, path, timeout_s=timeout_s, body=body, api_key=self._api_key, clock=self._clock)

    async def _ask(self, member: Member, timeout_s: float) -> Fetched:
        """The models where they are due, then the completion."""

        async def ask(method: str, path: str, body: bytes) -> Fetched:
            return await self._fetch(member, timeout_s, method, path, body)

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
