# compiled
"""Which replicas may take a request, apart from being eligible at all. Pure functions of their ledger."""

from __future__ import annotations

from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaLedger

__all__ = ["fits", "may_take", "reach", "why_not"]


def may_take(ledger: ReplicaLedger, facts: RequestFacts) -> bool:
    """Whether ``ledger``, known to be eligible, may take the request now.

    A replica with nothing to do may take anything that fits its cache at all.
    """
    need = facts.prompt_tokens + facts.output_tokens
    return ledger.room and reach(facts) <= ledger.context and (need <= ledger.need_free or fits(ledger, need))


def reach(facts: RequestFacts) -> int:
    """Tokens that a context window must hold: the prompt, and all that the client allows (or one) for the answer."""
    return facts.total_tokens_max or facts.prompt_tokens + 1


def fits(ledger: ReplicaLedger, need: int) -> bool:
    """Whether a request of ``need`` tokens fits the replica's whole cache."""
    return not ledger.kv.max or need <= ledger.kv.max


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
    if reach(facts) > ledger.context:
        return (
            f"prompt and answer of up to about {reach(facts)} tokens exceed max_model_len {ledger.spec.max_model_len}"
        )
    report = ledger.seen.report
    used = ledger.kv.predicted / ledger.kv.max if ledger.kv.max else report.kv_use if report else None
    if used is None:
        return "no room"
    return f"KV use {used:.2f} has reached the watermark {ledger.prices.config.kv_watermark:.2f}"
