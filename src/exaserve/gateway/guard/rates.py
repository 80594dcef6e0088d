# compiled
"""Limits on the wire, as OpenAI's and Anthropic's clients read them: headers of every answer, and refusals."""

from __future__ import annotations

from math import ceil

from exaserve.control.limits import LimitBook, Reservation, Shortage
from exaserve.control.meters import CONCURRENT, OUTPUT, REQUESTS, SPAN_S, TOKENS_PERIOD, Meter
from exaserve.domain.errors import ExaServeError, QuotaExhausted, RateLimited

__all__ = ["go_duration", "rate_lines", "shortage_error"]

_SAID = (
    "requests per minute (RPM)", "tokens per minute (TPM)", "input tokens per minute", "output tokens per minute",
    "concurrent requests", "tokens per {}", "money per {}",
)  # fmt: skip
_CONCURRENT_WAIT_S = 1.0
"""When one of the requests under way will end is not known."""


def go_duration(seconds: float) -> str:
    """As Go writes durations, and OpenAI its resets: ``12ms``, ``1.5s``, ``6m0s``."""
    ms = ceil(seconds * 1000 - 1e-6)
    if ms < 1000:
        return f"{ms}ms" if ms > 0 else "0s"
    minutes, rest = divmod(ms, 60_000)
    text = f"{rest // 1000}" if rest % 1000 == 0 else f"{rest / 1000:.3f}".rstrip("0")
    return f"{minutes}m{text}s" if minutes else f"{text}s"


def rate_lines(charge: Reservation, second: int) -> bytes:
    """Header lines of what is left of the tightest bounds of requests and tokens, each with its CRLF; b"" for none."""
    share = charge.limits.share
    requests: Meter | None = None
    tokens: Meter | None = None
    requests_left = tokens_left = 0.0
    for meter in charge.meters:
        kind = meter.kind
        if kind == REQUESTS:
            left = meter.room(share)
            if requests is None or left < requests_left:
                requests, requests_left = meter, left
        elif kind <= OUTPUT:
            left = meter.room(share)
            if tokens is None or left < tokens_left:
                tokens, tokens_left = meter, left
    out = b"" if requests is None else _lines(b"requests", requests, requests_left, second)
    return out if tokens is None else out + _lines(b"tokens", tokens, tokens_left, second)


def _lines(what: bytes, meter: Meter, left: float, second: int) -> bytes:
    """The reset is when all of the bound is free again, if nothing more is used."""
    rest = meter.last + SPAN_S - second
    reset = b"1m%ds" % (rest - 60) if rest >= 60 else b"%ds" % rest
    if left >= meter.limit or rest <= 0:
        reset = b"0s"
    return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
        what,
        int(meter.limit),
        what,
        int(left) if left > 0.0 else 0,
        what,
        reset,
    )


def shortage_error(shortage: Shortage, limits: LimitBook, model: str) -> ExaServeError:
    """What the client is told: what the bound is, and when to come again where that helps."""
    meter = shortage.meter
    scope = meter.name.rpartition(":")[0]
    if scope.startswith("key="):
        scope = "this API key"
    else:
        scope = scope.removeprefix("rule:").replace("=", " ") or "this endpoint"
    said = _SAID[meter.kind].format(meter.period)
    used = meter.used + meter.heard + meter.pending
    limit = meter.limit * limits.share
    figures = f"Limit {limit:.6g}, Used {used:.6g}, Requested {shortage.asked:.6g}."
    text = f"Rate limit reached for {model} on {said} of {scope}: {figures}"
    if shortage.never:
        return QuotaExhausted(f"{text} The request is larger than the whole limit, so it can never be served.")
    if meter.kind >= TOKENS_PERIOD:
        return QuotaExhausted(f"{text} It begins anew with the next {meter.period} (UTC).")
    wait_s = _CONCURRENT_WAIT_S if meter.kind == CONCURRENT else max(shortage.wait_s, 0.05)
    error = RateLimited(f"{text} Please try again in {go_duration(wait_s)}.", retry_after_s=ceil(wait_s))
    error.retry_after_ms = ceil(wait_s * 1000)
    return error
