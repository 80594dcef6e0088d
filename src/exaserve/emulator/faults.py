"""What can be wrong with an emulated replica, settable while it runs."""

from __future__ import annotations

import difflib
from typing import Any, Literal

import msgspec

from exaserve.domain.errors import ConfigError

__all__ = ["Faults", "MetricsFault", "ResetWhen", "merge"]

MetricsFault = Literal["ok", "frozen", "renamed", "missing", "garbage", "hang", "error"]
ResetWhen = Literal["never", "before", "after"]


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Faults of one replica. They combine; the defaults are a healthy replica.

    Attributes:
        slow: steps take this many times longer.
        freeze: connections are accepted and requests read, but nothing is answered and running streams stand still.
            ``/health`` still answers 200, and ``/metrics`` unless ``metrics`` is "hang".
        refuse: nobody listens: new connections are refused, idle ones closed; running streams go on.
        reset: "before" resets the connection instead of answering, "after" resets it after the first byte of the body.
        reset_rate: share of requests that ``reset`` hits.
        error_rate: share of requests answered with ``error_status``.
        error_status: status of those.
        cut_after: streams end after this many tokens, properly framed but without a finish reason or ``[DONE]``;
            None never.
        cut_rate: share of streams that ``cut_after`` hits.
        metrics: "frozen" repeats the values of the moment it was set; "renamed" gives an older engine's names for KV
            use and prefix cache; "missing" leaves out KV use and waiting; "garbage" is no exposition at all; "hang"
            never answers; "error" answers 500.
        health: False makes ``/health`` answer 503.
    """

    slow: float = 1.0
    freeze: bool = False
    refuse: bool = False
    reset: ResetWhen = "never"
    reset_rate: float = 1.0
    error_rate: float = 0.0
    error_status: int = 500
    cut_after: int | None = None
    cut_rate: float = 1.0
    metrics: MetricsFault = "ok"
    health: bool = True


def merge(faults: Faults, changes: dict[str, Any]) -> Faults:
    """Faults with some fields changed. ConfigError for an unknown field (with the nearest valid one) or a wrong
    value.
    """
    for name in changes:
        if name not in Faults.__struct_fields__:
            near = difflib.get_close_matches(name, Faults.__struct_fields__, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"Unknown fault {name!r}.{hint}", param=name)
    try:
        merged = msgspec.convert(msgspec.to_builtins(faults) | changes, Faults)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from None
    rates = (merged.reset_rate, merged.error_rate, merged.cut_rate)
    if merged.slow <= 0 or not all(0 <= rate <= 1 for rate in rates):
        raise ConfigError("slow must be positive, and rates between 0 and 1.")
    if merged.cut_after is not None and merged.cut_after < 0:
        raise ConfigError("cut_after must be at least 0 tokens.", param="cut_after")
    if not 400 <= merged.error_status <= 599:
        raise ConfigError("error_status must be between 400 and 599.")
    return merged
