# compiled
"""Which replicas may take a request (A3, A5, E2), apart from being eligible at all. Pure functions of their state."""

from __future__ import annotations

from exaserve.domain.request import RequestFacts
from exaserve.scheduling.ledger import ReplicaState

__all__ = ["fits", "may_take", "why_not"]


def may_take(state: ReplicaState, facts: RequestFacts) -> bool:
    """Whether ``state``, known to be eligible, may take the request now.

    An idle replica may take anything that fits its cache at all: a request larger than the watermark would otherwise
    wait for ever.
    """
    return state.room and (facts.prompt_tokens + facts.output_tokens <= state.need_free or fits(state, facts))


def fits(state: ReplicaState, facts: RequestFacts) -> bool:
    """Whether the request fits the replica's whole cache and its context window."""
    need = facts.prompt_tokens + facts.output_tokens
    return (not state.kv_max or need <= state.kv_max) and facts.prompt_tokens < state.prompt_max


def why_not(state: ReplicaState, facts: RequestFacts) -> str | None:
    """The first reason against ``state`` in words, or None where it may take the request."""
    reason = state.why_not_eligible()
    if reason is not None:
        return reason
    if may_take(state, facts):
        return None
    need = facts.prompt_tokens + facts.output_tokens
    if state.depth >= state.config.queue_depth_max:
        return f"queue depth {state.depth} has reached {state.config.queue_depth_max}"
    if state.kv_max and need > state.kv_max:
        return f"needs {need} KV tokens, the cache holds {state.kv_max:.0f}"
    if facts.prompt_tokens >= state.prompt_max:
        return f"prompt of about {facts.prompt_tokens} tokens exceeds max_model_len {state.spec.max_model_len}"
    used = state.kv_predicted / state.kv_max
    return f"KV use {used:.2f} has reached the watermark {state.config.kv_watermark:.2f}"
