"""The admin API's levers: what operators decide of replicas, on all gateways, until they take it back.

Each is an entry of the control document, so it reaches peers, survives a restart, and is in the audit log.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.admin.answers import AdminError, as_json, client_of, read_body, refused
from exaserve.gateway.data_plane import DataPlane
from exaserve.gateway.fleet.registries import Registries
from exaserve.gateway.guard.keeper import GuardKeeper
from exaserve.observe import EventLog
from exaserve.scheduling import POLICIES, ReplicaLedger, Scheduler

__all__ = ["LeverControl", "LeverRoutes", "state_of"]


class _Weight(msgspec.Struct, forbid_unknown_fields=True):
    """``null`` is the cluster file's."""

    weight: float | None


class _Score(msgspec.Struct, forbid_unknown_fields=True):
    score: float | Literal["inf"] | None


class _Policy(msgspec.Struct, forbid_unknown_fields=True):
    """``null`` is the cluster file's."""

    policy: str | None


class _Believe(msgspec.Struct, forbid_unknown_fields=True):
    """``source`` as GET /discovery names it; "" for all."""

    source: str = ""


class LeverControl(Protocol):
    """What of a gateway this needs."""

    log: EventLog
    scheduler: Scheduler
    data_plane: DataPlane
    registries: Registries | None
    keeper: GuardKeeper


def state_of(scheduler: Scheduler, request: Request) -> ReplicaLedger:
    """Of the replica in the request's path. AdminError where there is none."""
    replica = ReplicaId(request.path_params["replica"])
    state = scheduler.states().get(replica)
    if state is None:
        raise AdminError(404, f"There is no replica {replica!r}.", "replica_not_found", "replica")
    return state


class LeverRoutes:
    """The handlers; ``row`` shows a replica as it is now."""

    def __init__(self, control: LeverControl, row: Callable[[ReplicaLedger], dict[str, Any]]) -> None:
        self._control = control
        self._row = row

    def routes(self) -> list[Route]:
        return [
            Route("/replicas/{replica:path}/drain", self.drain, methods=["POST"]),
            Route("/replicas/{replica:path}/undrain", self.undrain, methods=["POST"]),
            Route("/replicas/{replica:path}/weight", self.weight, methods=["POST"]),
            Route("/replicas/{replica:path}/score", self.score, methods=["POST"]),
            Route("/policy", self.policy, methods=["POST"]),
            Route("/discovery/believe", self.believe, methods=["POST"]),
        ]

    async def drain(self, request: Request) -> Response:
        return await self._pull(request, "drain", value=True)

    async def undrain(self, request: Request) -> Response:
        state = state_of(self._control.scheduler, request)
        if state.standing.draining and self._control.keeper.state.document.get("drain", state.id) is None:
            self._control.scheduler.undrain(state.id)  # its agent's word, or one from before there was a document
        return await self._pull(request, "drain", value=None)

    async def weight(self, request: Request) -> Response:
        weight = (await read_body(request, _Weight)).weight
        if weight is not None and not (weight >= 0 and math.isfinite(weight)):
            raise AdminError(
                400, f"weight must be a finite number of at least 0, not {weight}.", "invalid_value", "weight"
            )
        return await self._pull(request, "weight", value=weight)

    async def score(self, request: Request) -> Response:
        score = (await read_body(request, _Score)).score
        if isinstance(score, float) and not score >= 0:
            message = f'score must be at least 0, "inf", or null, not {score}.'
            raise AdminError(400, message, "invalid_value", "score")
        return await self._pull(request, "score", value=score)

    async def policy(self, request: Request) -> Response:
        name = (await read_body(request, _Policy)).policy
        if name is not None and name not in POLICIES:
            names = ", ".join(sorted(POLICIES))
            message = f"unknown policy {name!r}; choose one of {names}."
            raise AdminError(400, message, "unknown_policy", "policy")
        await self._write(request, "policy", "", name)
        return as_json({"policy": self._control.scheduler.policy_name})

    async def believe(self, request: Request) -> Response:
        asked = await read_body(request, _Believe)
        registries = self._control.registries
        known = [] if registries is None else [each.name for each in registries.sources]
        if asked.source and asked.source not in known:
            raise AdminError(404, f"There is no source {asked.source!a}.", "not_found", "source")
        leave = 0 if registries is None else registries.believe(asked.source)
        self._control.log.info("discovery_believed", source=asked.source or "all", leave=leave)
        return as_json({"source": asked.source, "leave": leave})

    async def _pull(self, request: Request, lever: str, *, value: object) -> Response:
        state = state_of(self._control.scheduler, request)
        await self._write(request, lever, state.id, value)
        return as_json(self._row(state))

    async def _write(self, request: Request, lever: str, target: str, value: object) -> None:
        control = self._control
        keeper = control.keeper
        try:
            await keeper.state.carry_out([keeper.levers.pull(lever, target, value)], f"admin {client_of(request)}")
        except ConfigError as error:
            raise refused(error) from None
        control.log.info("admin_change", what=lever, replica=target or None, value=value, client=client_of(request))
        control.data_plane.wake()
