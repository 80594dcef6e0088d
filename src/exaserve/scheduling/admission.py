# compiled
"""Admission: the bounded queue of requests that no replica may take yet.

Order: larger priority first; within a priority, tenants take turns (fairness), each tenant's own requests in order of
arrival. Requests for a model that cannot be placed do not block those for another: one refusal per model and pass.
Everything is bounded: tickets, bytes, waiting time, and one tenant's share while others wait. Where a bound is reached,
a tenant that holds less than another displaces the other's newest tickets: a flood fills the queue only for itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable

from exaserve.domain.errors import QueueFull
from exaserve.domain.request import RequestFacts
from exaserve.scheduling.config import AdmissionConfig
from exaserve.scheduling.placement import Placement, Refusal

__all__ = ["Admission", "Ticket"]


class Ticket:
    """One waiting request. ``waiter`` is the caller's own object, never looked at.

    Attributes:
        queued: it waits for its turn.
        displaced: its place was given to a tenant that held less; :meth:`Admission.expired` returns it next.
    """

    __slots__ = ("deadline", "displaced", "facts", "offered_at", "queued", "size_bytes", "waiter")

    def __init__(
        self, facts: RequestFacts, offered_at: float, deadline: float, waiter: object, size_bytes: int
    ) -> None:
        self.facts = facts
        self.offered_at = offered_at
        self.deadline = deadline
        self.waiter = waiter
        self.size_bytes = size_bytes
        self.queued = True
        self.displaced = False


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
        self._displaced: list[Ticket] = []
        self._tenants: dict[str, int] = {}
        self._tenant_bytes: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """Tickets held, and those displaced that :meth:`expired` has not returned yet."""
        return len(self._deadlines) + len(self._displaced)

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
            QueueFull: tickets or bytes are at their bound and nobody else holds more, or this tenant is at its share
                while others wait.
        """
        config = self.config
        held = len(self._deadlines)
        own = self._tenants.get(facts.tenant, 0)
        full = held >= config.queue_max or self._bytes + size_bytes > config.bytes_max
        if full and not self._displace(facts.tenant, size_bytes):
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
        self._tenant_bytes[facts.tenant] = self._tenant_bytes.get(facts.tenant, 0) + size_bytes
        self._bytes += size_bytes
        return ticket

    def _displace(self, tenant: str, size_bytes: int) -> bool:
        """Make room for one request of ``tenant`` at the cost of the largest other one, unless it would end with less.

        Of that one's tickets those of the lowest priority go first, and of them the newest.
        """
        config = self.config
        too_many = len(self._deadlines) >= config.queue_max
        held = self._tenants if too_many else self._tenant_bytes
        largest = max((t for t in held if t != tenant), key=held.__getitem__, default=None)
        if largest is None:
            return False
        least = self._tenants.get(tenant, 0) + 1
        least_bytes = self._tenant_bytes.get(tenant, 0) + size_bytes
        count, room = self._tenants[largest], config.bytes_max - self._bytes
        victim_bytes = self._tenant_bytes[largest]
        going: list[Ticket] = []
        theirs = [t for t in reversed(self._deadlines) if t.facts.tenant == largest]
        theirs.sort(key=lambda t: t.facts.priority)
        for ticket in theirs:
            if going and room >= size_bytes:
                break
            going.append(ticket)
            room += ticket.size_bytes
            victim_bytes -= ticket.size_bytes
        kept_enough = count - len(going) >= least if too_many else victim_bytes >= least_bytes
        if room < size_bytes or not kept_enough:
            return False
        for ticket in going:
            self._forget(ticket)
            ticket.displaced = True
        self._displaced += going
        return True

    def cancel(self, ticket: Ticket) -> None:
        """The client left. Does nothing for a ticket that is no longer queued."""
        if ticket.queued:
            self._forget(ticket)
        elif ticket.displaced and ticket in self._displaced:
            self._displaced.remove(ticket)

    def expired(self, now: float) -> list[Ticket]:
        """Remove and return the tickets whose wait is over: those displaced, then the longest waiting first."""
        gone, self._displaced = self._displaced, []
        over = [t for t in self._deadlines if t.deadline <= now]
        for ticket in over:
            self._forget(ticket)
        return gone + over

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
        tenant = ticket.facts.tenant
        left = self._tenants[tenant] - 1
        if left:
            self._tenants[tenant] = left
            self._tenant_bytes[tenant] -= ticket.size_bytes
        else:
            del self._tenants[tenant], self._tenant_bytes[tenant]
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
        if self._displaced:
            return -math.inf
        return min((t.deadline for t in self._deadlines), default=None)

    def validate(self) -> None:
        """Assert the invariants: counts agree and no bound is passed."""
        assert len(self._deadlines) <= self.config.queue_max
        assert self._bytes == sum(t.size_bytes for t in self._deadlines) <= self.config.bytes_max
        assert sum(self._tenants.values()) == len(self._deadlines)
        assert all(n > 0 for n in self._tenants.values())
        assert self._tenants.keys() == self._tenant_bytes.keys()
        assert sum(self._tenant_bytes.values()) == self._bytes
        assert all(t.displaced and not t.queued for t in self._displaced)
        lanes = [lane for by_priority in self._lanes.values() for lane in by_priority.values()]
        queued = [t for lane in lanes for fifo in lane.tenants.values() for t in fifo if t.queued]
        assert len(queued) == len(self._deadlines)
