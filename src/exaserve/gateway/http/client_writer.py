# compiled
"""The writing side of a client's connection: what an exchange needs of it, and no more.

:class:`~exaserve.gateway.http.client.ClientConnection` is the whole of it.
"""

from __future__ import annotations

import asyncio
from math import inf

from exaserve.gateway.http.socket_write import DirectWriter

__all__ = ["ClientWriter"]


class ClientWriter:
    """Bytes to one client.

    Attributes:
        transport: None before the connection is made and after it is lost.
        stalled: the client reads more slowly than the answer comes; its upstream is paused.
        closing: nothing more is read or answered.
    """

    __slots__ = ("_stall_at", "_stall_size", "_writer", "closing", "stalled", "transport")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._writer: DirectWriter | None = None
        self._stall_at = self._stall_size = 0.0
        self.stalled = self.closing = False

    def opened(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self._writer = DirectWriter(transport)

    def exchange_done(self, now: float) -> None:
        """The exchange has answered: the connection may go on to its next request."""
        raise NotImplementedError

    def lost(self) -> None:
        self.closing = True
        self.transport = self._writer = None

    def write(self, data: bytes) -> None:
        writer = self._writer
        if writer is not None:
            writer.write(data)

    def abort(self) -> None:
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    def stall(self, now: float) -> None:
        """The client has stopped reading: it is on the clock."""
        self.stalled = True
        self._stall_at = now
        self._stall_size = inf

    def check_stall(self, now: float, limit_s: float) -> None:
        """Called each tick while ``stalled``: a client that takes no byte for ``limit_s`` is gone."""
        if self.transport is None:
            return
        size = self.transport.get_write_buffer_size()
        if size < self._stall_size:
            self._stall_size = float(size)
            self._stall_at = now
        elif now - self._stall_at > limit_s:
            self.abort()
