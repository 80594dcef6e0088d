# compiled
"""A client's connection: requests in, answers out, in order, with every wait bounded."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING, cast

from exaserve.domain.errors import ClientError, ExaServeError, SlowClient
from exaserve.gateway.http.exchange import Exchange
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.local_answers import CONTINUE, error_answer
from exaserve.gateway.http.parse import HEAD, IDLE, Request, RequestReader
from exaserve.gateway.http.routes import Dialect, Kind, resolve
from exaserve.gateway.http.socket_write import DirectWriter

if TYPE_CHECKING:
    from exaserve.gateway.core import Core

__all__ = ["ClientConnection"]

_LINGER_S = 2.0
"""After an error that closes, unread bytes are taken and dropped this long, so that the client can read the answer:
closing with unread bytes would reset the connection and destroy it."""


class ClientConnection:
    """One client.

    Attributes:
        exchange: the proxied request being answered, if one is.
        stalled: the client reads more slowly than the answer comes; its upstream is paused.
        deadline: when :meth:`expired` is to be called, seconds, monotonic; infinite while a replica is at work.
    """

    __slots__ = (
        "_closing", "_core", "_lingering", "_reader", "_reading_paused", "_serving", "_stall_at", "_stall_size",
        "_writer", "deadline", "exchange", "stalled", "transport",
    )  # fmt: skip

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = RequestReader(core.limits, core.heads, core.receiving)
        self.transport: asyncio.Transport | None = None
        self._writer: DirectWriter | None = None
        self.exchange: Exchange | None = None
        self.deadline = inf
        self._stall_at = self._stall_size = 0.0
        self.stalled = self._closing = self._lingering = self._serving = self._reading_paused = False

    # ---- asyncio.Protocol ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        core = self._core
        self.transport = transport
        self._writer = DirectWriter(transport)
        if not core.opened(self):
            self._closing = True
            transport.abort()
            return
        high = core.limits.buffer_high_bytes
        transport.set_write_buffer_limits(high, high // 4)
        self.deadline = core.clock() + core.timeouts.client_header_s

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        reader = self._reader
        before = reader.phase
        reader.feed(data)
        if reader.ready:
            if self.exchange is None:
                self._serve()
            elif len(reader.ready) >= self._core.limits.pipeline_max and not self._reading_paused:
                self._reading_paused = True
                assert self.transport is not None
                self.transport.pause_reading()
        if reader.phase != IDLE:
            self._partial(before)

    def eof_received(self) -> bool:
        # A client that has stopped sending is taken to have left: whoever waits for an answer keeps its side open.
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended makes no difference
        self._closing = True
        self._reader.close()
        self._reader.ready.clear()
        self._core.closed(self)
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone()
        self.transport = self._writer = None

    def pause_writing(self) -> None:
        self.stalled = True
        self._stall_at = self._core.clock()
        self._stall_size = inf
        upstream = self.exchange.upstream if self.exchange is not None else None
        if upstream is not None:
            upstream.pause()

    def resume_writing(self) -> None:
        self.stalled = False
        upstream = self.exchange.upstream if self.exchange is not None else None
        if upstream is not None:
            upstream.resume()
        elif self.exchange is None and not self._closing:
            self._serve()

    # ---- serving ------------------------------------------------------------------------------------------------
    def _partial(self, before: int) -> None:
        """A request has come in part: its sender is on the clock, and may be waiting to be told to go on."""
        core = self._core
        reader = self._reader
        if self.exchange is not None:
            return
        if reader.phase == HEAD:
            if before != HEAD or self.deadline == inf:
                self.deadline = core.clock() + core.timeouts.client_header_s
            return
        self.deadline = core.clock() + core.timeouts.client_body_s
        if reader.waits_continue:
            reader.continued()
            self.write(CONTINUE)

    def _serve(self) -> None:
        """Answers what is ready, one after the other, until a replica or the client has to be waited for."""
        if self._serving:
            return
        self._serving = True
        ready = self._reader.ready
        while ready and self.exchange is None and not self._closing and not self.stalled:
            self._answer(ready.popleft())
        self._serving = False
        if self.exchange is None and not self._closing:
            if self._reading_paused:
                self._reading_paused = False
                assert self.transport is not None
                self.transport.resume_reading()
            if not ready and self._reader.phase != IDLE:
                self._partial(IDLE)

    def _answer(self, request: Request) -> None:
        core = self._core
        dialect = Dialect.OPENAI
        try:
            if request.error is not None:
                self._refuse(request, request.error, dialect)
                return
            route = resolve(request.method, request.target)
            dialect = route.dialect
            facts = inspect(request, route, core.scheduler) if route.kind is Kind.JSON else core.facts(request, route)
        except ClientError as error:
            self._refuse(request, error, dialect)
            return
        if facts is None:
            self._finish(request, core.answer(request, route))
            return
        if core.stopping:
            request.keep_alive = False
        self.deadline = inf
        exchange = self.exchange = Exchange(core, self, request, route, facts)
        exchange.start(core.clock())

    def _refuse(self, request: Request, error: ExaServeError, dialect: Dialect) -> None:
        core = self._core
        if isinstance(error, ClientError):
            core.metrics.client_error(error.code)
        else:
            core.metrics.refused(error.code)
        if error.closes:
            request.keep_alive = False
            self._lingering = True
        keep_alive = request.keep_alive and not core.stopping
        extra = core.id_line(request)
        self._finish(request, error_answer(request, error, dialect, keep_alive=keep_alive, cors=core.cors, extra=extra))

    def _finish(self, request: Request, data: bytes) -> None:
        """Sends an answer of the gateway's own."""
        self.write(data)
        core = self._core
        if not request.keep_alive or core.stopping:
            self._close()
        else:
            self.deadline = core.clock() + core.timeouts.client_keepalive_s

    # ---- for the exchange and the core --------------------------------------------------------------------------
    def write(self, data: bytes) -> None:
        writer = self._writer
        if writer is not None:
            writer.write(data)

    def exchange_done(self, now: float) -> None:
        """The exchange has answered; the next request may be."""
        exchange = self.exchange
        if exchange is None:
            return
        self.exchange = None
        if not exchange.request.keep_alive or self._core.stopping:
            self._close()
            return
        self.deadline = now + self._core.timeouts.client_keepalive_s
        reader = self._reader
        if not self._serving and (reader.ready or reader.phase != IDLE or self._reading_paused):
            self._serve()

    def cut(self) -> None:
        """Ends the connection in the middle of an answer, so that the client sees that the answer is not whole."""
        exchange = self.exchange
        if exchange is not None:
            exchange.request.keep_alive = False
            if not exchange.request.http11:
                self.abort()  # without framing only a reset differs from the end

    def expired(self) -> None:
        """The deadline has passed: an idle connection is closed, a slow sender told so, a lingering one cut off."""
        if self._closing or self.transport is None:
            self.abort()
        elif self._reader.phase == IDLE and not self._reader.ready:
            self._close()
        else:
            phase = "headers" if self._reader.phase == HEAD else "body"
            self._reader.fail(SlowClient(f"The request's {phase} did not arrive in time."))
            self._serve()

    def check_stall(self, now: float) -> None:
        """Called each tick while ``stalled``: a client that takes no byte for ``client_write_s`` is gone."""
        if self.transport is None:
            return
        size = self.transport.get_write_buffer_size()
        if size < self._stall_size:
            self._stall_size = float(size)
            self._stall_at = now
        elif now - self._stall_at > self._core.timeouts.client_write_s:
            self.abort()

    @property
    def idle(self) -> bool:
        """Between requests: can be closed without harm."""
        return self.exchange is None and self._reader.phase == IDLE and not self._reader.ready

    def shut(self) -> None:
        """Closes after what has been written is sent."""
        self._close()

    def abort(self) -> None:
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    def _close(self) -> None:
        transport = self.transport
        if self._closing or transport is None:
            return
        self._closing = True
        self._reader.close()
        now = self._core.clock()
        if self._lingering and transport.can_write_eof():
            transport.write_eof()
            self.deadline = now + _LINGER_S
        else:
            transport.close()
            self.deadline = now + self._core.timeouts.client_write_s
