# compiled
"""The life of one request, as a table; the gateway and the simulator carry out what it decides.

Events go in as methods, effects come out as small numbers; nothing here waits, sends or reads a clock::

    PLACING ──▶ CONNECTING ──sent──▶ WAITING ──first_byte──▶ RELAYING ──▶ DONE
      │ ▲  ▲        │                  │                        │
      │ │  │        └──── failed ──────┤                        └─ failed: BREAK (error event, or a cut)
      │ │  │   elsewhere, or again     │
      │ │  └───────────────────────────┘──▶ no attempt, budget or time left: ANSWER (an error)
      ▼ │
    QUEUED (nobody may take it yet), BACKING_OFF (everybody was tried)

Theory. A request may be tried again as long as its client has not been sent a byte, so the head of an answer is held
back until the first byte of its body: engines send heads of streams before they have begun to compute. What may be
tried again is what the error tree calls ``retryable``, and the statuses of ``_ELSEWHERE`` (one replica's full queue is
not the cluster's): there the replica's own answer is passed on where nobody else takes the request. A 500 is tried
elsewhere once: a failing engine says it of every request, and a request that fails everywhere fails again. Attempts,
the retry budget and the request's own deadline bound all of it.

What happens to a request costs its replica at most one strike, however often it was tried there. Each placement is
released exactly once, and DONE takes every event and does nothing: what comes late is no error.
"""

from __future__ import annotations

from math import inf
from typing import Final

from exaserve.domain.errors import (
    ConnectFailed,
    DeadlineExceeded,
    ExaServeError,
    InvalidResponse,
    NoReplicaReady,
    QueueFull,
    QueueTimeout,
    ReplicaError,
    ReplicaTimeout,
    ShuttingDown,
)
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.health import FailureKind, IllegalTransition
from exaserve.scheduling import Placement, Refusal, RefusalReason, Ticket
from exaserve.serving.desk import Desk
from exaserve.serving.transitions import (
    ANSWER,
    BACKING_OFF,
    BEGIN,
    BREAK,
    CONNECTING,
    DISPATCHED,
    DONE,
    END,
    ENDED,
    EVACUATED,
    EVENTS,
    EXPIRED,
    FAILED,
    FIRST_BYTE,
    HEAD,
    LEFT,
    LEGAL,
    NOTHING,
    PARK,
    PASS_ON,
    PLACING,
    QUEUED,
    RECONNECT,
    RELAYING,
    SEND,
    SENT,
    STATES,
    STOPPED,
    WAITING,
)

__all__ = ["Journey"]

_ELSEWHERE: Final = frozenset({429, 502, 503, 504})
_EVENT_COUNT: Final = 11


def _failure_kind(error: ExaServeError) -> FailureKind:
    if isinstance(error, ConnectFailed):
        return FailureKind.CONNECT
    if isinstance(error, ReplicaTimeout):
        return FailureKind.TIMEOUT
    return FailureKind.INVALID if isinstance(error, InvalidResponse) else FailureKind.RESET


def _outcome(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETED
    rejected = Outcome.BUSY if status == 429 else Outcome.REJECTED
    return rejected if status < 500 else Outcome.REPLICA_ERROR


class Journey:
    """One request. An executor derives from it, carries out effects in :meth:`perform`, and tells what happens.

    Attributes:
        state: one of PLACING … DONE.
        placement: what is charged for it now, None while nothing is.
        error: what ANSWER and BREAK have to say.
        outcome: how it ended, None until then; usage: what the engine counted, where it said so.
        replica: the replica that its last placement was on, once it is over; "" where there was none.
        status: HTTP status of the answer, 0 while there is none.
        attempts: placements so far.
        deadline: when :meth:`expired` is to be called, seconds, monotonic; never after ``total_at``.
        total_at: the end of the request's own time.
        ttft_s: seconds from the beginning to a stream's first byte, None where there was none.
    """

    state = PLACING
    placement: Placement | None = None
    error: ExaServeError | None = None
    outcome: Outcome | None = None
    usage: Usage | None = None
    replica = ""
    status = 0
    attempts = 0
    ttft_s: float | None = None
    started_at: float
    deadline: float
    total_at: float
    _tried: tuple[ReplicaId, ...] = ()
    _blamed: tuple[ReplicaId, ...] = ()
    _beside: frozenset[ReplicaId] = frozenset()
    _ticket: Ticket | None = None
    _reconnected = False
    _answered_500 = False

    def __init__(self, desk: Desk, facts: RequestFacts, size_bytes: int) -> None:
        self.desk = desk
        self.facts = facts
        self.size_bytes = size_bytes

    # ---- for the executor to fill in ----------------------------------------------------------------------------
    def perform(self, effect: int, now: float) -> None:
        """Carries out an effect that the dispatcher got on this request's behalf."""
        raise NotImplementedError

    def tenant(self) -> str:
        """Whose request it is; asked only where it has to wait."""
        return self.facts.tenant

    def sees(self, model: str) -> bool:  # noqa: ARG002 - for whom it matters
        """Whether who asks may hear that a model of that name is served."""
        return True

    def retried(self, replica: ReplicaId, why: str) -> None:
        """It leaves ``replica`` for another one."""

    def waited(self, wait_s: float) -> None:
        """It has left the admission queue."""

    def activity(self) -> int:
        """What moved since the last look: 2 bytes came, 1 the client is slow to take them, 0 nothing."""
        return 0

    # ---- placing ------------------------------------------------------------------------------------------------
    def begin(self, now: float, total_s: float = inf) -> int:
        """It has been read. ``total_s`` is the client's own bound on all of it, seconds."""
        desk = self.desk
        self.started_at = now
        self.deadline = self.total_at = now + min(desk.total_s, total_s)
        desk.open[self] = None
        desk.budget.fresh += 1
        return self._place(BEGIN, now)

    def dispatched(self, placement: Placement, now: float) -> int:
        """The admission queue has placed it."""
        self._dequeued(now)
        self._tried = ()
        return self._placed(DISPATCHED, placement, now)

    def _place(self, event: int, now: float) -> int:
        scheduler = self.desk.scheduler
        if self._beside:
            away = scheduler.place(self.facts, now, self._beside | {*self._tried})
            if type(away) is Placement:
                return self._placed(event, away, now)
        result = scheduler.place(self.facts, now, self._tried)
        if type(result) is Placement:
            return self._placed(event, result, now)
        assert isinstance(result, Refusal)
        return self._refused(event, result, now)

    def _placed(self, event: int, placement: Placement, now: float) -> int:
        self._move(event, CONNECTING)
        self.placement = placement
        self.attempts += 1
        self.deadline = self.total_at  # connecting has a bound of its own
        if self.desk.trace is not None:
            self.desk.note(now, self, "placed", placement.replica_id)
        return SEND

    def _refused(self, event: int, refusal: Refusal, now: float) -> int:
        desk = self.desk
        reason = refusal.reason
        if reason is RefusalReason.MODEL_UNKNOWN:
            return self._answer(event, desk.model_unknown(self.facts.model, self.sees), Outcome.REJECTED, now)
        if reason is RefusalReason.WITHDRAWN:
            out = NoReplicaReady(f"{refusal.message[:1].upper()}{refusal.message[1:]}.")
            return self._answer(event, out, Outcome.REJECTED, now)
        if desk.stopping:
            error = ShuttingDown("The gateway is stopping; try another one.", retry_after_s=1)
            return self._answer(event, error, Outcome.REJECTED, now)
        if reason is RefusalReason.ALL_TRIED:
            self._tried = ()
            retry = desk.retry
            pause_s = min(retry.backoff_s * 2.0 ** (self.attempts - 1), retry.backoff_max_s)
            self.deadline = min(now + pause_s, self.total_at)
            self._move(event, BACKING_OFF)
            return PARK
        self.facts.tenant = self.tenant()
        try:
            self._ticket = desk.admission.offer(self.facts, now, self, self.size_bytes)
        except QueueFull as error:
            return self._answer(event, error, Outcome.REJECTED, now)
        self.deadline = self.total_at
        self._move(event, QUEUED)
        desk.on_queue(len(desk.admission))
        return PARK

    def queue_expired(self, now: float) -> int:
        """Its time in the admission queue is over; the queue has forgotten it."""
        desk = self.desk
        ticket = self._ticket
        self._dequeued(now)
        retry_s = desk.admission.config.retry_after_s
        model = self.facts.model
        error: ExaServeError
        if ticket is not None and ticket.displaced:
            error = QueueFull(
                "The queue is full and others hold less of it, so this request gave up its place; retry later.",
                retry_after_s=retry_s,
            )
        elif model in desk.scheduler.ready_models():
            error = QueueTimeout(f"All replicas of {model!r} stayed busy; retry later.", retry_after_s=retry_s)
        else:
            error = NoReplicaReady(f"No replica of {model!r} became ready in time.", retry_after_s=retry_s)
        return self._answer(EXPIRED, error, Outcome.REJECTED, now)

    def _dequeued(self, now: float) -> None:
        ticket = self._ticket
        if ticket is not None:
            self._ticket = None
            self.waited(now - ticket.offered_at)

    # ---- sending and the answer ---------------------------------------------------------------------------------
    def sent(self, now: float) -> None:
        """The request has gone out on a connection of its replica."""
        self._move(SENT, WAITING)
        self.deadline = min(self.total_at, now + self.desk.first_byte_s)

    def head(self, status: int, now: float) -> int:
        """The head of the replica's answer has come: PASS_ON, or SEND where it is tried elsewhere."""
        if self.state == DONE:
            return NOTHING
        if status >= 500:
            self._blame(FailureKind.STATUS_5XX, now)
        retry = status in _ELSEWHERE
        if status == 500 and not self._answered_500:
            self._answered_500 = retry = True
        if retry and self._elsewhere(f"status_{status}", _outcome(status), now):
            return SEND
        self.status = status
        self._move(HEAD, WAITING)
        return PASS_ON

    def first_byte(self, now: float, stream: bool) -> None:
        """The head goes to the client, with the first bytes of the body; ``stream``: of events."""
        self._move(FIRST_BYTE, RELAYING)
        desk = self.desk
        self.deadline = min(now + desk.between_bytes_s, self.total_at)
        placement = self.placement
        assert placement is not None
        self._praise(placement, now)
        if stream:
            self.ttft_s = now - self.started_at
            if self.facts.stream:
                desk.scheduler.first_token(placement, now)

    def progressed(self, now: float) -> None:
        """Something moved: the time for the next byte begins anew."""
        if self.state == RELAYING:
            self.deadline = min(now + self.desk.between_bytes_s, self.total_at)

    def ended(self, usage: Usage | None, now: float) -> int:
        """The answer has been passed on whole."""
        state = self.state
        if state == DONE:
            return NOTHING
        if state == WAITING and self.placement is not None:
            self._praise(self.placement, now)
        return self._finish(ENDED, _outcome(self.status), now, END, usage)

    def _praise(self, placement: Placement, now: float) -> None:
        if self.status < 500 and placement.replica_id not in self._blamed:
            self.desk.fleet.succeeded(placement.replica_id, now)

    def _blame(self, kind: FailureKind, now: float) -> None:
        """Tells health of a failure: once per request and replica, for a request may be what breaks them."""
        placement = self.placement
        assert placement is not None
        replica = placement.replica_id
        if replica not in self._blamed:
            self._blamed = (*self._blamed, replica)
            self.desk.fleet.failed(replica, kind, now)
            self.desk.note(now, self, kind.value, replica)

    # ---- failures -----------------------------------------------------------------------------------------------
    def failed(self, error: ReplicaError, now: float, stale: bool = False) -> int:
        """Its replica could not be reached, was lost, or answered nonsense.

        Args:
            error: what to tell the client if that was the last attempt.
            stale: the connection had been idle and may have been dead before (``retry.stale_s``).
        """
        state = self.state
        if state == DONE:
            return NOTHING
        if state == RELAYING:
            self._blame(_failure_kind(error), now)
            return self._break(FAILED, error, Outcome.REPLICA_FAILED, now)
        if stale and not self._reconnected:
            self._reconnected = True
            self._move(FAILED, CONNECTING)
            self.deadline = self.total_at
            return RECONNECT
        return self._attempt_failed(FAILED, error, now)

    def _attempt_failed(self, event: int, error: ReplicaError, now: float) -> int:
        """Before the client was sent anything: tries again elsewhere, or gives up."""
        kind = _failure_kind(error)
        if error.fault == "replica":
            self._blame(kind, now)
            if kind is FailureKind.CONNECT or kind is FailureKind.RESET:
                self._shun_node()
        if error.retryable and self._may_retry(now) and self.desk.budget.take(now):
            return self._leave(event, kind.value, now)
        return self._answer(event, error, Outcome.REPLICA_FAILED, now)

    def _shun_node(self) -> None:
        """Its replica may have gone with the whole machine: the others there come last, while they still look idle."""
        assert self.placement is not None
        self._beside |= self.desk.fleet.beside(self.placement.replica_id)

    def _may_retry(self, now: float) -> bool:
        return self.attempts < self.desk.retry.attempts_max and now < self.total_at

    def _leave(self, event: int, why: str, now: float) -> int:
        """Gives its place back and looks for another one."""
        placement = self.placement
        assert placement is not None
        self.placement = None
        self._reconnected = False
        self._tried = (*self._tried, placement.replica_id)
        self.desk.scheduler.release(placement, now, Outcome.REPLICA_FAILED)
        self.desk.note(now, self, "retried", placement.replica_id)
        self.retried(placement.replica_id, why)
        return self._place(event, now)

    def _elsewhere(self, why: str, outcome: Outcome, now: float) -> bool:
        """Moves to another replica if one will take it; otherwise nothing has changed."""
        desk = self.desk
        old = self.placement
        assert old is not None
        if not self._may_retry(now) or not desk.budget.left(now):
            return False
        tried = (*self._tried, old.replica_id)
        result = desk.scheduler.place(self.facts, now, tried)
        if not isinstance(result, Placement):
            return False
        if outcome is not Outcome.REPLICA_ERROR:
            self._praise(old, now)
        desk.budget.take(now)
        self._tried = tried
        self._reconnected = False
        desk.scheduler.release(old, now, outcome)
        desk.note(now, self, "retried", old.replica_id)
        self.retried(old.replica_id, why)
        self._placed(HEAD, result, now)
        return True

    def evacuated(self, now: float) -> int:
        """Its replica is out of service: SEND or PARK where it leaves, NOTHING where it goes on waiting there."""
        state = self.state
        if state not in (CONNECTING, WAITING):
            return NOTHING
        if not self._may_retry(now) or not self.desk.budget.take(now):
            return NOTHING
        return self._leave(EVACUATED, "evacuated", now)

    def expired(self, now: float) -> int:
        """``deadline`` has passed."""
        state = self.state
        if state == DONE:
            return NOTHING
        desk = self.desk
        if now >= self.total_at:
            # The request's own time is up, wherever it was: that says nothing about the replica.
            error = DeadlineExceeded("The request was not answered before its deadline.")
            if state == RELAYING:
                return self._break(EXPIRED, error, Outcome.CLIENT_GONE, now)
            return self._answer(EXPIRED, error, Outcome.CLIENT_GONE, now)
        if state == BACKING_OFF:
            self.deadline = self.total_at
            return self._place(EXPIRED, now)
        if state == RELAYING:
            self._blame(FailureKind.TIMEOUT, now)
            silence = ReplicaTimeout(f"The replica sent nothing for {desk.between_bytes_s:g} s.")
            return self._break(EXPIRED, silence, Outcome.REPLICA_FAILED, now)
        late = ReplicaTimeout(f"The replica did not answer within {desk.first_byte_s:g} s.")
        return self._attempt_failed(EXPIRED, late, now)

    # ---- the end ------------------------------------------------------------------------------------------------
    def left(self, now: float) -> int:
        """The client has gone."""
        return self._finish(LEFT, Outcome.CLIENT_GONE, now, END)

    def stopped(self, now: float) -> int:
        """The gateway ends and waits no longer."""
        state = self.state
        if state == DONE:
            return NOTHING
        error = ShuttingDown("The gateway stopped before the answer was whole; try another one.", retry_after_s=1)
        if state == RELAYING:
            return self._break(STOPPED, error, Outcome.CLIENT_GONE, now)
        return self._answer(STOPPED, error, Outcome.CLIENT_GONE, now)

    def _answer(self, event: int, error: ExaServeError, outcome: Outcome, now: float) -> int:
        self.error = error
        self.status = error.status
        return self._finish(event, outcome, now, ANSWER)

    def _break(self, event: int, error: ExaServeError, outcome: Outcome, now: float) -> int:
        self.error = error
        return self._finish(event, outcome, now, BREAK)

    def _finish(self, event: int, outcome: Outcome, now: float, effect: int, usage: Usage | None = None) -> int:
        """Gives back everything, once."""
        if self.state == DONE:
            return NOTHING
        self._move(event, DONE)
        desk = self.desk
        del desk.open[self]
        self.outcome = outcome
        self.usage = usage
        placement = self.placement
        if placement is not None:
            self.placement = None
            self.replica = placement.replica_id
            desk.scheduler.release(placement, now, outcome, usage)
        ticket = self._ticket
        if ticket is not None:
            desk.admission.cancel(ticket)
            self._dequeued(now)
            desk.on_queue(len(desk.admission))
        if desk.trace is not None:
            desk.note(now, self, outcome.value, self.replica)
        return effect

    def _move(self, event: int, state: int) -> None:
        if not LEGAL[self.state * _EVENT_COUNT + event] >> state & 1:
            raise IllegalTransition(f"{EVENTS[event]} cannot lead from {STATES[self.state]} to {STATES[state]}")
        self.state = state
