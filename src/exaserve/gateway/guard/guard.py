# compiled
"""The guard on the request path: who asks, whether that is allowed, how much of it, and what was used. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import msgspec

from exaserve.control.keybook import Keybook
from exaserve.control.limits import LimitBook, Reservation, Shortage
from exaserve.control.records import ApiKey
from exaserve.domain.errors import Forbidden, Unauthorized
from exaserve.domain.request import RequestFacts
from exaserve.gateway.guard.grants import Grant
from exaserve.gateway.guard.rates import shortage_error
from exaserve.gateway.guard.salt import cache_salt
from exaserve.gateway.http.parse import Request

__all__ = ["Guard"]

_GRANTS_MAX = 16_384
"""Credentials whose meaning is remembered; beyond, all are looked up again."""
_SPOKEN_FOR_MAX = 1024
"""Tenants on behalf of which one key comes that are remembered."""
_TENANT_CHARS_MAX = 256


class Guard:
    """See the module's text. There is one where requests need a key.

    Args:
        wall: seconds since 1970.
        limits: how much may be used.

    Attributes:
        tokens: what a token of another issuer stands for, and when it ends; None where it is not accepted.
    """

    def __init__(self, wall: Callable[[], float], limits: LimitBook | None = None) -> None:
        self._wall = wall
        self.limits = limits or LimitBook()
        self.tokens: Callable[[bytes], tuple[ApiKey, float] | None] | None = None
        self._book = Keybook((), (), {})
        self._grants: dict[bytes, Grant] = {}

    def forget(self) -> None:
        """What credentials stand for, or what bounds them, may have changed."""
        self._grants = {}

    def take(self, book: Keybook) -> None:
        """Keys or tenants have changed: what was known of credentials is forgotten."""
        self._book = book
        self.forget()

    def grant(self, request: Request) -> Grant:
        """What the bearer of the request's credential may do.

        Raises:
            Unauthorized: there is none, or it is not (or no longer) accepted. It is never quoted.
        """
        credential = request.credential
        grant = self._grants.get(credential)
        if grant is None:
            grant = self._look_up(credential)
        elif grant.ends_at != inf and grant.ends_at <= self._wall():
            del self._grants[credential]
            raise Unauthorized("The API key has expired.")
        if request.tenant and grant.may_say and "tenant" in grant.may_say:
            return self._on_behalf(grant, request.tenant)
        return grant

    def charge(self, grant: Grant, facts: RequestFacts) -> Reservation | None:
        """Reserves what the request is expected to use; None where nothing bounds it.

        Raises:
            RateLimited, QuotaExhausted: a bound has no room for it.
        """
        limits, model = self.limits, facts.model
        meters = grant.meters(limits, model)
        if not meters:
            return None
        charge = limits.charge(meters, model, facts.prompt_tokens, facts.output_tokens, self._wall())
        if type(charge) is Reservation:
            return charge
        assert isinstance(charge, Shortage)
        raise shortage_error(charge, limits, model)

    def second(self) -> int:
        """Of the clock that charges are made by."""
        return int(self._wall())

    def _on_behalf(self, grant: Grant, name: bytes) -> Grant:
        """What the key may do for another tenant: what both of them may."""
        other = grant.spoken_for.get(name)
        if other is None:
            text = name.decode("latin-1")
            tenant = self._book.tenants.get(text)
            if len(text) > _TENANT_CHARS_MAX or (tenant is not None and tenant.disabled):
                raise Forbidden("That tenant is not accepted here.", param="x-exaserve-tenant")
            if len(grant.spoken_for) >= _SPOKEN_FOR_MAX:
                grant.spoken_for.clear()
            other = self._made(msgspec.structs.replace(grant.key, tenant=text), grant.ends_at)
            grant.spoken_for[name] = other
        return other

    def _made(self, key: ApiKey, ends_at: float | None) -> Grant:
        book = self._book
        tenant = book.tenants.get(key.tenant)
        secret = book.salting_secret
        return Grant(key, tenant, ends_at, cache_salt(secret, key.tenant, tenant) if secret else b"")

    def _look_up(self, credential: bytes) -> Grant:
        if not credential:
            raise Unauthorized(
                "This endpoint needs an API key: send it as 'Authorization: Bearer ...', 'x-api-key' or 'api-key'."
            )
        found = self._book.find(credential, self._wall())
        if found is None and self.tokens is not None:
            found = self.tokens(credential)
            tenant = self._book.tenants.get(found[0].tenant) if found is not None else None
            if tenant is not None and tenant.disabled:
                found = None
        if found is None:
            raise Unauthorized("The API key is not known here, or is no longer accepted.")
        key, ends_at = found
        if len(self._grants) >= _GRANTS_MAX:
            self._grants.clear()
        grant = self._grants[credential] = self._made(key, ends_at)
        return grant
