# compiled
"""What became of each request, in columns: a million of them take some fifty megabytes."""

from __future__ import annotations

import math
from array import array

__all__ = ["ERRORS", "Recorder"]

ERRORS = (
    "",
    "queue_full",
    "queue_timeout",
    "no_replica_ready",
    "connect",
    "reset",
    "timeout",
    "status_5xx",
    "rejected",
    "cut",
    "deadline",
    "unfinished",
)
"""Why a request failed; index 0 is none. ``cut``: its answer had begun."""
_CODES = {error: code for code, error in enumerate(ERRORS)}


class Recorder:
    """Columns, one row per request. Instants are seconds, NaN where it did not come to that."""

    def __init__(self, count: int) -> None:
        nothing = array("d", [math.nan])
        self.first = nothing * count
        self.last = nothing * count
        self.queued_s = array("f", [0.0]) * count
        self.attempts = array("b", [0]) * count
        """Only of requests that took more than one."""
        self.error = array("b", [-1]) * count
        """Index into ERRORS, -1 while open."""

    def ended(self, index: int, now: float, error: str = "") -> None:
        assert self.error[index] == -1, f"request {index} ended twice"
        self.error[index] = _CODES[error]
        self.last[index] = now
