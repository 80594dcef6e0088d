"""A :class:`WireLink` on an asyncio transport: what an agent's, a gateway's and a peer's end of a connection share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from exaserve.wire.link import FrameKind, WireError, WireLink

__all__ = ["LinkProtocol"]


class LinkProtocol(asyncio.Protocol):
    """One connection: the handshake, then whole frames to :meth:`took`.

    Args:
        clock: monotonic seconds.

    Attributes:
        link: of the connection that is open now, None while there is none.
        up: whether both sides have proved themselves and :meth:`proved` has accepted the other one.
        heard_at / opened_at: when bytes last came, and when the connection was made.
        bytes_received / bytes_sent: of all connections of this object.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.link: WireLink | None = None
        self.up = False
        self.heard_at = self.opened_at = clock()
        self.bytes_received = self.bytes_sent = 0
        self.transport: asyncio.Transport | None = None

    # ---- for the end that this is -------------------------------------------------------------------------------
    def new_link(self) -> WireLink:
        """A connection was made: our side of it, with a nonce of its own."""
        raise NotImplementedError

    def proved(self) -> None:
        """The other side has proved itself: ``link.peer`` is who it says. WireError to refuse it."""

    def took(self, kind: FrameKind, payload: bytes) -> None:
        """A frame came. WireError where it should not have."""
        raise NotImplementedError

    def broke(self, why: str) -> None:
        """The other side broke the protocol, or was refused; :meth:`refuse` ends the connection."""
        self.refuse(why)

    # ---- asyncio ------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from asyncio's
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.up = False
        self.heard_at = self.opened_at = self.clock()
        self.link = self.new_link()
        self._write(self.link.to_send())

    def data_received(self, data: bytes) -> None:
        link = self.link
        if link is None:
            return
        self.heard_at = self.clock()
        self.bytes_received += len(data)
        try:
            for kind, payload in link.receive(data):
                if not self.up:
                    self._prove(link)
                self.took(kind, payload)
                if self.transport is None:
                    return
            if not self.up:
                self._prove(link)
        except WireError as error:
            self.broke(error.message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's signature
        self.transport = None
        self.link = None
        self.up = False

    def _prove(self, link: WireLink) -> None:
        if out := link.to_send():
            self._write(out)
        if link.established:
            self.up = True
            self.proved()

    # ---- sending ------------------------------------------------------------------------------------------------
    def send(self, kind: FrameKind, payload: bytes) -> None:
        """One frame; nothing before the handshake is over or after the end."""
        if self.up and self.link is not None:
            self._write(self.link.frame(kind, payload))

    def refuse(self, why: str) -> None:
        """Ends the connection in order, telling the other side why."""
        if self.link is not None:
            self._write(self.link.refusal(why))
        if self.transport is not None:
            self.transport.close()

    def buffered(self) -> int:
        """Bytes that wait for the other side to read."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def _write(self, data: bytes) -> None:
        if self.transport is not None:
            self.bytes_sent += len(data)
            self.transport.write(data)
