# compiled
"""Admission: the bounded queue of requests that no replica may take yet.

Order: larger priority first; within a priority, tenants take turns (fairness), each tenant's own requests in order of
arrival. Requests for a model that cannot be placed do not block those for another: one refusal per model and pass.
Everything is bounded: tickets, bytes, waiting time, and one tenant's share while others wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from exaserve.domain.errors import QueueFull
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.config import AdmissionConfig
from exaserve.scheduling.placement import Placement, Refusal

__all__ = ["Admission", "Ticket"]


class Ticket:
    """One waiting request. ``waiter`` is the caller's own object, never looked at."""

    __slots__ = ("deadline", "facts", "offered_at", "queued", "size_bytes", "waiter")

    def __init__(
        self, facts: RequestFacts, offered_at: float, deadline: float, waiter: object, size_bytes: int
    ) -> None:
        self.facts = facts
        self.offered_at = offered_at
        self.deadline = deadline
        self.waiter = waiter
        self.size_bytes = size_bytes
        self.queued = True


class _Lane:
    """Tickets of one model and one priority: a FIFO per tenant, tenants in turn."""

    __slots__ = ("tenants",)

    def __init__(self) -> None:
        self.tenants: OrderedDict[str, deque[Ticket]] = OrderedDict()

    def push(self, ticket: Ticket) -> None:
        self.tenants.setdefault(ticket.facts.tenant, deque()).append(ticket)

    def peek(self) -> Ticket | None:
        """The ticket whose turn it is; forgets those that left the queue meanwhile."""
        while self.tenants:
            tenant, fifo = next(iter(self.tenants.items()))
            while fifo and not fifo[0].queued:
                fifo.popleft()
            if fifo:
                return fifo[0]
            del self.tenants[tenant]
        return None

    def pop(self) -> None:
        """Take the ticket :meth:`peek` returned; its tenant goes to the end of the line."""
        tenant, fifo = next(iter(self.tenants.items()))
        fifo.popleft()
        if fifo:
            self.tenants.move_to_end(tenant)
        else:
            del self.tenants[tenant]


class Admission:
    """See the module's text. All times are the caller's monotonic clock, seconds."""

    def __init__(self, config: AdmissionConfig) -> None:
        self.config = config
        self._lanes: dict[str, dict[int, _Lane]] = {}
        self._deadlines: OrderedDict[Ticket, None] = OrderedDict()
        self._tenants: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def size_bytes(self) -> int:
        """Bytes of request bodies held."""
        return self._bytes

    def offer(
        self,
        facts: RequestFacts,
        now: float,
        waiter: object,
        size_bytes: int = 0,
        wait_max_s: float | None = None,
    ) -> Ticket:
        """Queue a request. ``wait_max_s`` shortens the configured wait, never lengthens it.

        Raises:
            QueueFull: tickets or bytes are at their bound, or this tenant is at its share while others wait.
        """
        config = self.config
        held = len(self._deadlines)
        own = self._tenants.get(facts.tenant, 0)
        if held >= config.queue_max or self._bytes + size_bytes > config.bytes_max:
            raise QueueFull(
                f"all replicas of {facts.model!r} are busy and the queue of {config.queue_max} requests is full;"
                " retry later",
                retry_after_s=config.retry_after_s,
            )
        if own < held and own >= config.queue_max * config.tenant_share:
            raise QueueFull(
                f"{own} requests of this client wait already, its share of the queue; retry later",
                retry_after_s=config.retry_after_s,
            )
        wait = config.wait_max_s if wait_max_s is None else min(wait_max_s, config.wait_max_s)
        ticket = Ticket(facts, now, now + wait, waiter, size_bytes)
        self._lanes.setdefault(facts.model, {}).setdefault(facts.priority, _Lane()).push(ticket)
        self._deadlines[ticket] = None
        self._tenants[facts.tenant] = own + 1
        self._bytes += size_bytes
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """The client left. Does nothing for a ticket that is no longer queued."""
        if ticket.queued:
            self._forget(ticket)

    def expired(self, now: float) -> list[Ticket]:
        """Remove and return the tickets whose wait is over, longest waiting first."""
        over = [t for t in self._deadlines if t.deadline <= now]
        for ticket in over:
            self._forget(ticket)
        return over

    def dispatch(self, place: Callable[[RequestFacts], Placement | Refusal]) -> list[tuple[Ticket, Placement]]:
        """Place what can be placed, in order, until each model's next ticket is refused."""
        placed: list[tuple[Ticket, Placement]] = []
        for model in list(self._lanes):
            self._dispatch_model(model, place, placed)
        return placed

    def _dispatch_model(
        self,
        model: str,
        place: Callable[[RequestFacts], Placement | Refusal],
        placed: list[tuple[Ticket, Placement]],
    ) -> None:
        lanes = self._lanes[model]
        for priority in sorted(lanes, reverse=True):
            lane = lanes[priority]
            while (ticket := lane.peek()) is not None:
                result = place(ticket.facts)
                if isinstance(result, Refusal):
                    return
                lane.pop()
                self._forget(ticket)
                placed.append((ticket, result))
            del lanes[priority]
        del self._lanes[model]

    def _forget(self, ticket: Ticket) -> None:
        ticket.queued = False
        del self._deadlines[ticket]
        self._bytes -= ticket.size_bytes
        left = self._tenants[ticket.facts.tenant] - 1
        if left:
            self._tenants[ticket.facts.tenant] = left
        else:
            del self._tenants[ticket.facts.tenant]
        self._drop_empty(ticket)

    def _drop_empty(self, ticket: Ticket) -> None:
        """Free a cancelled ticket's place at once when most of its lane is gone, so that lanes stay bounded."""
        lane = self._lanes.get(ticket.facts.model, {}).get(ticket.facts.priority)
        fifo = lane.tenants.get(ticket.facts.tenant) if lane else None
        if fifo and len(fifo) > 2 * self.config.queue_max:
            alive = [t for t in fifo if t.queued]
            fifo.clear()
            fifo.extend(alive)

    def next_deadline(self) -> float | None:
        """When :meth:`expired` will next return something, or None with an empty queue."""
        return min((t.deadline for t in self._deadlines), default=None)

    def validate(self) -> None:
        """Assert the invariants: counts agree and no bound is passed."""
        assert len(self._deadlines) <= self.config.queue_max
        assert self._bytes == sum(t.size_bytes for t in self._deadlines) <= self.config.bytes_max
        assert sum(self._tenants.values()) == len(self._deadlines)
        assert all(n > 0 for n in self._tenants.values())
        lanes = [lane for by_priority in self._lanes.values() for lane in by_priority.values()]
        queued = [t for lane in lanes for fifo in lane.tenants.values() for t in fifo if t.queued]
        assert len(queued) == len(self._deadlines)
