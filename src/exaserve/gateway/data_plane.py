# compiled
"""The data plane of one gateway process: its client connections, the coarse clock behind every deadline, the end.

One tick each quarter of a second looks at every connection and request instead of a timer for each: at 5,000 streams
that is a few thousandths of a core; arming and cancelling a timer per event would cost more than relaying it.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from exaserve.domain.replica import ReplicaId
from exaserve.gateway.core import Core
from exaserve.gateway.http.client import ClientConnection, Clients

__all__ = ["TICK_S", "DataPlane", "tune_gc"]

TICK_S = 0.25
"""How coarse deadlines are, seconds."""


class DataPlane:
    """See the module's text. No I/O before the first connection."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.clients = Clients(core.limits.connections_max)
        self._timer: asyncio.TimerHandle | None = None

    def client_protocol(self) -> Any:
        """Factory for ``loop.create_server``: has the methods of ``asyncio.Protocol``, but not that base.

        A class with a base from elsewhere could not be compiled (docs/decisions/0006).
        """
        return ClientConnection(self.core, self.clients)

    def start(self) -> None:
        """Begins to tick."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def inflight(self) -> int:
        """Proxied requests under way, queued ones included."""
        return len(self.core.dispatcher.open)

    def wake(self) -> None:
        """Sends on what the admission queue may now place."""
        dispatcher = self.core.dispatcher
        if dispatcher.waiting():
            dispatcher.wake(self.core.clock())

    def evacuate(self, replica: ReplicaId) -> int:
        """Moves requests that wait for their first byte off a replica; returns how many moved."""
        return self.core.dispatcher.evacuate(replica, self.core.clock())

    async def drain(self, timeout_s: float) -> None:
        """Waits until nothing is under way, at most ``timeout_s``; idle client connections are closed meanwhile."""
        core = self.core
        core.stop()
        end = core.clock() + timeout_s
        while core.clock() < end:
            self.clients.close_idle()
            if not core.dispatcher.open and not len(self.clients):
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Ends everything that is left, at once. Every placement is released."""
        core = self.core
        core.stop()
        self.clients.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        core.dispatcher.stop(core.clock())
        await asyncio.sleep(0)  # what was written last goes out
        self.clients.abort()
        await core.pool.close()
        await asyncio.sleep(0)  # lets transports deliver connection_lost

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.tick(self.core.clock())

    def tick(self, now: float) -> None:
        """Acts on every deadline that has passed."""
        core = self.core
        core.dispatcher.tick(now)
        self.clients.tick(now, core.timeouts.client_write_s)
        core.pool.tick(now)
        if core.stopping:
            self.clients.close_idle()

    def validate(self) -> None:
        """Asserts that what is under way and what is held agree."""
        self.core.validate()
        assert len(self.clients) or not self.core.receiving.held_bytes


def tune_gc() -> None:
    """For the process that serves: what exists now is for ever, and collections come every 50,000 net allocations.

    The request path makes few cycles (a connection and its parser), so frequent collections only cost latency.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
