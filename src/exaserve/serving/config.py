"""Settings of a request's life: when it is tried again, how often, and after which pause."""

from __future__ import annotations

import msgspec

__all__ = ["RetrySettings"]


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retries happen on another replica and only before the client has seen a byte.

    Attributes:
        attempts_max: tries in all for one request, the first included.
        budget_ratio: retries allowed per request over the last ``budget_window_s``: a broken cluster is not hit harder.
        budget_min_per_s: retries per second that are always allowed, so that a quiet cluster can retry at all.
        budget_window_s: seconds over which the ratio holds.
        backoff_s / backoff_max_s: pause before a request that every replica has failed starts again; it doubles with
            each attempt, up to the second. Seconds.
        stale_s: a reused connection that is lost within this time of sending, before any answer, was dead already: the
            same replica is asked once more over a new one. Seconds.
    """

    attempts_max: int = 3
    budget_ratio: float = 0.2
    budget_min_per_s: float = 10.0
    budget_window_s: float = 10.0
    backoff_s: float = 0.25
    backoff_max_s: float = 2.0
    stale_s: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise ValueError(f"attempts_max must be at least 1, not {self.attempts_max}")
        if not 0.0 <= self.backoff_s <= self.backoff_max_s:
            raise ValueError(f"backoff_s must be between 0 and backoff_max_s, not {self.backoff_s}")
