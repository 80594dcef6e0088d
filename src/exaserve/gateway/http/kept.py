# compiled
"""Which replica keeps which stored response (Responses API): engines keep them in their own memory, each its own. Pure.

Bounded: two generations of ids; what has not been asked for during the last ``responses_max`` answers or more is
forgotten, and a request for it goes anywhere, as one for a response of another gateway's does.
"""

from __future__ import annotations

import re

from exaserve.domain.replica import ReplicaId

__all__ = ["KeptResponses"]

_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,256})"')
_LOOKED_AT_BYTES = 16_384
"""The id stands at the beginning of an answer, and in a stream's first event."""


class KeptResponses:
    """Response id → where it is."""

    __slots__ = ("_current", "_max", "_previous")

    def __init__(self, responses_max: int = 65_536) -> None:
        self._max = responses_max
        self._current: dict[str, tuple[ReplicaId, str, str]] = {}
        self._previous: dict[str, tuple[ReplicaId, str, str]] = {}

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def learn(self, data: bytes, replica: ReplicaId, model: str, tenant: str = "") -> bool:
        """Notes the response of ``tenant`` that ``data``, the beginning of an answer of ``replica``, names, if any."""
        found = _ID.search(data, 0, _LOOKED_AT_BYTES)
        if found is None:
            return False
        self._note(found[1].decode(), (replica, model, tenant))
        return True

    def find(self, response: object) -> tuple[ReplicaId, str, str] | None:
        """Replica, model and tenant of a response, None if it is not known."""
        if not isinstance(response, str):
            return None
        place = self._current.get(response)
        if place is None and (place := self._previous.get(response)) is not None:
            self._note(response, place)
        return place

    def _note(self, response: str, place: tuple[ReplicaId, str, str]) -> None:
        if len(self._current) >= self._max:
            self._previous = self._current
            self._current = {}
        self._current[response] = place
