# compiled
"""One proxied request, from its placement to the release of what it held.

::

    placed ─→ connecting ─→ waiting for the answer ─→ relaying ─→ done
      ↑ ↓         │                 │                    │
    queued        └── failed ───────┘                    └─ broken: error event, or the connection closes
      ↑              │
      └── backing off (every replica tried) ── no attempt or budget left: error answer

Whatever happens, ``_settle`` runs once: it releases the ledger, counts, and tells the client's connection. A request is
tried again elsewhere only while its client has not been sent a byte; the head of an answer is held back until the first
body byte for that reason, since engines send heads of streams before they have begun to compute.

Retried elsewhere: connections refused or lost, time-outs, invalid answers, and the statuses 502, 503, 504 and 429 (one
replica's full queue is not the cluster's). Where nobody else can take it the replica's own answer is passed on. 500 is
tried elsewhere once: a failing engine says it of every request, and a request that fails everywhere fails again.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING

from exaserve.domain.errors import (
    ConnectFailed,
    ExaServeError,
    InvalidResponse,
    ModelNotFound,
    NoReplicaReady,
    QueueFull,
    QueueTimeout,
    ReplicaError,
    ReplicaTimeout,
    ShuttingDown,
)
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, RequestFacts
from exaserve.gateway.http.event_stream import DONE_MARK
from exaserve.gateway.http.local_answers import chunk, error_answer, error_event
from exaserve.gateway.http.message_head import header
from exaserve.gateway.http.parse import Request
from exaserve.gateway.http.routes import Route
from exaserve.gateway.http.upstream import Endpoint, UpstreamConnection
from exaserve.gateway.http.usage import find_usage
from exaserve.health import FailureKind
from exaserve.scheduling import Placement, Refusal, RefusalReason, Ticket

if TYPE_CHECKING:
    from exaserve.gateway.core import Core
    from exaserve.gateway.http.client import ClientConnection

__all__ = ["Exchange"]

_ELSEWHERE = frozenset({429, 502, 503, 504})
_STALE_S = 1.0
"""A reused connection that is lost within this time of sending, before any answer, was dead already."""
_BACKOFF_S = (0.25, 0.5, 1.0, 2.0)
_JOIN_BYTES_MAX = 131_072
"""Bodies up to this size are joined with their head into one write; larger ones are not copied."""
_BODYLESS = frozenset({204, 304})
_END_MARK = re.compile(rb'%b|"error"(?!\s*:\s*null)' % DONE_MARK.pattern)  # an error event is an end as well
_MARKED_MAX = 4096


class Exchange:
    """See the module's text.

    Attributes:
        deadline: when :meth:`expired` is to be called, seconds, monotonic.
        sent: the client has been sent the head of an answer.
    """

    sent = False
    done = False
    upstream: UpstreamConnection | None = None
    deadline: float
    total_at: float
    _started_at: float
    _placement: Placement | None = None
    _ticket: Ticket | None = None
    _connecting: Endpoint | None = None
    _tried: tuple[ReplicaId, ...] = ()
    _attempts = 0
    _status = 0
    _retry_at = 0.0
    _ttft_s: float | None = None
    _fresh_tried = False
    _stream_open = False

    def __init__(
        self, core: Core, client: ClientConnection, request: Request, route: Route, facts: RequestFacts
    ) -> None:
        self._core = core
        self.client = client
        self.request = request
        self.route = route
        self.facts = facts
        self.request_id = request.request_id or core.new_request_id()

    # ---- placing ------------------------------------------------------------------------------------------------
    def start(self, now: float) -> None:
        core = self._core
        self._started_at = now
        total_s = core.total_s
        if self.request.deadline:
            total_s = min(total_s, _deadline_s(self.request.deadline))
        self.deadline = self.total_at = now + total_s
        core.exchanges.add(self)
        core.metrics.started()
        core.budget.fresh += 1
        self._place(now)

    def _place(self, now: float) -> None:
        result = self._core.scheduler.place(self.facts, now, self._tried)
        if type(result) is Placement:
            self._go(result, now)
        else:
            assert isinstance(result, Refusal)
            self._refused(result, now)

    def _go(self, placement: Placement, now: float) -> None:
        """Sends the request where it was placed."""
        self._placement = placement
        self._attempts += 1
        pool = self._core.pool
        try:
            endpoint = pool.endpoint(placement.replica_id, placement.url)
        except ConnectFailed as error:
            self._attempt_failed(error, FailureKind.CONNECT)
            return
        idle = endpoint.idle
        if idle:
            self._send(idle.pop(), now)
        else:
            self._connect(endpoint)

    def _connect(self, endpoint: Endpoint) -> None:
        self.deadline = self.total_at  # the pool's own limit ends the attempt
        self._connecting = endpoint
        self._core.pool.connect(endpoint, self)

    def _refused(self, refusal: Refusal, now: float) -> None:
        core = self._core
        reason = refusal.reason
        if reason is RefusalReason.MODEL_UNKNOWN:
            self._fail(core.model_unknown(self.facts.model))
        elif core.stopping:
            self._fail(ShuttingDown("The gateway is stopping; try another one.", retry_after_s=1))
        elif reason is RefusalReason.WITHDRAWN:
            self._fail(NoReplicaReady(f"{refusal.message[:1].upper()}{refusal.message[1:]}."))
        elif reason is RefusalReason.ALL_TRIED:
            self._tried = ()
            self._retry_at = now + _BACKOFF_S[min(self._attempts, len(_BACKOFF_S)) - 1]
            self.deadline = min(self._retry_at, self.total_at)
        else:
            self._enqueue(now)

    def _enqueue(self, now: float) -> None:
        core = self._core
        key = header(self.request.head, b"authorization") or header(self.request.head, b"x-api-key")
        if key:  # fairness needs to tell tenants apart, not to know their keys
            self.facts.tenant = blake2b(key, digest_size=8).hexdigest()
        try:
            self._ticket = core.admission.offer(self.facts, now, self, len(self.request.body))
        except QueueFull as error:
            self._fail(error)
            return
        self.deadline = self.total_at
        core.metrics.queued(len(core.admission))

    def dispatched(self, placement: Placement, now: float) -> None:
        """The admission queue has placed it."""
        ticket, self._ticket = self._ticket, None
        self._tried = ()
        if ticket is not None:
            self._core.metrics.queue_wait(now - ticket.offered_at)
        self._go(placement, now)

    def queue_expired(self) -> None:
        """Its time in the admission queue is over (the queue has forgotten it)."""
        core = self._core
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            core.metrics.queue_wait(core.clock() - ticket.offered_at)
        retry_s = core.admission.config.retry_after_s
        model = self.facts.model
        if ticket is not None and ticket.displaced:
            self._fail(QueueFull("The queue is full and others hold less of it; retry later.", retry_after_s=retry_s))
        elif model in core.scheduler.ready_models():
            self._fail(QueueTimeout(f"All replicas of {model!r} stayed busy; retry later.", retry_after_s=retry_s))
        else:
            self._fail(NoReplicaReady(f"No replica of {model!r} became ready in time.", retry_after_s=retry_s))

    # ---- connecting and sending ---------------------------------------------------------------------------------
    def connected(self, upstream: UpstreamConnection) -> None:
        if self.done or self._connecting is not upstream.endpoint:
            return  # the pool keeps the connection
        self._connecting = None
        self._send(upstream, self._core.clock())

    def connect_failed(self, endpoint: Endpoint, error: ConnectFailed) -> None:
        if not self.done and self._connecting is endpoint:
            self._connecting = None
            self._attempt_failed(error, FailureKind.CONNECT)

    def _send(self, upstream: UpstreamConnection, now: float) -> None:
        request = self.request
        body = request.body
        head = request.head
        if self.route.passed != request.target:
            head = b"%b %b HTTP/1.1%b" % (request.method, self.route.passed, head[head.find(b"HTTP/1.1") + 8 :])
        endpoint = upstream.endpoint
        if body or request.method == b"POST":
            head = b"%b%bContent-Length: %d\r\nx-request-id: %b\r\n\r\n" % (
                head,
                endpoint.host_line,
                len(body),
                self.request_id,
            )
        else:
            head = b"%b%bx-request-id: %b\r\n\r\n" % (head, endpoint.host_line, self.request_id)
        self.upstream = upstream
        deadline = now + self._core.first_byte_s
        self.deadline = min(self.total_at, deadline)
        if len(body) <= _JOIN_BYTES_MAX:
            upstream.send(self, head + body, b"", now)
        else:
            upstream.send(self, head, body, now)

    # ---- the answer (Relay) -------------------------------------------------------------------------------------
    def answered(self, upstream: UpstreamConnection, rest: bytes) -> None:
        status = upstream.status
        core = self._core
        now = core.clock()
        placement = self._placement
        assert placement is not None
        if status < 500:
            core.health.succeeded(placement.replica_id, now)
        else:
            core.health.failed(placement.replica_id, FailureKind.STATUS_5XX, now)
        if (status in _ELSEWHERE or (status == 500 and self._attempts == 1)) and self._elsewhere(now):
            return
        self._status = status
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
        head = b"%b%b%b%b\r\n" % (upstream.head, upstream.endpoint.replica_line, self.request_id, framing)
        if upstream.complete and upstream.length == len(rest) and not bodyless:
            self.sent = True  # the usual plain answer: all of it has come
            self.client.write(head + rest)
            self._settle(_outcome(status), rest)
            return
        upstream.pass_on(head, rest, self.client.write, http11=request.http11, bodyless=bodyless)

    def first_byte_sent(self) -> None:
        self.sent = True
        core = self._core
        upstream, placement = self.upstream, self._placement
        if upstream is None or placement is None:
            return
        if self.client.stalled:
            upstream.pause()
        now = core.clock()
        self.deadline = min(now + core.timeouts.between_bytes_s, self.total_at)
        if not upstream.event_stream:
            return
        self._ttft_s = now - self._started_at
        if self.facts.stream:
            core.scheduler.first_token(placement, now)
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
        if _END_MARK.search(last) is None:
            return key not in marked
        if key not in marked and len(marked) < _MARKED_MAX:
            marked.add(key)
        return True

    def passed_on(self, _upstream: UpstreamConnection, tail: bytes) -> None:
        self._settle(_outcome(self._status), tail)

    def lost(self, upstream: UpstreamConnection, error: ReplicaError) -> None:
        kind = FailureKind.INVALID if isinstance(error, InvalidResponse) else FailureKind.RESET
        if self.sent:
            self._broken(error, kind)
            return
        now = self._core.clock()
        if upstream.reused and upstream.silent and not self._fresh_tried and now - upstream.sent_at < _STALE_S:
            self._fresh_tried = True
            self.upstream = None
            self._connect(upstream.endpoint)
            return
        self._attempt_failed(error, kind)

    # ---- failures -----------------------------------------------------------------------------------------------
    def _elsewhere(self, now: float) -> bool:
        """Moves to another replica if one will take it; otherwise nothing has changed."""
        core = self._core
        old = self._placement
        assert old is not None
        if self._attempts >= core.retry.attempts_max or now >= self.total_at or not core.budget.left(now):
            return False
        tried = (*self._tried, old.replica_id)
        result = core.scheduler.place(self.facts, now, tried)
        if not isinstance(result, Placement):
            return False
        upstream = self.upstream
        assert upstream is not None
        status = upstream.status
        core.budget.take(now)
        self._tried = tried
        self._drop_upstream()
        core.scheduler.release(old, now, _outcome(status))
        core.metrics.retried(old.replica_id, f"status_{status}")
        self._go(result, now)
        return True

    def _attempt_failed(self, error: ReplicaError, kind: FailureKind) -> None:
        """Before the client was sent anything: tries again elsewhere, or gives up."""
        core = self._core
        now = core.clock()
        placement = self._placement
        assert placement is not None
        self._drop_upstream()
        self._connecting = None
        core.health.failed(placement.replica_id, kind, now)
        if self._attempts < core.retry.attempts_max and now < self.total_at and core.budget.take(now):
            self._move(kind.value, now)
        else:
            self._fail(error)

    def _move(self, why: str, now: float) -> None:
        placement = self._placement
        assert placement is not None
        self._placement = None
        self._fresh_tried = False
        self._tried = (*self._tried, placement.replica_id)
        self._core.scheduler.release(placement, now, Outcome.REPLICA_FAILED)
        self._core.metrics.retried(placement.replica_id, why)
        self._place(now)

    def evacuate(self, replica: ReplicaId, now: float) -> bool:
        """The replica is out of service: leaves it for another if nothing has been sent and the budget allows.

        Returns whether it left. If not it goes on waiting there, for the replica may yet answer.
        """
        placement = self._placement
        core = self._core
        if self.done or self.sent or placement is None or placement.replica_id != replica:
            return False
        if self._attempts >= core.retry.attempts_max or now >= self.total_at or not core.budget.take(now):
            return False
        self._drop_upstream()
        self._connecting = None
        self._move("evacuated", now)
        return True

    def expired(self, now: float) -> None:
        """A deadline has passed."""
        if self._retry_at and now >= self._retry_at and now < self.total_at:
            self._retry_at = 0.0
            self.deadline = self.total_at
            self._place(now)
            return
        over = now >= self.total_at
        timeouts = self._core.timeouts
        if self.sent:
            what = "did not finish in time" if over else f"sent nothing for {timeouts.between_bytes_s:g} s"
            self._broken(ReplicaTimeout(f"The replica {what}."), None if over else FailureKind.TIMEOUT)
        elif over:
            # The request's own time is up, wherever it was: that says nothing about the replica.
            self._fail(ReplicaTimeout("The request was not answered before its deadline."), Outcome.CLIENT_GONE)
        else:
            self._attempt_failed(
                ReplicaTimeout(f"The replica did not answer within {timeouts.first_byte_s:g} s."), FailureKind.TIMEOUT
            )

    def client_gone(self) -> None:
        self._settle(Outcome.CLIENT_GONE)

    def _broken(self, error: ReplicaError, kind: FailureKind | None) -> None:
        """The answer had begun and will not be finished: says so if the client is at an event's end, or cuts it."""
        core = self._core
        upstream, placement = self.upstream, self._placement
        if kind is not None and placement is not None:
            core.health.failed(placement.replica_id, kind, core.clock())
        if upstream is not None and upstream.clean:
            self.client.write(chunk(error_event(error, self.route.dialect)) + b"0\r\n\r\n")
        else:
            self.client.cut()
        self._settle(Outcome.REPLICA_FAILED if kind is not None else Outcome.CLIENT_GONE)

    def _fail(self, error: ExaServeError, outcome: Outcome | None = None) -> None:
        """Answers with ``error``; the client has not been sent anything yet."""
        core = self._core
        request = self.request
        request.keep_alive = request.keep_alive and not core.stopping
        if isinstance(error, ReplicaError):
            outcome = outcome or Outcome.REPLICA_FAILED
        elif isinstance(error, ModelNotFound):
            core.metrics.client_error(error.code)
        else:
            core.metrics.refused(error.code)
        self._status = error.status
        extra = b"x-request-id: " + self.request_id + b"\r\n"
        self.client.write(
            error_answer(request, error, self.route.dialect, keep_alive=request.keep_alive, cors=core.cors, extra=extra)
        )
        self._settle(outcome or Outcome.REJECTED)

    # ---- the end ------------------------------------------------------------------------------------------------
    def _drop_upstream(self) -> None:
        upstream = self.upstream
        if upstream is not None:
            self.upstream = None
            upstream.abort()

    def _settle(self, outcome: Outcome, tail: bytes = b"") -> None:
        """Gives back everything, once, and tells everyone."""
        if self.done:
            return
        self.done = True
        core = self._core
        now = core.clock()
        core.exchanges.discard(self)
        placement, upstream = self._placement, self.upstream
        usage = None
        replica = ""
        model = self.facts.model
        if placement is not None:
            if tail and outcome is Outcome.COMPLETED:
                usage = find_usage(tail)
            self._placement = None
            replica = placement.replica_id
            core.scheduler.release(placement, now, outcome, usage)
        elif self._status == 404:
            model = "unknown"  # a name that nobody serves is no label
        if upstream is not None:
            self.upstream = None
            if outcome is Outcome.CLIENT_GONE or outcome is Outcome.REPLICA_FAILED:
                upstream.abort()
            else:
                core.pool.give_back(upstream, now)
        if self._ticket is not None:
            core.admission.cancel(self._ticket)
            core.metrics.queue_wait(now - self._ticket.offered_at)
            core.metrics.queued(len(core.admission))
            self._ticket = None
        if self._stream_open:
            core.metrics.streams(-1)
        core.metrics.finished(
            model, replica, self._status, self.facts.stream, outcome, self._ttft_s, now - self._started_at, usage
        )
        self._connecting = None
        if core.waiting():
            core.wake()
        self.client.exchange_done(now)


def _outcome(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETED
    rejected = Outcome.BUSY if status == 429 else Outcome.REJECTED
    return rejected if status < 500 else Outcome.REPLICA_ERROR


def _deadline_s(value: bytes) -> float:
    """``x-exaserve-deadline-ms`` in seconds; infinite where it is no positive number."""
    try:
        return max(int(value), 1) / 1000
    except ValueError:
        return inf
