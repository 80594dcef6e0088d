"""One connection between two gateways: what the peer tells is put into the ledger, what it asks for is sent."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Protocol

from exaserve.config import join_address
from exaserve.domain.replica import ReplicaId
from exaserve.gateway.peers.bounds import PeeringBounds
from exaserve.gateway.peers.events import (
    DECODING,
    STREAM,
    Define,
    Done,
    Echo,
    First,
    PeerEvent,
    PeerEventReader,
    Placed,
    Reset,
    Time,
    Want,
    write_echo,
    write_time,
    write_want,
)
from exaserve.gateway.peers.lag import Lag
from exaserve.gateway.peers.replication import Outbox
from exaserve.scheduling import Scheduler
from exaserve.wire import FrameKind, Hello, WireError, WireLink
from exaserve.wire.link import Role
from exaserve.wire.protocol import LinkProtocol

__all__ = ["PeerLink", "PeerOwner"]

_PIECE_BYTES = 1_048_576
"""Of one frame: a snapshot of very many placements is cut, and its reader puts it together again."""
_CLOSED = "the peer closed the connection"


class PeerOwner(Protocol):
    """What a link needs of :class:`exaserve.gateway.peers.peering.Peering`."""

    name: str
    instance: bytes
    token: bytes | None
    scheduler: Scheduler
    outbox: Outbox
    clock: Callable[[], float]
    bounds: PeeringBounds
    on_change: Callable[[], None] | None

    def take(self, link: PeerLink) -> bool: ...

    def greeted(self, link: PeerLink) -> None: ...

    def lost(self, link: PeerLink) -> None: ...

    def heard(self, link: PeerLink, kind: FrameKind, payload: bytes) -> None: ...


class PeerLink(LinkProtocol):
    """One connection to a peer, from the first byte to the last."""

    def __init__(self, owner: PeerOwner, dialed: str | None) -> None:
        super().__init__(owner.clock)
        self.owner = owner
        self.dialed = dialed
        self.hello: Hello | None = None
        self.peer = ""
        self.address = dialed or ""
        self.established = False
        self.lagging = False
        self.why = _CLOSED
        self.received = self.resyncs = 0
        self.lag = Lag()
        self.deaf = False
        """What the peer tells is not charged: it is slow, or was and has not sent its snapshot yet."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = PeerEventReader()
        self._replicas: dict[int, ReplicaId] = {}
        self._event_at = 0.0
        self._peer_time: tuple[float, float] | None = None
        """The peer's clock in its last message, and ours when that came."""

    # ---- asyncio ------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername") or ("", 0)
        if self.dialed is None:
            self.address = join_address(*name[:2])
        super().connection_made(transport)
        assert self.transport is not None
        high = self.owner.bounds.buffer_bytes_max
        self.transport.set_write_buffer_limits(high=high, low=high // 4)
        if self.dialed is None and not self.owner.take(self):
            self.drop("too many connections")

    def new_link(self) -> WireLink:
        owner = self.owner
        role: Role = "listener" if self.dialed is None else "dialer"
        return WireLink(role, owner.name, secrets.token_bytes(16), owner.token, owner.instance)

    def proved(self) -> None:
        assert self.link is not None
        assert self.link.peer is not None
        self.hello = self.link.peer
        self.peer = self.hello.name
        self.owner.greeted(self)

    def took(self, kind: FrameKind, payload: bytes) -> None:
        if kind is not FrameKind.EVENTS:
            self.owner.heard(self, kind, payload)
            return
        events = self._reader.feed(payload)
        for event in events:
            self._take(event, self.heard_at)
            if self.transport is None:
                return
        self.received += len(events)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.established and self.owner.on_change is not None:
            self.owner.on_change()

    def broke(self, why: str) -> None:
        self.why = why
        self.refuse(why)

    def pause_writing(self) -> None:
        self.lagging = True

    def resume_writing(self) -> None:
        if self.lagging:
            self.lagging = False
            if self.established:
                self.resyncs += 1
                self.send_snapshot()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.why == _CLOSED:
            self.why = str(exc)
        if self.hello is None and self.link is not None:
            self.hello = self.link.peer
        super().connection_lost(exc)
        self.owner.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    # ---- sending ------------------------------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        """Events, one after the other."""
        if len(data) <= _PIECE_BYTES:
            self.send(FrameKind.EVENTS, data)
        else:
            for at in range(0, len(data), _PIECE_BYTES):
                self.send(FrameKind.EVENTS, data[at : at + _PIECE_BYTES])

    def send_snapshot(self) -> None:
        now = self.owner.clock()
        self.write(write_time(now) + self.owner.outbox.snapshot(now))

    def beat(self, now: float) -> None:
        """A sign of life, with the peer's own last time, from which it learns the round trip."""
        data = write_time(now)
        if self._peer_time is not None:
            sent_at, came_at = self._peer_time
            data += write_echo(sent_at, now - came_at)
        self.write(data)

    def deafen(self, now: float) -> None:
        """Nothing that the peer tells is believed from here on, and what it told is forgotten."""
        self.deaf = True
        self.owner.scheduler.peers.lost(self.peer, now)

    def listen(self) -> None:
        """Asks for the snapshot, from which on the peer is believed again."""
        self.write(write_want())

    def drop(self, why: str) -> None:
        """Ends the connection at once."""
        self.why = why
        transport = self.transport
        if transport is not None:
            self.transport = None
            transport.abort()

    # ---- what comes ---------------------------------------------------------------------------------------------
    def _take(self, event: PeerEvent, now: float) -> None:
        scheduler = self.owner.scheduler
        kind = type(event)
        if kind is Time:
            sent_at = event.sent_at  # type: ignore[union-attr]
            self.lag.heard(sent_at, now)
            self._peer_time = (sent_at, now)
            self._event_at = min(sent_at + self.lag.offset.least, now)
        elif isinstance(event, Echo):
            self.lag.echoed(event.sent_at, event.held_s, now)
        elif isinstance(event, Define):
            self._replicas[event.number] = ReplicaId(event.replica)
        elif kind is Reset:
            scheduler.peers.lost(self.peer, now)
            self._replicas.clear()
            self.deaf = self.lag.slow
        elif kind is Want:
            self.send_snapshot()
        elif self.deaf:
            return
        elif isinstance(event, Placed):
            replica = self._replicas.get(event.number)
            if replica is None:
                raise WireError("a replica's number was not defined")
            at = self._event_at - event.age_s
            scheduler.peers.placed(
                self.peer, event.ref, replica, event.tokens, event.kv_tokens, bool(event.flags & STREAM), at
            )
            if event.flags & DECODING:
                scheduler.peers.first_token(self.peer, event.ref, at)
        elif kind is First:
            scheduler.peers.first_token(self.peer, event.ref, self._event_at)  # type: ignore[union-attr]
        elif kind is Done:
            scheduler.peers.done(self.peer, event.ref, self._event_at)  # type: ignore[union-attr]
