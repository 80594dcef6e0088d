"""The cluster file's keys of the guard: who may use the endpoint, and where use is written down."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["AuthMode", "AuthSettings", "UsageSettings"]

AuthMode = Literal["auto", "open", "keys"]


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may use the endpoint.

    Attributes:
        mode: ``keys`` asks each request for a key; ``open`` asks for nothing; ``auto`` is ``keys`` as soon as there
            has been a key, and until then open, on loopback only.
    """

    mode: AuthMode = "auto"


class UsageSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where finished requests are written down.

    Attributes:
        store: ``sqlite``, the gateway's state folder; ``postgresql://...``; ``off``.
        keep_days: rows older than this are removed; 0 keeps all.
        flush_s: longest time a finished request is only in memory, seconds.
        rows_max: finished requests that wait to be written; above it the oldest are summed up.
    """

    store: str = "sqlite"
    keep_days: int = 400
    flush_s: float = 0.5
    rows_max: int = 65_536
