# compiled
"""Decisions as values: a placement, a refusal. Someone else carries them out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from exaserve.domain.replica import ReplicaId
from exaserve.scheduling.charge import Charge
from exaserve.scheduling.ledger import ReplicaLedger

__all__ = ["Placement", "Refusal", "RefusalReason"]


class Placement(Charge):
    """One request on one replica, charged to that replica's ledger until released.

    Attributes:
        ledger: the account that it is charged to.
        replica_id, url: where to send the request.
        model: the pool it was placed in, "" for one that another gateway told.
        cost_s: what the policy believed this placement costs, seconds (0 for policies that price nothing).
        cached_tokens: prompt tokens believed to be in the prefix cache.
        route: kind of request, "" for one that another gateway told.
        prompt_bytes: bytes of prompt text, to learn bytes per token from.
    """

    __slots__ = ("cached_tokens", "cost_s", "ledger", "model", "prompt_bytes", "replica_id", "route", "url")

    def __init__(
        self,
        ledger: ReplicaLedger,
        model: str,
        placed_at: float,
        cost_s: float,
        tokens: int,
        work_s: float,
        cached_tokens: int,
        kv_tokens: int,
        stream: bool,
        prompt_bytes: int,
        route: str = "",
        foreign: bool = False,
    ) -> None:
        super().__init__(placed_at, tokens, work_s, kv_tokens, stream, foreign)
        self.ledger = ledger
        self.replica_id: ReplicaId = ledger.id
        self.url = ledger.url
        self.model = model
        self.route = route
        self.cost_s = cost_s
        self.cached_tokens = cached_tokens
        self.prompt_bytes = prompt_bytes

    def __repr__(self) -> str:
        return f"Placement({self.model!r} on {self.replica_id}, cost {self.cost_s:.3f} s, phase {self.phase})"


class RefusalReason(Enum):
    """Why no replica was chosen."""

    MODEL_UNKNOWN = "model_unknown"
    """No replica, up or down, serves the model."""
    NOT_READY = "not_ready"
    """Replicas serve it, none may take requests yet: down, asleep, or their agents restart them."""
    WITHDRAWN = "withdrawn"
    """Replicas serve it, an operator has taken out each: drained, weight 0 or score infinite. Waiting is no use."""
    SATURATED = "saturated"
    """Replicas are up, each over its queue depth, its KV watermark or its context length."""
    ALL_TRIED = "all_tried"
    """Every replica that may take it was excluded by the caller, having been tried already."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: RefusalReason
    message: str
