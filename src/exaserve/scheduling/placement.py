# compiled
"""Decisions as values: a placement, a refusal, an explanation. Someone else carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from exaserve.domain.replica import ReplicaId

if TYPE_CHECKING:
    from exaserve.scheduling.ledger import ReplicaState

__all__ = ["Candidate", "Explanation", "Placement", "Refusal", "RefusalReason"]


class Placement:
    """One request on one replica, charged to that replica's ledger until released.

    Attributes:
        replica_id, url: where to send the request.
        placed_at: seconds, monotonic.
        cost_s: what the policy believed this placement costs, seconds (0 for policies that price nothing).
        tokens: prompt tokens believed not to be in the replica's prefix cache.
        work_s: seconds of prefill those tokens are believed to take there.
        kv_tokens: KV tokens charged (prompt and expected output).
        cached_tokens: prompt tokens believed to be in the prefix cache.
        foreign: another gateway placed it and told us.
    """

    __slots__ = (
        "cached_tokens",
        "cost_s",
        "facts_prompt_bytes",
        "foreign",
        "kv_tokens",
        "model",
        "phase",
        "placed_at",
        "replica_id",
        "state",
        "stream",
        "tokens",
        "url",
        "work_s",
    )

    PENDING: Final = 0
    DECODING: Final = 1
    RELEASED: Final = 2

    def __init__(
        self,
        state: ReplicaState,
        model: str,
        placed_at: float,
        cost_s: float,
        tokens: int,
        work_s: float,
        cached_tokens: int,
        kv_tokens: int,
        stream: bool,
        prompt_bytes: int,
        foreign: bool = False,
    ) -> None:
        self.state = state
        self.replica_id: ReplicaId = state.id
        self.url = state.url
        self.model = model
        self.placed_at = placed_at
        self.cost_s = cost_s
        self.tokens = tokens
        self.work_s = work_s
        self.cached_tokens = cached_tokens
        self.kv_tokens = kv_tokens
        self.stream = stream
        self.facts_prompt_bytes = prompt_bytes
        self.foreign = foreign
        self.phase = Placement.PENDING

    def __repr__(self) -> str:
        return f"Placement({self.model!r} on {self.replica_id}, cost {self.cost_s:.3f} s, phase {self.phase})"


class RefusalReason(Enum):
    """Why no replica was chosen."""

    MODEL_UNKNOWN = "model_unknown"
    """No replica, up or down, serves the model."""
    NOT_READY = "not_ready"
    """Replicas serve it, none may take requests: down, draining, weight 0 or forced out."""
    SATURATED = "saturated"
    """Replicas are up, each over its queue depth, its KV watermark or its context length."""
    ALL_TRIED = "all_tried"
    """Every replica that may take it was excluded by the caller, having been tried already."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: RefusalReason
    message: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica in an explanation: ``out`` says why it may not take the request, else ``terms`` price it."""

    replica: ReplicaId
    out: str | None
    cost_s: float | None
    terms: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What :meth:`Scheduler.place` would do now, and why (X3). Cheapest first, then those that are out."""

    model: str
    policy: str
    chosen: ReplicaId | None
    refusal: str | None
    candidates: tuple[Candidate, ...]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-able form; infinite costs become the string ``"inf"``."""
        return {
            "model": self.model,
            "policy": self.policy,
            "chosen": self.chosen,
            "refusal": self.refusal,
            "candidates": [
                {
                    "replica": c.replica,
                    "out": c.out,
                    "cost_s": "inf" if c.cost_s == float("inf") else c.cost_s,
                    "terms": c.terms,
                }
                for c in self.candidates
            ],
        }
