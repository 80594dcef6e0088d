"""Active probes: a real 1-token completion per replica, since a process that answers ``/health`` may still not
generate.

A replica's first probe also asks ``/v1/models`` for what it serves and how long a context it takes. All replicas are
probed at once at the start, so that a gateway is ready as soon as they are.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable

import msgspec

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.engines import health_path
from exaserve.engines.fetch import Fetched, fetch
from exaserve.engines.probe import DIALECTS, NEXT_DIALECT, ModelList, completion_probe, reason_of
from exaserve.health import HealthBook
from exaserve.observe import EventLog
from exaserve.scheduling import Scheduler

__all__ = ["Probes"]

PROBES_MAX = 128
"""Probes under way at once. Each is one connection; hung ones hold theirs for the probe's time-out."""
TICK_S = 0.05
MODELS_EVERY_S = 30.0
"""How often a replica whose models were asked for is asked again: adapters come and go."""


class _Target:
    __slots__ = ("asks_models", "dialect", "listed", "models_at", "spec")

    def __init__(self, spec: ReplicaSpec) -> None:
        self.spec = spec
        self.asks_models = not spec.models
        self.listed: frozenset[str] = frozenset()
        self.models_at = float("-inf")
        self.dialect: int | None = None


class Probes:
    """Probes replicas from :meth:`add` to :meth:`remove`, when the health book says so.

    Args:
        on_models: called after a replica's models changed in the scheduler.
        clock: monotonic seconds, the same as the health book's callers use.
        api_key: what the engines want as bearer token, "" for none.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        health: HealthBook,
        log: EventLog,
        on_models: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        api_key: str = "",
    ) -> None:
        self._scheduler = scheduler
        self._health = health
        self._log = log
        self._on_models = on_models
        self._clock = clock
        self._api_key = api_key
        self._targets: dict[ReplicaId, _Target] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None

    def add(self, spec: ReplicaSpec) -> None:
        self._targets[spec.id] = _Target(spec)

    def remove(self, replica: ReplicaId) -> None:
        self._targets.pop(replica, None)

    def start(self) -> None:
        """Begins probing; needs the running loop."""
        self._timer = asyncio.get_running_loop().call_soon(self._tick)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._targets.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(TICK_S, self._tick)
        now = self._clock()
        self._health.tick(now)
        for replica in self._health.due(now):
            if len(self._tasks) >= PROBES_MAX:
                break
            target = self._targets.get(replica)
            if target is None:
                continue
            self._health.probe_started(replica)
            task = loop.create_task(self._probe(target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _probe(self, target: _Target) -> None:
        """One probe, whatever happens ends in exactly one verdict, unless the replica has been removed meanwhile."""
        replica = target.spec.id
        result = Fetched(None, b"", "probe cancelled", self._clock(), 0.0)
        try:
            result = await self._ask(target)
        finally:
            if self._targets.get(replica) is target:
                error = result.error or reason_of(result.status, result.body)
                self._health.probe_finished(
                    replica, self._clock(), status=result.status, latency_s=result.latency_s, error=error
                )

    async def _ask(self, target: _Target) -> Fetched:
        """The models where they are due, then the completion."""
        now = self._clock()
        if now - target.models_at >= (MODELS_EVERY_S if target.asks_models else float("inf")):
            listing = await self._ask_models(target)
            if listing is not None and not target.spec.models:
                return listing
        return await self._ask_completion(target)

    async def _ask_models(self, target: _Target) -> Fetched | None:
        """Updates models and context length; returns the result where it says that the replica is not well."""
        spec = target.spec
        timeout_s = self._health.config.probe_timeout_s
        result = await fetch(
            spec.url, "GET", "/v1/models", timeout_s=timeout_s, api_key=self._api_key, clock=self._clock
        )
        if result.status != 200:
            return result
        try:
            listed = msgspec.json.decode(result.body, type=ModelList).data
        except msgspec.DecodeError as error:
            return dataclasses.replace(result, status=None, error=f"/v1/models: {error}")
        if self._targets.get(spec.id) is not target:
            return None
        target.models_at = self._clock()
        target.listed = frozenset(model.id for model in listed)
        lengths = [model.max_model_len for model in listed if model.max_model_len]
        changed = dataclasses.replace(
            spec,
            models=tuple(sorted(target.listed)) if target.asks_models else spec.models,
            max_model_len=spec.max_model_len or (min(lengths) if lengths else 0),
        )
        if changed != spec:
            target.spec = changed
            target.dialect = None
            self._scheduler.update(changed)
            self._log.debug(
                "replica_models", replica=spec.id, models=",".join(changed.models), max_model_len=changed.max_model_len
            )
            self._on_models()
        if not changed.models:
            return dataclasses.replace(result, status=None, error="/v1/models lists no model")
        return None

    async def _ask_completion(self, target: _Target) -> Fetched:
        """A completion in the dialect that worked last, else the first that does not say "not here"."""
        spec = target.spec
        timeout_s = self._health.config.probe_timeout_s
        first = target.dialect if target.dialect is not None else 0
        result = Fetched(None, b"", "not asked", self._clock(), 0.0)
        for index in range(first, len(DIALECTS)):
            if DIALECTS[index] == "health" and spec.models[0] not in target.listed:
                break  # it refuses this model in every way and does not list it: being alive is not enough
            method, path, body = completion_probe(DIALECTS[index], spec.models[0], health_path(spec.engine))
            result = await fetch(
                spec.url, method, path, timeout_s=timeout_s, body=body, api_key=self._api_key, clock=self._clock
            )
            if result.status is not None and 200 <= result.status < 300:
                if target.dialect != index:
                    target.dialect = index
                    self._log.debug("probe_dialect", replica=spec.id, dialect=DIALECTS[index])
                return result
            if result.status not in NEXT_DIALECT:
                return result
        # What worked before does not any more: perhaps another model is served now.
        target.dialect = None
        target.models_at = float("-inf")
        return result
