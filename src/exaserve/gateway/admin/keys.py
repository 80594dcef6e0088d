"""The admin API's part for those who use the endpoint: keys, tenants, and what administrators did.

=======  ==============================  =====================================================================
GET      /keys                           all keys, without secrets
POST     /keys                           a new key, or a list of them; the answer alone has the secret
GET      /keys/{key}                     one, by id or name
PATCH    /keys/{key}                     what is to be different
POST     /keys/{key}/rotate              a new secret; ``{"grace_s": 3600}``: how long the old one is still taken
POST     /keys/{key}/revoke              for good
GET      /tenants                        all tenants
PUT      /tenants/{tenant}               makes one, or changes it
DELETE   /tenants/{tenant}               where none of its keys is in use
GET      /limits                         each bound in use: used here, heard of peers, reserved
GET      /audit                          what was done, newest first; ``?count=100&before=NUMBER``
=======  ==============================  =====================================================================
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exaserve.control.keydesk import KeyChange, Keydesk, KeyWish, TenantChange, shown
from exaserve.control.meters import KINDS
from exaserve.control.wish import Wish
from exaserve.domain.errors import ConfigError
from exaserve.gateway.admin.answers import AdminError, as_json, client_of, read_body, refused
from exaserve.gateway.guard.keeper import GuardKeeper
from exaserve.gateway.guard.secrets_file import fresh_key
from exaserve.observe import EventLog

__all__ = ["KeyControl", "KeyRoutes"]

_AUDIT_ROWS_MAX = 10_000


class _Rotate(msgspec.Struct, forbid_unknown_fields=True):
    grace_s: float = 0.0


_Wishes: Any = KeyWish | list[KeyWish]
"""One key, or as many as there are in a list: all of them or none."""


class KeyControl(Protocol):
    """What of a gateway this needs."""

    log: EventLog
    keeper: GuardKeeper


class KeyRoutes:
    """The handlers."""

    def __init__(self, control: KeyControl) -> None:
        self._control = control

    def routes(self) -> list[Route]:
        return [
            Route("/keys", self.keys, methods=["GET"]),
            Route("/keys", self.create, methods=["POST"]),
            Route("/keys/{key}", self.key, methods=["GET"]),
            Route("/keys/{key}", self.change, methods=["PATCH"]),
            Route("/keys/{key}/rotate", self.rotate, methods=["POST"]),
            Route("/keys/{key}/revoke", self.revoke, methods=["POST"]),
            Route("/tenants", self.tenants, methods=["GET"]),
            Route("/tenants/{tenant}", self.set_tenant, methods=["PUT"]),
            Route("/tenants/{tenant}", self.remove_tenant, methods=["DELETE"]),
            Route("/limits", self.limits, methods=["GET"]),
            Route("/audit", self.audit, methods=["GET"]),
        ]

    @property
    def _desk(self) -> Keydesk:
        return self._control.keeper.desk

    async def keys(self, _request: Request) -> Response:
        return as_json({"keys": [shown(key) for key in self._desk.all_keys()]})

    async def key(self, request: Request) -> Response:
        try:
            return as_json(shown(self._desk.key(request.path_params["key"])))
        except ConfigError as error:
            raise AdminError(404, f"{error.message}.", "key_not_found", "key") from None

    async def create(self, request: Request) -> Response:
        asked = await read_body(request, _Wishes)
        await self._prepare()
        desk, now = self._control.keeper.desk, self._control.keeper.state.wall()
        if not isinstance(asked, list):
            return await self._write(request, lambda: [desk.create(asked, *fresh_key(), now)], 201)
        done = await self._done(request, lambda: [desk.create(wish, *fresh_key(), now) for wish in asked])
        return as_json({"keys": [wish.answer for wish in done]}, 201)

    async def change(self, request: Request) -> Response:
        change = await read_body(request, KeyChange)
        return await self._write(request, lambda: [self._desk.change(request.path_params["key"], change)])

    async def rotate(self, request: Request) -> Response:
        grace_s = (await read_body(request, _Rotate)).grace_s
        await self._prepare()
        key, now = request.path_params["key"], self._control.keeper.state.wall()
        return await self._write(request, lambda: [self._desk.rotate(key, fresh_key()[1], grace_s, now)])

    async def revoke(self, request: Request) -> Response:
        return await self._write(request, lambda: [self._desk.revoke(request.path_params["key"])])

    async def tenants(self, _request: Request) -> Response:
        return as_json({"tenants": [shown(tenant) for tenant in self._desk.tenants()]})

    async def set_tenant(self, request: Request) -> Response:
        change = await read_body(request, TenantChange)
        return await self._write(request, lambda: [self._desk.set_tenant(request.path_params["tenant"], change)])

    async def remove_tenant(self, request: Request) -> Response:
        return await self._write(request, lambda: [self._desk.remove_tenant(request.path_params["tenant"])])

    async def limits(self, _request: Request) -> Response:
        limits = self._control.keeper.limits
        now = int(self._control.keeper.state.wall())
        rows = []
        for number, meter in enumerate(list(limits.meters.values())):
            if number % 1000 == 999:
                await asyncio.sleep(0)
            meter.advance(now)
            rows.append(
                {
                    "name": meter.name, "kind": KINDS[meter.kind], "limit": min(meter.limit, sys.float_info.max),
                    "used": meter.used, "pending": meter.pending, "heard": meter.heard, "unheard": meter.unheard,
                }
            )  # fmt: skip
        return as_json({"gateways": limits.gateways, "share": limits.share, "limits": rows})

    async def audit(self, request: Request) -> Response:
        try:
            count = min(int(request.query_params.get("count", 100)), _AUDIT_ROWS_MAX)
            before = int(text) if (text := request.query_params.get("before")) else None
        except ValueError:
            raise AdminError(400, "count and before must be whole numbers.", "invalid_value", "count") from None
        rows = await self._control.keeper.state.audit(max(count, 1), before)
        return as_json({"audit": [{"number": number, **row._asdict()} for number, row in rows]})

    async def _prepare(self) -> None:
        try:
            await self._control.keeper.state.prepare()
        except ConfigError as error:
            raise AdminError(503, f"{error.message}.", "not_kept", error.param) from None

    async def _write(self, request: Request, wanted: Callable[[], list[Wish]], status: int = 200) -> Response:
        """One wish, and its answer."""
        (done,) = await self._done(request, wanted)
        return as_json(done.answer, status)

    async def _done(self, request: Request, wanted: Callable[[], list[Wish]]) -> list[Wish]:
        """All of them, or none where one cannot be fulfilled."""
        try:
            wishes = wanted()
        except ConfigError as error:
            raise refused(error) from None
        try:
            await self._control.keeper.state.carry_out(wishes, f"admin {client_of(request)}")
        except ConfigError as error:
            raise AdminError(503, f"{error.message}.", "not_kept", error.param) from None
        for wish in wishes:
            self._control.log.info("admin_change", what=wish.what, target=wish.target, client=client_of(request))
        return wishes
