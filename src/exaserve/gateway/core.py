# compiled
"""The data plane's centre: what client connections share, the coarse clock behind every deadline, the end.

One tick each quarter of a second looks at every connection and request instead of a timer for each: at 5,000 streams
that is a few thousandths of a core; arming and cancelling a timer per event would cost more than relaying it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import secrets
import time
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import unquote

from httptools import HttpRequestParser

from exaserve.config.settings import GatewaySettings
from exaserve.domain.errors import ModelNotFound
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.gateway.http.client import ClientConnection
from exaserve.gateway.http.exchange import Exchange
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.local_answers import Cors, answer, error_answer, json_answer, models_body, preflight
from exaserve.gateway.http.message_head import Heads
from exaserve.gateway.http.parse import Receiving, Request
from exaserve.gateway.http.pool import UpstreamPool
from exaserve.gateway.http.routes import Kind, Route
from exaserve.gateway.retry import RetryBudget
from exaserve.health import FailureKind
from exaserve.scheduling import Admission, Scheduler

__all__ = ["TICK_S", "Core", "Health", "Metrics", "tune_gc"]

TICK_S = 0.25
"""How coarse deadlines are, seconds."""
_MODELS_SHOWN_MAX = 20


class Health(Protocol):
    """What the request path tells of replicas (:class:`exaserve.health.HealthBook`)."""

    def succeeded(self, replica: ReplicaId, now: float) -> None: ...

    def progressed(self, replica: ReplicaId, now: float) -> None: ...

    def failed(self, replica: ReplicaId, kind: FailureKind, now: float) -> None: ...


class Metrics(Protocol):
    """What the request path counts (:class:`exaserve.observe.metrics.GatewayMetrics`)."""

    def started(self) -> None: ...

    def finished(
        self,
        model: str,
        replica: str,
        status: int,
        stream: bool,
        outcome: Outcome,
        ttft_s: float | None,
        duration_s: float,
        usage: Usage | None,
    ) -> None: ...

    def retried(self, replica: str, why: str) -> None: ...

    def refused(self, why: str) -> None: ...

    def queued(self, depth: int) -> None: ...

    def queue_wait(self, s: float) -> None: ...

    def client_error(self, code: str) -> None: ...

    def streams(self, delta: int) -> None: ...

    def render(self) -> bytes: ...


class Core:
    """What all client connections of one gateway process share. No I/O before the first connection.

    Attributes:
        stopping: set for a graceful stop: not ready any more, answers close their connections, nothing new is queued.
        exchanges: proxied requests under way.
        pool: connections to replicas.
        ticks: whether a timer calls :meth:`tick`; without it the owner does.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        scheduler: Scheduler,
        admission: Admission,
        health: Health,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = settings.limits
        self.timeouts = settings.timeouts
        self.first_byte_s = settings.timeouts.first_byte_s
        self.total_s = settings.timeouts.total_s
        self.retry = settings.retry
        self.scheduler = scheduler
        self.admission = admission
        self.health = health
        self.metrics = metrics
        self.clock = clock
        self.cors = Cors(settings.cors_origins)
        self.budget = RetryBudget(settings.retry)
        self.pool = UpstreamPool(settings.timeouts, clock)
        self.heads: Heads[Request] = Heads(HttpRequestParser)
        self.receiving = Receiving(settings.limits.receiving_bytes_max)
        self.marked_streams: set[tuple[str, str]] = set()
        """Model and path of which streams are known to end with a mark, so that one without it was cut."""
        self.stopping = False
        self.ticks = True
        self.exchanges: set[Exchange] = set()
        self._clients: set[ClientConnection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._waking = False
        self._ids = itertools.count()
        self._id_prefix = secrets.token_hex(6).encode()
        self.waiting: Callable[[], int] = admission.__len__

    # ---- for the app --------------------------------------------------------------------------------------------
    def client_protocol(self) -> Any:
        """Factory for ``loop.create_server``: has the methods of ``asyncio.Protocol``, but not that base.

        A class with a base from elsewhere could not be compiled (docs/decisions/0006).
        """
        return ClientConnection(self)

    def inflight(self) -> int:
        """Proxied requests under way, queued ones included."""
        return len(self.exchanges)

    def clients(self) -> int:
        """Open client connections."""
        return len(self._clients)

    def wake(self) -> None:
        """Sends on what the admission queue may now place: after a release, a report, change of health or members."""
        if self._waking or not self.waiting():
            return
        self._waking = True
        now = self.clock()
        scheduler = self.scheduler
        placed = self.admission.dispatch(lambda facts: scheduler.place(facts, now))
        self.metrics.queued(len(self.admission))
        self._waking = False
        for ticket, placement in placed:
            exchange = ticket.waiter
            assert isinstance(exchange, Exchange)
            exchange.dispatched(placement, now)

    def evacuate(self, replica: ReplicaId) -> int:
        """Moves requests that wait for their first byte off a replica that health has just taken out of service.

        Bounded by the retry budget and each request's attempts; returns how many moved.
        """
        now = self.clock()
        return sum(exchange.evacuate(replica, now) for exchange in list(self.exchanges))

    async def drain(self, timeout_s: float) -> None:
        """Waits until nothing is under way, at most ``timeout_s``; idle client connections are closed meanwhile."""
        self.stopping = True
        end = self.clock() + timeout_s
        while self.clock() < end:
            self._close_idle()
            if not self.exchanges and not self._clients:
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Ends everything that is left, at once. Every placement is released."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for client in list(self._clients):
            client.abort()
        for exchange in list(self.exchanges):
            exchange.client_gone()
        await self.pool.close()
        await asyncio.sleep(0)  # lets transports deliver connection_lost

    # ---- for client connections ---------------------------------------------------------------------------------
    def opened(self, client: ClientConnection) -> bool:
        """Takes a new connection; False above the limit."""
        if self._closed or len(self._clients) >= self.limits.connections_max:
            return False
        self._clients.add(client)
        if self._timer is None and self.ticks:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return True

    def closed(self, client: ClientConnection) -> None:
        self._clients.discard(client)

    def new_request_id(self) -> bytes:
        return b"%b-%x" % (self._id_prefix, next(self._ids))

    def id_line(self, request: Request) -> bytes:
        """The header line with the request's id, its own or a new one, for answers that no replica gives."""
        return b"x-request-id: %b\r\n" % (request.request_id or self.new_request_id())

    def facts(self, request: Request, route: Route) -> RequestFacts | None:
        """Facts of a request for something that a replica keeps, None of one that the gateway answers itself."""
        if route.kind is not Kind.RESOURCE:
            return None
        facts = inspect(request, route, self.scheduler)
        if not facts.model:
            # What the path names is kept by some replica; with one model there is no doubt which pool.
            names = self.scheduler.ready_models() or self.scheduler.models()
            facts.model = names[0] if names else ""
        return facts

    def answer(self, request: Request, route: Route) -> bytes:
        """The gateway's own pages."""
        keep_alive = request.keep_alive and not self.stopping
        kind = route.kind
        if kind is Kind.OPTIONS:
            return preflight(request, self.cors, keep_alive=keep_alive)
        if kind is Kind.METRICS:
            return answer(
                request,
                200,
                self.metrics.render(),
                content_type=b"text/plain; version=0.0.4; charset=utf-8",
                keep_alive=keep_alive,
            )
        status = 200
        value: object = {"status": "ok"}
        if kind is Kind.READY:
            ready = () if self.stopping else self.scheduler.ready_models()
            status = 200 if ready else 503
            value = {"ready": bool(ready), "stopping": self.stopping, "models": list(ready)}
        elif kind is Kind.MODELS:
            models = self.scheduler.models()
            value = models_body(models)
            if route.resource:
                name = unquote(route.resource)
                if name not in models:
                    error = self.model_unknown(name)
                    self.metrics.client_error(error.code)
                    extra = self.id_line(request)
                    return error_answer(
                        request, error, route.dialect, keep_alive=keep_alive, cors=self.cors, extra=extra
                    )
                value = models_body((name,))["data"][0]
        return json_answer(request, status, value, keep_alive=keep_alive, cors=self.cors)

    def model_unknown(self, model: str) -> ModelNotFound:
        served = self.scheduler.models()
        names = ", ".join(served[:_MODELS_SHOWN_MAX]) or "none"
        more = f" and {len(served) - _MODELS_SHOWN_MAX} more" if len(served) > _MODELS_SHOWN_MAX else ""
        return ModelNotFound(
            f"The model {model[:200]!r} is not served here. Served models: {names}{more}.", param="model"
        )

    # ---- the tick -----------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.tick(self.clock())

    def tick(self, now: float) -> None:
        """Acts on every deadline that has passed."""
        between_s = self.timeouts.between_bytes_s
        progressed = set()
        for exchange in list(self.exchanges):
            upstream = exchange.upstream
            if upstream is not None and (upstream.active or exchange.client.stalled) and now < exchange.total_at:
                if upstream.active:
                    progressed.add(upstream.endpoint.replica)
                upstream.active = False
                if exchange.sent:
                    exchange.deadline = min(now + between_s, exchange.total_at)
            elif exchange.deadline <= now:
                exchange.expired(now)
        for replica in progressed:
            self.health.progressed(ReplicaId(replica), now)
        for client in list(self._clients):
            if client.deadline <= now:
                client.expired()
            elif client.stalled:
                client.check_stall(now)
        if self.waiting():
            for ticket in self.admission.expired(now):
                waiter = ticket.waiter
                assert isinstance(waiter, Exchange)
                waiter.queue_expired()
            self.metrics.queued(len(self.admission))
            self.wake()
        self.pool.tick(now)
        self.budget.count(now)
        if self.stopping:
            self._close_idle()

    def _close_idle(self) -> None:
        for client in list(self._clients):
            if client.idle:
                client.shut()

    def validate(self) -> None:
        """Asserts that what is under way and what is held agree."""
        self.budget.validate()
        self.pool.validate()
        self.admission.validate()
        self.scheduler.validate()
        assert all(not exchange.done for exchange in self.exchanges)
        assert self.receiving.held_bytes >= 0
        assert self._clients or not self.receiving.held_bytes


def tune_gc() -> None:
    """For the process that serves: what exists now is for ever, and collections come every 50,000 net allocations.

    The request path makes few cycles (a connection and its parser), so frequent collections only cost latency.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
