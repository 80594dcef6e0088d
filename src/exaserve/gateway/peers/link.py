"""One connection between two gateways: greeting, proof, and what the peer tells put into the ledger."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Protocol, cast

from exaserve.domain.replica import ReplicaId
from exaserve.gateway.peers.frames import (
    DECODING,
    STREAM,
    Auth,
    Define,
    Done,
    Echo,
    First,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Placed,
    Reset,
    Time,
    Want,
    proof,
    write_auth,
    write_echo,
    write_hello,
    write_time,
    write_want,
)
from exaserve.gateway.peers.lag import Lag
from exaserve.gateway.peers.replication import Outbox
from exaserve.scheduling import Scheduler

__all__ = ["BUFFER_BYTES_MAX", "Link", "Owner"]

BUFFER_BYTES_MAX = 1_048_576
"""Bytes waiting for one slow peer (about 50,000 events); above it events are left out and the picture sent later."""
_CLOSED = "the peer closed the connection"


class Owner(Protocol):
    """What a link needs of :class:`exaserve.gateway.peers.peering.Peering`."""

    name: str
    instance: bytes
    token: bytes
    scheduler: Scheduler
    outbox: Outbox
    clock: Callable[[], float]
    on_change: Callable[[], None] | None

    def take(self, link: Link) -> bool: ...

    def greeted(self, link: Link) -> None: ...

    def lost(self, link: Link) -> None: ...


class Link(asyncio.Protocol):
    """One connection to a peer, from the first byte to the last."""

    def __init__(self, owner: Owner, dialed: str | None) -> None:
        self.owner = owner
        self.dialed = dialed
        self.hello: Hello | None = None
        self.peer = ""
        self.address = dialed or ""
        self.established = False
        self.lagging = False
        self.why = _CLOSED
        self.opened_at = self.heard_at = owner.clock()
        self.received = self.sent_bytes = self.resyncs = 0
        self.lag = Lag()
        self.deaf = False
        """What the peer tells is not charged: it is slow, or was and has not sent its whole picture yet."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._own = Hello(owner.instance, secrets.token_bytes(16), owner.name)
        self._reader = FrameReader()
        self._replicas: dict[int, ReplicaId] = {}
        self._event_at = 0.0
        self._peer_time: tuple[float, float] | None = None
        """The peer's clock in its last message, and ours when that came."""
        self._transport: asyncio.Transport | None = None

    # ---- asyncio ------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's own do not derive from it
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = transport.get_extra_info("peername") or ("", 0)
        if self.dialed is None:
            self.address = f"{name[0]}:{name[1]}"
            if not self.owner.take(self):
                self.drop("too many connections")
                return
        transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX, low=BUFFER_BYTES_MAX // 4)
        self.write(write_hello(self._own))

    def data_received(self, data: bytes) -> None:
        now = self.heard_at = self.owner.clock()
        try:
            frames = self._reader.feed(data)
            for frame in frames:
                self._take(frame, now)
                if self._transport is None:
                    return
        except FrameError as error:
            self.drop(str(error))
            return
        self.received += len(frames)
        if self.established and self.owner.on_change is not None:
            self.owner.on_change()

    def pause_writing(self) -> None:
        self.lagging = True

    def resume_writing(self) -> None:
        if self.lagging:
            self.lagging = False
            if self.established:
                self.resyncs += 1
                self.send_picture()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self.why == _CLOSED:
            self.why = str(error)
        self._transport = None
        self.owner.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    # ---- sending ------------------------------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self.sent_bytes += len(data)
            self._transport.write(data)

    def send_picture(self) -> None:
        now = self.owner.clock()
        self.write(write_time(now) + self.owner.outbox.picture(now))

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
        """Asks for the whole picture, from which on the peer is believed again."""
        self.write(write_want())

    def drop(self, why: str) -> None:
        """Ends the connection at once."""
        self.why = why
        transport = self._transport
        if transport is not None:
            self._transport = None
            transport.abort()

    # ---- what comes ---------------------------------------------------------------------------------------------
    def _take(self, frame: Frame, now: float) -> None:
        if not self.established:
            self._greet(frame)
            return
        scheduler = self.owner.scheduler
        kind = type(frame)
        if kind is Time:
            sent_at = frame.sent_at  # type: ignore[union-attr]
            self.lag.heard(sent_at, now)
            self._peer_time = (sent_at, now)
            self._event_at = min(sent_at + self.lag.offset.least, now)
        elif isinstance(frame, Echo):
            self.lag.echoed(frame.sent_at, frame.held_s, now)
        elif isinstance(frame, Define):
            self._replicas[frame.number] = ReplicaId(frame.replica)
        elif kind is Reset:
            scheduler.peers.lost(self.peer, now)
            self._replicas.clear()
            self.deaf = self.lag.slow
        elif kind is Want:
            self.send_picture()
        elif self.deaf:
            return
        elif isinstance(frame, Placed):
            replica = self._replicas.get(frame.number)
            if replica is None:
                raise FrameError("a replica's number was not defined")
            at = self._event_at - frame.age_s
            scheduler.peers.placed(
                self.peer, frame.ref, replica, frame.tokens, frame.kv_tokens, bool(frame.flags & STREAM), at
            )
            if frame.flags & DECODING:
                scheduler.peers.first_token(self.peer, frame.ref, at)
        elif kind is First:
            scheduler.peers.first_token(self.peer, frame.ref, self._event_at)  # type: ignore[union-attr]
        elif kind is Done:
            scheduler.peers.done(self.peer, frame.ref, self._event_at)  # type: ignore[union-attr]
        else:
            raise FrameError("a second greeting")

    def _greet(self, frame: Frame) -> None:
        token = self.owner.token
        if self.hello is None:
            if not isinstance(frame, Hello):
                raise FrameError("the peer did not greet")
            self.hello = frame
            role = "dialed" if self.dialed is not None else "accepted"
            self.write(write_auth(proof(token, role, self._own, frame)))  # type: ignore[arg-type]
            return
        if not isinstance(frame, Auth):
            raise FrameError("the peer did not prove itself")
        role = "accepted" if self.dialed is not None else "dialed"
        if not hmac.compare_digest(frame.proof, proof(token, role, self.hello, self._own)):  # type: ignore[arg-type]
            raise FrameError("the peer does not hold the same token")
        self.peer = self.hello.name
        self.owner.greeted(self)
