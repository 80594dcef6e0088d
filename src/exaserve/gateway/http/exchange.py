# compiled
"""One proxied request on its sockets: carries out what its :class:`~exaserve.serving.journey.Journey` decides.

Here are bytes and connections; whether and where a request goes, and what becomes of it, is decided in ``serving/``.
"""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from math import inf

from exaserve.control.limits import Reservation
from exaserve.domain.errors import ConnectFailed, ModelNotFound, ReplicaError
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, RequestFacts
from exaserve.gateway.core import Core
from exaserve.gateway.guard.grants import Grant
from exaserve.gateway.guard.rates import rate_lines
from exaserve.gateway.http.client_writer import ClientWriter
from exaserve.gateway.http.event_stream import DONE_MARK
from exaserve.gateway.http.local_answers import chunk, error_answer, error_event
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import Route
from exaserve.gateway.http.upstream import Endpoint, UpstreamConnection
from exaserve.gateway.http.usage import find_usage
from exaserve.serving.journey import Journey
from exaserve.serving.transitions import ANSWER, BREAK, NOTHING, PARK, PASS_ON, RECONNECT, RELAYING, SEND

__all__ = ["Exchange"]

_JOIN_BYTES_MAX = 131_072
"""Bodies up to this size are joined with their head into one write; larger ones are not copied."""
_BODYLESS = frozenset({204, 304})
_KEEPING = "/v1/responses"
_ERROR_MARK = re.compile(rb'"error"(?!\s*:\s*null)')
"""An error event is an end as well."""
_MARKED_MAX = 4096


class Exchange(Journey):
    """See the module's text."""

    upstream: UpstreamConnection | None = None
    _connecting: Endpoint | None = None
    _stream_open = False
    _kept = False

    def __init__(
        self,
        core: Core,
        client: ClientWriter,
        request: Request,
        route: Route,
        facts: RequestFacts,
        grant: Grant | None = None,
        charge: Reservation | None = None,
    ) -> None:
        Journey.__init__(self, core.dispatcher, facts, len(request.body))
        self._core = core
        self.client = client
        self.request = request
        self.route = route
        self.grant = grant
        self._charge = charge
        self.request_id = request.request_id or core.new_request_id()

    # ---- what the journey asks for ------------------------------------------------------------------------------
    def start(self, now: float) -> None:
        self._core.metrics.started()
        deadline = self.request.deadline
        self.perform(self.begin(now, _deadline_s(deadline) if deadline else inf), now)

    def perform(self, effect: int, now: float) -> None:
        if effect == SEND:
            self._drop_upstream()
            self._go(now)
        elif effect == PARK:
            self._drop_upstream()
        elif effect == RECONNECT:
            upstream = self.upstream
            assert upstream is not None
            self.upstream = None
            self._connect(upstream.endpoint)
        elif effect == ANSWER:
            self._answer_error()
            self._over(now)
        elif effect == BREAK:
            self._break_off()
            self._over(now)
        elif effect != NOTHING:
            self._over(now)

    def tenant(self) -> str:
        key = self.request.credential if self.grant is None else b""
        # Fairness needs to tell tenants apart, not to know their keys.
        return blake2b(key, digest_size=8).hexdigest() if key else self.facts.tenant

    def sees(self, model: str) -> bool:
        return self.grant is None or self.grant.allows(model)

    def retried(self, replica: ReplicaId, why: str) -> None:
        self._core.metrics.retried(replica, why)

    def waited(self, wait_s: float) -> None:
        self._core.metrics.queue_wait(wait_s)

    def activity(self) -> int:
        upstream = self.upstream
        if upstream is None:
            return 0
        if upstream.active:
            upstream.active = False
            return 2
        return 1 if self.client.stalled else 0

    # ---- connecting and sending ---------------------------------------------------------------------------------
    def _go(self, now: float) -> None:
        """Sends the request where it was placed."""
        placement = self.placement
        assert placement is not None
        try:
            endpoint = self._core.pool.endpoint(placement.replica_id, placement.url)
        except ConnectFailed as error:
            self.perform(self.failed(error, now), now)
            return
        idle = endpoint.idle
        if idle:
            self._send(idle.pop(), now)
        else:
            self._connect(endpoint)

    def _connect(self, endpoint: Endpoint) -> None:
        self._connecting = endpoint
        self._core.pool.connect(endpoint, self)

    def connected(self, upstream: UpstreamConnection) -> None:
        if self._connecting is not upstream.endpoint:
            return  # the request has gone elsewhere, or is over: the pool keeps the connection
        self._connecting = None
        self._send(upstream, self._core.clock())

    def connect_failed(self, endpoint: Endpoint, error: ConnectFailed) -> None:
        if self._connecting is endpoint:
            self._connecting = None
            now = self._core.clock()
            self.perform(self.failed(error, now), now)

    def _send(self, upstream: UpstreamConnection, now: float) -> None:
        request = self.request
        body = request.body
        head = request.head
        if self.route.passed != request.target:
            head = b"%b %b HTTP/1.1%b" % (request.method, self.route.passed, head[head.find(b"HTTP/1.1") + 8 :])
        endpoint = upstream.endpoint
        core = self._core
        grant = self.grant
        length, end = len(body), b""
        if grant is None:  # a client's key for the gateway is not the engines' business
            head += request.withheld if core.guard is None else core.engine_line
        else:
            head += core.engine_line
            if grant.may_say and request.withheld:
                head += grant.said(request.withheld)
            if grant.salt and core.salted(ReplicaId(endpoint.replica), self.route.name):
                length, end = grant.salting(body)
        if body or request.method == b"POST":
            head = b"%b%bContent-Length: %d\r\nx-request-id: %b\r\n\r\n" % (
                head,
                endpoint.host_line,
                length + len(end),
                self.request_id,
            )
        else:
            head = b"%b%bx-request-id: %b\r\n\r\n" % (head, endpoint.host_line, self.request_id)
        self.upstream = upstream
        self.sent(now)
        if length > _JOIN_BYTES_MAX:
            upstream.send(self, head, memoryview(body)[:length] if end else body, now, end)
        elif end:
            upstream.send(self, b"%b%b%b" % (head, body[:length], end), b"", now)
        else:
            upstream.send(self, head + body, b"", now)

    # ---- the answer (Relay) -------------------------------------------------------------------------------------
    def answered(self, upstream: UpstreamConnection, rest: bytes) -> None:
        core = self._core
        status = upstream.status
        now = core.clock()
        effect = self.head(status, now)
        if effect != PASS_ON:
            self.perform(effect, now)
            return
        request = self.request
        keep_alive = request.keep_alive and not core.stopping
        bodyless = request.method == b"HEAD" or status in _BODYLESS
        if upstream.length >= 0 and not upstream.chunked:
            framing = b"\r\nContent-Length: %d\r\n" % upstream.length
        elif bodyless:
            framing = b"\r\n"
        elif request.http11:
            framing = b"\r\nTransfer-Encoding: chunked\r\n"
        else:
            framing = b"\r\n"
            keep_alive = False
        if not keep_alive:
            request.keep_alive = False
            framing += b"Connection: close\r\n"
        if request.origin:
            framing += core.cors.lines(request.origin)
        charge = self._charge
        if charge is not None and core.guard is not None:
            framing += rate_lines(charge, core.guard.second())
        head = b"%b%b%b%b\r\n" % (upstream.head, upstream.endpoint.replica_line, self.request_id, framing)
        write = self._write_and_keep if self.route.name == _KEEPING and status < 300 else self.client.write
        if upstream.complete and upstream.length == len(rest) and not bodyless:
            write(head + rest)  # the usual plain answer: all of it has come
            self.ended_whole(rest, now)
            return
        upstream.pass_on(head, rest, write, http11=request.http11, bodyless=bodyless)

    def _write_and_keep(self, data: bytes) -> None:
        """To the client, noting which stored response this is the beginning of: what goes on with it must go here."""
        placement = self.placement
        if not self._kept and placement is not None:
            tenant = "" if self.grant is None else self.grant.tenant
            self._kept = self._core.kept.learn(data, placement.replica_id, self.facts.model, tenant)
        self.client.write(data)

    def first_byte_sent(self) -> None:
        upstream = self.upstream
        if upstream is None:
            return
        core = self._core
        if self.client.stalled:
            upstream.pause()
        self.first_byte(core.clock(), upstream.event_stream)
        if upstream.event_stream:
            self._stream_open = True
            core.metrics.streams(1)

    def whole(self, last: bytes) -> bool:
        """Whether a stream that ends with ``last`` is complete, as far as one can tell.

        Engines end generated streams with a mark. Where the model's streams have had it before, one without it was cut.
        """
        route = self.route
        if not route.generates or not self.facts.stream:
            return True
        marked = self._core.marked_streams
        key = (self.facts.model, route.name)
        if DONE_MARK.search(last) is None:
            return key not in marked or _ERROR_MARK.search(last) is not None
        if key not in marked and len(marked) < _MARKED_MAX:
            marked.add(key)
        return True

    def passed_on(self, _upstream: UpstreamConnection, tail: bytes) -> None:
        self.ended_whole(tail, self._core.clock())

    def ended_whole(self, tail: bytes, now: float) -> None:
        usage = find_usage(tail) if tail and self.status < 400 else None
        self.perform(self.ended(usage, now), now)

    def lost(self, upstream: UpstreamConnection, error: ReplicaError) -> None:
        now = self._core.clock()
        stale = upstream.reused and upstream.silent and now - upstream.sent_at < self._core.dispatcher.retry.stale_s
        self.perform(self.failed(error, now, stale), now)

    # ---- the end ------------------------------------------------------------------------------------------------
    def client_gone(self) -> None:
        now = self._core.clock()
        upstream = self.upstream
        if (
            self.state == RELAYING
            and upstream is not None
            and upstream.event_stream
            and DONE_MARK.search(upstream.last_events)
        ):
            # It has all of the answer and closed without waiting for the framing's end, as official clients do.
            usage = find_usage(upstream.last_events)
            self.perform(self.ended(usage, now), now)
        else:
            self.perform(self.left(now), now)

    def _break_off(self) -> None:
        """The answer will not be finished: says so if the client is at an event's end, or cuts it."""
        upstream = self.upstream
        error = self.error
        assert error is not None
        if upstream is not None and upstream.clean:
            self.client.write(chunk(error_event(error, self.route.dialect)) + b"0\r\n\r\n")
        else:
            # The connection ends in the middle of the answer, so that the client sees that it is not whole.
            self.request.keep_alive = False
            if not self.request.http11:
                self.client.abort()  # without framing only a reset differs from the end

    def _answer_error(self) -> None:
        """The client has not been sent anything yet."""
        core = self._core
        request = self.request
        error = self.error
        assert error is not None
        request.keep_alive = request.keep_alive and not core.stopping
        if isinstance(error, ModelNotFound):
            core.metrics.client_error(error.code)
        elif error.fault != "replica":
            core.metrics.refused(error.code)
        extra = b"x-request-id: " + self.request_id + b"\r\n"
        self.client.write(
            error_answer(request, error, self.route.dialect, keep_alive=request.keep_alive, cors=core.cors, extra=extra)
        )

    def _drop_upstream(self) -> None:
        self._connecting = None
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            upstream.abort()

    def _over(self, now: float) -> None:
        """Tells everyone, once."""
        core = self._core
        outcome = self.outcome
        assert outcome is not None
        upstream = self.upstream
        self._connecting = None
        if upstream is not None:
            self.upstream = None
            if outcome is Outcome.CLIENT_GONE or outcome is Outcome.REPLICA_FAILED:
                upstream.abort()
            else:
                core.pool.give_back(upstream, now)
        if self._stream_open:
            core.metrics.streams(-1)
        if self._charge is not None:
            self._settle(self._charge, outcome)
        # A name that nobody serves is no label.
        model = "unknown" if self.status == 404 and not self.replica else self.facts.model
        took_s = now - self.started_at
        route = self.route.name
        core.metrics.finished(
            model, self.replica, self.status, self.facts.stream, outcome, self.ttft_s, took_s, self.usage, route
        )
        if core.access is not None:
            core.access(self._record(outcome, took_s))
        if core.dispatcher.waiting():
            core.dispatcher.wake(now)
        self.client.exchange_done(now)

    def _settle(self, charge: Reservation, outcome: Outcome) -> None:
        """What it used in the end: as the engine counted, else as it was estimated; what failed is given back."""
        self._charge = None
        usage = self.usage
        if usage is not None:
            charge.limits.settle(charge, usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, counts=True)
        elif outcome is Outcome.COMPLETED or (outcome is Outcome.CLIENT_GONE and self.ttft_s is not None):
            charge.limits.settle(charge, charge.input_tokens, charge.output_tokens, 0, counts=True)
        elif outcome is Outcome.CLIENT_GONE and self.attempts:
            charge.limits.settle(charge, charge.input_tokens, 0, 0, counts=True)
        else:
            counts = bool(self.replica) and 400 <= self.status < 500 and outcome is not Outcome.BUSY
            charge.limits.settle(charge, 0, 0, 0, counts=counts)

    def _record(self, outcome: Outcome, took_s: float) -> str:
        """The request in one line, to trace it by its id."""
        usage = self.usage
        record = {
            "event": "request",
            "request_id": self.request_id.decode("latin-1"),
            "route": self.route.name,
            "model": self.facts.model,
            "replica": self.replica,
            "status": self.status,
            "outcome": outcome.value,
            "stream": self.facts.stream,
            "attempts": self.attempts,
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
            "duration_s": round(took_s, 6),
            "prompt_tokens": None if usage is None else usage.prompt_tokens,
            "completion_tokens": None if usage is None else usage.completion_tokens,
        }
        return json.dumps(record, separators=(",", ":"))


def _deadline_s(value: bytes) -> float:
    """``x-exaserve-deadline-ms`` in seconds; infinite where it is no positive number."""
    try:
        return max(int(value), 1) / 1000
    except ValueError:
        return inf
