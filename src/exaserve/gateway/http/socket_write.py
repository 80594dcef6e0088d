# compiled
"""Writing to a socket without the event loop's detour.

uvloop queues what is written and sends it once the turn's reads are over, with a handle that is started and stopped for
it. Where nothing waits before them, bytes may as well go to the socket at once; what it does not take goes to the
transport, which queues it, applies backpressure and meets every error as usual.
"""

from __future__ import annotations

import asyncio
import os

__all__ = ["DirectWriter"]


class DirectWriter:
    """Writes to one plain TCP connection, in the order of the calls."""

    __slots__ = ("_fd", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        socket = transport.get_extra_info("socket")
        plain = socket is not None and transport.get_extra_info("sslcontext") is None
        self._fd: int = socket.fileno() if plain else -1

    def write(self, data: bytes | memoryview) -> None:
        transport = self._transport
        # A transport that is closing may have given its descriptor back, and somebody else may have it now.
        if self._fd >= 0 and not transport.is_closing() and not transport.get_write_buffer_size():
            try:
                sent = os.write(self._fd, data)
            except OSError:
                sent = 0  # a full socket, or a broken one: the transport finds out as well, and knows what follows
            if sent == len(data):
                return
            if sent:
                data = data[sent:]
        transport.write(data)
