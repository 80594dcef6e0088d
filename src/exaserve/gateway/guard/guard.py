# compiled
"""The guard on the request path: who asks, whether that is allowed, how much of it, and what was used. No I/O."""

from __future__ import annotations

from collections.abc import Callable

from exaserve.control.keybook import Keybook
from exaserve.domain.errors import Unauthorized
from exaserve.gateway.guard.grants import Grant
from exaserve.gateway.http.parse import Request

__all__ = ["Guard"]

_GRANTS_MAX = 16_384
"""Credentials whose meaning is remembered; beyond, all are looked up again."""


class Guard:
    """See the module's text. There is one where requests need a key.

    Args:
        wall: seconds since 1970.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._book = Keybook((), (), {})
        self._grants: dict[bytes, Grant] = {}

    def take(self, book: Keybook) -> None:
        """Keys or tenants have changed: what was known of credentials is forgotten."""
        self._book = book
        self._grants = {}

    def grant(self, request: Request) -> Grant:
        """What the bearer of the request's credential may do.

        Raises:
            Unauthorized: there is none, or it is not (or no longer) accepted. It is never quoted.
        """
        credential = request.credential
        grant = self._grants.get(credential)
        if grant is None:
            grant = self._look_up(credential)
        elif grant.ends_at <= self._wall():
            del self._grants[credential]
            raise Unauthorized("The API key has expired.")
        return grant

    def _look_up(self, credential: bytes) -> Grant:
        if not credential:
            raise Unauthorized(
                "This endpoint needs an API key: send it as 'Authorization: Bearer ...', 'x-api-key' or 'api-key'."
            )
        found = self._book.find(credential, self._wall())
        if found is None:
            raise Unauthorized("The API key is not known here, or is no longer accepted.")
        key, ends_at = found
        if len(self._grants) >= _GRANTS_MAX:
            self._grants.clear()
        grant = self._grants[credential] = Grant(key, self._book.tenants.get(key.tenant), ends_at)
        return grant
