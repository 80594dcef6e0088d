# compiled
"""One client's request on its way through the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.scheduling import Placement, Ticket
from exaserve.simulate.replica import Job

if TYPE_CHECKING:
    from exaserve.simulate.gateway import SimGateway
    from exaserve.simulate.replica import SimReplica

__all__ = ["Call"]


class Call(Job):
    """A request of the demand: what its gateway knows of it, and what an engine computes of it.

    Attributes:
        index: row of the demand.
        answered: its first token has been seen, so that it cannot be tried again.
        over: its end has been recorded.
        tried: replicas that failed it.
    """

    __slots__ = (
        "answered",
        "attempts",
        "facts",
        "index",
        "model",
        "over",
        "placement",
        "prefix",
        "replica",
        "sent_at",
        "session",
        "ticket",
        "tried",
    )

    facts: RequestFacts
    replica: SimReplica
    sent_at: float

    def __init__(
        self,
        gateway: SimGateway,
        index: int,
        model: str,
        prompt_tokens: int,
        output_tokens: int,
        session: int = -1,
        hashes: Sequence[int] = (),
        prefix: tuple[int, ...] = (),
    ) -> None:
        Job.__init__(self, prompt_tokens, output_tokens, hashes=hashes)
        self.gateway = gateway
        self.index = index
        self.model = model
        self.session = session
        self.prefix = prefix
        self.placement: Placement | None = None
        self.ticket: Ticket | None = None
        self.tried: tuple[ReplicaId, ...] = ()
        self.attempts = 0
        self.answered = self.over = False

    def again(self) -> Call:
        """The same request, new to engines; this one is void."""
        call = Call(
            self.gateway,
            self.index,
            self.model,
            self.prompt_tokens,
            self.output_tokens,
            self.session,
            self.hashes,
            self.prefix,
        )
        call.facts, call.tried, call.attempts = self.facts, self.tried, self.attempts
        self.over = True
        return call

    def on_first(self, now: float) -> None:
        self.gateway.first_token(self, now)

    def on_done(self, now: float) -> None:
        self.gateway.done(self, now)

    def on_lost(self, now: float, why: str) -> None:
        self.gateway.lost(self, now, why)

    def on_refused(self, now: float) -> None:
        self.gateway.refused_by_replica(self, now)
