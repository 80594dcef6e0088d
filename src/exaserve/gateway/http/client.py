# compiled
"""A client's connection: requests in, answers out, in order, with every wait bounded."""

from __future__ import annotations

import asyncio
from math import inf
from typing import cast

from exaserve.control.limits import Reservation
from exaserve.domain.errors import ClientError, ExaServeError, SlowClient
from exaserve.domain.request import RequestFacts
from exaserve.gateway.core import Core
from exaserve.gateway.http.client_writer import ClientWriter
from exaserve.gateway.http.exchange import Exchange
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.local_answers import CONTINUE, error_answer
from exaserve.gateway.http.parse import BODY, HEAD, IDLE, Request, RequestReader
from exaserve.gateway.http.routes import Dialect, Kind, dialect_of, is_guarded, resolve

__all__ = ["ClientConnection", "Clients"]

_LINGER_S = 2.0
"""After an error that closes, unread bytes are taken and dropped this long, so that the client can read the answer:
closing with unread bytes would reset the connection and destroy it."""


_BODY_BYTES_PER_S_MIN = 1024
"""A body that comes more slowly than this, after the first ``client_body_s``, is given up: a byte now and then would
hold a connection for ever. Slower than any line that carries a prompt."""


class ClientConnection(ClientWriter):
    """One client.

    Attributes:
        exchange: the proxied request being answered, if one is.
        deadline: when :meth:`expired` is to be called, seconds, monotonic; infinite while a replica is at work.
    """

    __slots__ = (
        "_body_at", "_clients", "_core", "_lingering", "_reader", "_reading_paused", "_serving", "deadline", "exchange",
    )  # fmt: skip

    def __init__(self, core: Core, clients: Clients) -> None:
        super().__init__()
        self._core = core
        self._clients = clients
        self._reader = RequestReader(core.limits, core.heads, core.receiving)
        self.exchange: Exchange | None = None
        self.deadline = inf
        self._body_at = 0.0
        self._lingering = self._serving = self._reading_paused = False

    # ---- asyncio.Protocol ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        core = self._core
        self.opened(transport)
        if not self._clients.add(self):
            self.abort()
            return
        high = core.limits.buffer_high_bytes
        transport.set_write_buffer_limits(high, high // 4)
        self.deadline = core.clock() + core.timeouts.client_header_s

    def data_received(self, data: bytes) -> None:
        if self.closing:
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
        self.closing = True
        self._reader.close()
        self._reader.ready.clear()
        self._clients.discard(self)
        exchange = self.exchange
        self.exchange = None
        if exchange is not None:
            exchange.client_gone()
        self.lost()

    def pause_writing(self) -> None:
        self.stall(self._core.clock())
        upstream = self.exchange.upstream if self.exchange is not None else None
        if upstream is not None:
            upstream.pause()

    def resume_writing(self) -> None:
        self.stalled = False
        upstream = self.exchange.upstream if self.exchange is not None else None
        if upstream is not None:
            upstream.resume()
        elif self.exchange is None and not self.closing:
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
        now = core.clock()
        if before != BODY:
            self._body_at = now
        whole_s = core.timeouts.client_body_s + reader.received / _BODY_BYTES_PER_S_MIN
        self.deadline = min(now + core.timeouts.client_body_s, self._body_at + whole_s)
        if reader.waits_continue:
            reader.continued()
            self.write(CONTINUE)

    def _serve(self) -> None:
        """Answers what is ready, one after the other, until a replica or the client has to be waited for."""
        if self._serving:
            return
        self._serving = True
        ready = self._reader.ready
        while ready and self.exchange is None and not self.closing and not self.stalled:
            self._answer(ready.popleft())
        self._serving = False
        if self.exchange is None and not self.closing:
            if self._reading_paused:
                self._reading_paused = False
                assert self.transport is not None
                self.transport.resume_reading()
            if not ready and self._reader.phase != IDLE:
                self._partial(IDLE)

    def _answer(self, request: Request) -> None:
        core = self._core
        dialect = Dialect.OPENAI
        charge: Reservation | None = None
        try:
            if request.error is not None:
                self._refuse(request, request.error, dialect)
                return
            guard = core.guard if is_guarded(request.method, request.target) else None
            grant = None if guard is None else guard.grant(request)
            route = resolve(request.method, request.target)
            dialect = route.dialect
            if grant is not None:
                grant.require_route(route)
            json = route.kind is Kind.JSON
            facts: RequestFacts | None
            if json:
                facts = inspect(request, route, core.scheduler, core.kept, grant)
            else:
                facts = core.facts(request, route, grant)
            if grant is not None and facts is not None:
                grant.require_model(facts.model)
                facts.tenant = grant.tenant
                if facts.session is not None:
                    facts.session = grant.mark + facts.session
                if not request.priority or "priority" not in grant.may_say:
                    facts.priority = grant.priority
                assert guard is not None
                charge = guard.charge(grant, facts)
        except ClientError as error:
            if error.status == 401:
                dialect = dialect_of(request.target)
            self._refuse(request, error, dialect)
            return
        if facts is None:
            self._finish(request, core.answer(request, route, grant))
            return
        if core.stopping:
            request.keep_alive = False
        self.deadline = inf
        exchange = self.exchange = Exchange(core, self, request, route, facts, grant, charge)
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

    # ---- for the owner of all connections -----------------------------------------------------------------------
    def expired(self) -> None:
        """The deadline has passed: an idle connection is closed, a slow sender told so, a lingering one cut off."""
        if self.closing or self.transport is None:
            self.abort()
        elif self._reader.phase == IDLE and not self._reader.ready:
            self._close()
        else:
            phase = "headers" if self._reader.phase == HEAD else "body"
            self._reader.fail(SlowClient(f"The request's {phase} did not arrive in time."))
            self._serve()

    @property
    def idle(self) -> bool:
        """Between requests: can be closed without harm."""
        return self.exchange is None and self._reader.phase == IDLE and not self._reader.ready

    def shut(self) -> None:
        """Closes after what has been written is sent."""
        self._close()

    def _close(self) -> None:
        transport = self.transport
        if self.closing or transport is None:
            return
        self.closing = True
        self._reader.close()
        now = self._core.clock()
        if self._lingering and transport.can_write_eof():
            transport.write_eof()
            self.deadline = now + _LINGER_S
        else:
            transport.close()
            self.deadline = now + self._core.timeouts.client_write_s


class Clients:
    """The open client connections of one gateway process.

    Attributes:
        closed: no new ones are taken.
    """

    def __init__(self, connections_max: int) -> None:
        self._max = connections_max
        self._open: set[ClientConnection] = set()
        self.closed = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, client: ClientConnection) -> bool:
        """Takes a new connection; False above the limit."""
        if self.closed or len(self._open) >= self._max:
            return False
        self._open.add(client)
        return True

    def discard(self, client: ClientConnection) -> None:
        self._open.discard(client)

    def tick(self, now: float, write_s: float) -> None:
        """Acts on deadlines that have passed; a client that takes no byte for ``write_s`` is gone."""
        for client in list(self._open):
            if client.deadline <= now:
                client.expired()
            elif client.stalled:
                client.check_stall(now, write_s)

    def close_idle(self) -> None:
        """Closes those that are between two requests."""
        for client in list(self._open):
            if client.idle:
                client.shut()

    def abort(self) -> None:
        for client in list(self._open):
            client.abort()
