# compiled
"""What the scheduler needs to know of one request, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from exaserve.domain.replica import ReplicaId

__all__ = ["Outcome", "RequestFacts", "Usage"]


@dataclass(slots=True, init=False)
class RequestFacts:
    """One request as the scheduler sees it. Built once by the gateway (or simulator), not changed afterwards.

    Attributes:
        model: the name the client asked for; selects the pool.
        prompt_tokens: prompt length in tokens, estimated unless a tokenizer said so.
        output_tokens: expected generated tokens: ``max_tokens`` cut to the pool's learned mean where it is larger.
        total_tokens_max: prompt + the client's own bound on output, what a context window must hold at worst; 0 where
            the client sets none and any room for an answer will do.
        stream: whether the answer is streamed, so that a first byte will be seen before the last.
        session: affinity key (header, ``user``, or None), for the consistent-hashing policies.
        prefix: chained hashes of the prompt's leading blocks, shallowest first (see
            :func:`exaserve.scheduling.block_hashes`).
        prompt_bytes: bytes of prompt text, to learn bytes per token from the engine's ``usage``.
        priority: larger goes first in the admission queue; 0 is normal.
        tenant: whose request it is, for fairness in the admission queue ("" is the anonymous tenant).
        kept_by: the replica that keeps what the request goes on with, so that no other can serve it; None for most.
        route: what kind of request it is, as its path says; "" where answers of its kind are not to be compared.
    """

    model: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    total_tokens_max: int = 0
    stream: bool = False
    session: str | None = None
    prefix: tuple[int, ...] = ()
    prompt_bytes: int = 0
    priority: int = 0
    tenant: str = ""
    route: str = ""
    kept_by: ReplicaId | None = None

    # By hand: one is made for every request, and what ``dataclass`` would write is not compiled with the rest.
    def __init__(
        self,
        model: str,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        total_tokens_max: int = 0,
        stream: bool = False,
        session: str | None = None,
        prefix: tuple[int, ...] = (),
        prompt_bytes: int = 0,
        priority: int = 0,
        tenant: str = "",
        route: str = "",
        kept_by: ReplicaId | None = None,
    ) -> None:
        self.model = model
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.total_tokens_max = total_tokens_max
        self.stream = stream
        self.session = session
        self.prefix = prefix
        self.prompt_bytes = prompt_bytes
        self.priority = priority
        self.tenant = tenant
        self.route = route
        self.kept_by = kept_by


class Outcome(Enum):
    """How a placement ended. Exactly one per placement."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    REPLICA_FAILED = "replica_failed"
    """Connection refused or lost, time-out, or invalid response."""
    REPLICA_ERROR = "replica_error"
    """The replica answered 5xx."""
    REJECTED = "rejected"
    """The replica answered 4xx: no work was done, and it says nothing about the replica unless its peers accept such
    requests."""
    BUSY = "busy"
    """The replica answered 429: it is full, which says nothing about the request either."""


@dataclass(slots=True, init=False)
class Usage:
    """Token counts as the engine reported them at the end of an answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    # By hand, as above.
    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
