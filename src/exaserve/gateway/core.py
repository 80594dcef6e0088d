# compiled
"""What all client connections and requests of one gateway process share, and the gateway's own answers. No I/O."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from httptools import HttpRequestParser

from exaserve.config.settings import GatewaySettings
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import RequestFacts
from exaserve.engines import ENGINES
from exaserve.gateway.guard.grants import Grant
from exaserve.gateway.guard.guard import Guard
from exaserve.gateway.http.inspect import inspect
from exaserve.gateway.http.kept import KeptResponses
from exaserve.gateway.http.local_answers import Cors, answer, error_answer, json_answer, models_body, preflight
from exaserve.gateway.http.message_head import Heads
from exaserve.gateway.http.parse import Receiving, Request
from exaserve.gateway.http.pool import UpstreamPool
from exaserve.gateway.http.routes import Kind, Route
from exaserve.observe.metrics import GatewayMetrics
from exaserve.scheduling import Admission
from exaserve.serving.dispatcher import Dispatcher
from exaserve.serving.fleet import Fleet

__all__ = ["Core"]


_UNKNOWN = ENGINES["vllm"]


class Core:
    """See the module's text.

    Attributes:
        stopping: set for a graceful stop: not ready any more, answers close their connections, nothing new is queued.
        dispatcher: requests under way, and what decides about them.
        pool: connections to replicas.
        kept: where stored responses are.
        guard: asks each request for a key; None where nobody is asked.
        engine_line: the header line with the engines' own key, with its CRLF before it; b"" where they want none.
        engine_of: the engine of a replica whose engine was to be found out, "" where it is not known yet.
        access: takes a line for each request that has ended, where the operator wants that.
        marked_streams: model and path of which streams are known to end with a mark, so that one without it was cut.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        fleet: Fleet,
        admission: Admission,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = settings.limits
        self.timeouts = timeouts = settings.timeouts
        self.scheduler = fleet.scheduler
        self.fleet = fleet
        self.metrics = metrics
        self.clock = clock
        self.cors = Cors(settings.cors_origins)
        self.dispatcher = Dispatcher(
            fleet.scheduler,
            admission,
            fleet,
            settings.retry,
            first_byte_s=timeouts.first_byte_s,
            between_bytes_s=timeouts.between_bytes_s,
            total_s=timeouts.total_s,
        )
        self.dispatcher.on_queue = metrics.queued
        self.pool = UpstreamPool(timeouts, clock)
        self.heads: Heads[Request] = Heads(HttpRequestParser)
        self.receiving = Receiving(settings.limits.receiving_bytes_max)
        self.marked_streams: set[tuple[str, str]] = set()
        self.kept = KeptResponses()
        self.guard: Guard | None = None
        self.engine_line = b""
        self.engine_of: Callable[[ReplicaId], str] | None = None
        self.access: Callable[[str], None] | None = None
        self.stopping = False
        self._ids = itertools.count()
        self._id_prefix = secrets.token_hex(6).encode()

    def stop(self) -> None:
        """Nothing new is queued from now on."""
        self.stopping = self.dispatcher.stopping = True

    def new_request_id(self) -> bytes:
        return b"%b-%x" % (self._id_prefix, next(self._ids))

    def id_line(self, request: Request) -> bytes:
        """The header line with the request's id, its own or a new one, for answers that no replica gives."""
        return b"x-request-id: %b\r\n" % (request.request_id or self.new_request_id())

    def salted(self, replica: ReplicaId, route: str) -> bool:
        """Whether requests on ``route`` may be sent to it with a ``cache_salt``. An unknown engine ignores it."""
        member = self.fleet.member(replica)
        name = "" if member is None else member.given.engine
        if name == "auto" and self.engine_of is not None:
            name = self.engine_of(replica)
        return route in ENGINES.get(name, _UNKNOWN).salted

    def facts(self, request: Request, route: Route, grant: Grant | None = None) -> RequestFacts | None:
        """Facts of a request for something that a replica keeps, None of one that the gateway answers itself."""
        if route.kind is not Kind.RESOURCE:
            return None
        facts = inspect(request, route, self.scheduler, self.kept, grant)
        if not facts.model:
            # What the path names is kept by some replica; with one model there is no doubt which pool.
            names = self.scheduler.ready_models() or self.scheduler.models()
            facts.model = names[0] if names else ""
        return facts

    def answer(self, request: Request, route: Route, grant: Grant | None = None) -> bytes:
        """The gateway's own pages, as the bearer of ``grant`` may see them."""
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
        value: dict[str, Any] = {"status": "ok"}
        if kind is Kind.READY:
            ready = () if self.stopping else self.scheduler.ready_models()
            status = 200 if ready else 503
            value = {"ready": bool(ready), "stopping": self.stopping}
            if self.guard is None:  # where keys are asked for, strangers hear no names
                value["models"] = list(ready)
        elif kind is Kind.MODELS:
            models = tuple(name for name in self.scheduler.models() if grant is None or grant.allows(name))
            value = models_body(models, self.fleet.cards())
            if route.resource:
                name = unquote(route.resource)
                if name not in models:
                    error = self.dispatcher.model_unknown(name, models.__contains__)
                    self.metrics.client_error(error.code)
                    extra = self.id_line(request)
                    return error_answer(
                        request, error, route.dialect, keep_alive=keep_alive, cors=self.cors, extra=extra
                    )
                value = models_body((name,), self.fleet.cards())["data"][0]
        return json_answer(request, status, value, keep_alive=keep_alive, cors=self.cors)

    def validate(self) -> None:
        """Asserts that what is under way and what is held agree."""
        self.dispatcher.validate()
        self.pool.validate()
        assert self.receiving.held_bytes >= 0
