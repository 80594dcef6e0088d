# compiled
"""Which replicas may take a request (A3, A5, E2), apart from being eligible at all. Pure functions of their ledger."""

from __future__ import annotations

from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaLedger

__all__ = ["fits", "may_take", "why_not"]


def may_take(ledger: ReplicaLedger, facts: RequestFacts) -> bool:
    """Whether ``ledger``, known to be eligible, may take the request now.

    An idle replica may take anything that fits its cache at all: a request larger than the watermark would otherwise
    wait for ever.
    """
    return ledger.room and (facts.prompt_tokens + facts.output_tokens <= ledger.need_free or fits(ledger, facts))


def fits(ledger: ReplicaLedger, facts: RequestFacts) -> bool:
    """Whether the request fits the replica's whole cache and its context window."""
    need = facts.prompt_tokens + facts.output_tokens
    return (not ledger.kv.max or need <= ledger.kv.max) and facts.prompt_tokens < ledger.prompt_max


def why_not(ledger: ReplicaLedger, facts: RequestFacts) -> str | None:
    """The first reason against ``ledger`` in words, or None where it may take the request."""
    reason = ledger.standing.why_not()
    if reason is not None:
        return reason
    if may_take(ledger, facts):
        return None
    need = facts.prompt_tokens + facts.output_tokens
    if ledger.depth >= ledger.prices.config.queue_depth_max:
        return f"queue depth {ledger.depth} has reached {ledger.prices.config.queue_depth_max}"
    if ledger.kv.max and need > ledger.kv.max:
        return f"needs {need} KV tokens, the cache holds {ledger.kv.max:.0f}"
    if facts.prompt_tokens >= ledger.prompt_max:
        return f"prompt of about {facts.prompt_tokens} tokens exceeds max_model_len {ledger.spec.max_model_len}"
    used = ledger.kv.predicted / ledger.kv.max
    return f"KV use {used:.2f} has reached the watermark {ledger.prices.config.kv_watermark:.2f}"
