# compiled
"""Keep-alive connections to replicas: taken last in, first out; closed when idle; opened on demand."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from httptools import HttpResponseParser

from exaserve.config.settings import Timeouts
from exaserve.domain.errors import ConnectFailed
from exaserve.gateway.http.message_head import Heads
from exaserve.gateway.http.upstream import Endpoint, UpstreamConnection

__all__ = ["Connecting", "UpstreamPool"]

_IDLE_MAX = 512
"""Idle connections kept per replica: what a replica's whole batch needs. More are closed when they come back."""


class Connecting(Protocol):
    """A request that waits for a connection of its own."""

    def connected(self, upstream: UpstreamConnection) -> None:
        """May leave the connection idle (say, since the client has gone); then the pool keeps it."""

    def connect_failed(self, endpoint: Endpoint, error: ConnectFailed) -> None: ...


class UpstreamPool:
    """All connections of one gateway process to replicas. Names are resolved when connecting, never before."""

    def __init__(self, timeouts: Timeouts, clock: Callable[[], float]) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._heads: Heads[tuple[int, bytes]] = Heads(HttpResponseParser)
        self._endpoints: dict[str, Endpoint] = {}
        self._open: set[UpstreamConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Open connections, idle ones included."""
        return len(self._open)

    def idle(self) -> int:
        return sum(len(endpoint.idle) for endpoint in self._endpoints.values())

    def endpoint(self, replica: str, url: str) -> Endpoint:
        """The replica's endpoint; a new one, without the old connections, where its address has changed."""
        endpoint = self._endpoints.get(replica)
        if endpoint is None or endpoint.url != url:
            fresh = Endpoint(replica, url)
            self.forget(replica)
            endpoint = self._endpoints[replica] = fresh
        return endpoint

    def forget(self, replica: str) -> None:
        """The replica is gone or has moved: its idle connections are closed; those at work go on."""
        endpoint = self._endpoints.pop(replica, None)
        if endpoint is not None:
            endpoint.live = False
            for upstream in endpoint.idle[:]:
                upstream.abort()
            endpoint.idle.clear()

    def give_back(self, upstream: UpstreamConnection, now: float) -> None:
        """Takes a connection back after an answer, if it can carry another."""
        if upstream.recycle(now):
            self._park(upstream)

    def _park(self, upstream: UpstreamConnection) -> None:
        endpoint = upstream.endpoint
        if endpoint.live and len(endpoint.idle) < _IDLE_MAX:
            endpoint.idle.append(upstream)
        else:
            upstream.abort()

    def connect(self, endpoint: Endpoint, waiter: Connecting) -> None:
        """Opens a connection in a task of its own (connecting is rare, and may have to resolve a name)."""
        task = asyncio.get_running_loop().create_task(self._connect(endpoint, waiter))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, endpoint: Endpoint, waiter: Connecting) -> None:
        loop = asyncio.get_running_loop()
        limit_s = self._timeouts.connect_s
        try:
            async with asyncio.timeout(limit_s):
                _, upstream = await loop.create_connection(  # type: ignore[type-var]  # it has the methods, not the base
                    lambda: self.protocol(endpoint), endpoint.host, endpoint.port
                )
        except TimeoutError:
            waiter.connect_failed(
                endpoint, ConnectFailed(f"The replica did not accept a connection within {limit_s} s.")
            )
        except OSError as error:
            # asyncio's own text repeats the address, which is not the client's business.
            why = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else "its name is not known"
            waiter.connect_failed(endpoint, ConnectFailed(f"The replica cannot be reached: {why}."))
        except UnicodeError:
            waiter.connect_failed(endpoint, ConnectFailed("The replica cannot be reached: its name is no host name."))
        else:
            self.adopt(upstream, waiter)

    def protocol(self, endpoint: Endpoint) -> UpstreamConnection:
        """The protocol for a new connection to ``endpoint``; :meth:`adopt` takes it once it is connected."""
        return UpstreamConnection(endpoint, self._closed, self._heads)

    def adopt(self, upstream: UpstreamConnection, waiter: Connecting | None = None) -> None:
        """Takes a connection that has just been made, for ``waiter`` or else, or if that leaves it idle, to be kept."""
        if not upstream.ready:
            if waiter is not None:
                waiter.connect_failed(upstream.endpoint, ConnectFailed("The replica closed the connection at once."))
            return
        self._open.add(upstream)
        if waiter is not None:
            waiter.connected(upstream)
        if upstream.relay is None and upstream.ready:
            upstream.idle_since = self._clock()
            upstream.reused = True  # by the time it is used it may be dead, like any other idle connection
            self._park(upstream)

    def _closed(self, upstream: UpstreamConnection) -> None:
        self._open.discard(upstream)
        idle = upstream.endpoint.idle
        if upstream in idle:
            idle.remove(upstream)

    def tick(self, now: float) -> None:
        """Closes connections that have been idle for too long. Oldest stand first, since the last used is used next."""
        limit = now - self._timeouts.upstream_keepalive_s
        for endpoint in self._endpoints.values():
            idle = endpoint.idle
            old = 0
            while old < len(idle) and idle[old].idle_since <= limit:
                idle[old].abort()
                old += 1
            if old:
                del idle[:old]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for upstream in list(self._open):
            upstream.abort()
        self._endpoints.clear()

    def validate(self) -> None:
        for endpoint in self._endpoints.values():
            assert all(upstream.relay is None and upstream in self._open for upstream in endpoint.idle)
