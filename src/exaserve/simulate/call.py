# compiled
"""One client's request on its way through the cluster: carries out in virtual time what its journey decides."""

from __future__ import annotations

from collections.abc import Sequence

from exaserve.domain.errors import ConnectFailed, ConnectionLost, ReplicaError
from exaserve.domain.request import Outcome, RequestFacts, Usage
from exaserve.perfmodel.engine import SequenceState
from exaserve.serving.dispatcher import Dispatcher
from exaserve.serving.journey import Journey
from exaserve.serving.transitions import (
    ANSWER,
    BACKING_OFF,
    BREAK,
    DONE,
    NOTHING,
    PARK,
    PASS_ON,
    RECONNECT,
    SEND,
)
from exaserve.simulate.replica import Job, SimReplica
from exaserve.simulate.world import World

__all__ = ["Attempt", "Call", "DataPath"]

_ERRORS = {
    "queue_full": "queue_full",
    "queue_timeout": "queue_timeout",
    "no_replica_ready": "no_replica_ready",
    "replica_unreachable": "connect",
    "replica_connection_lost": "reset",
    "replica_timeout": "timeout",
    "deadline_exceeded": "deadline",
    "shutting_down": "unfinished",
}
"""The error tree's codes in the recorder's words."""


class DataPath:
    """What the calls of one gateway share.

    Attributes:
        hop_s: from the gateway to a replica and back, each, seconds.
        usages: token counts that have been made before: there are few different ones.
    """

    __slots__ = ("dispatcher", "hop_s", "usages", "world")

    def __init__(self, world: World, dispatcher: Dispatcher, hop_s: float) -> None:
        self.world = world
        self.dispatcher = dispatcher
        self.hop_s = hop_s
        self.usages: dict[tuple[int, int, int], Usage] = {}


class Attempt(Job):
    """The request at one replica: what an engine computes. A new one for each try."""

    __slots__ = ("call",)

    def __init__(self, call: Call, prompt_tokens: int, output_tokens: int, hashes: Sequence[int]) -> None:
        Job.__init__(self, prompt_tokens, output_tokens, hashes=hashes)
        self.call = call

    def on_first(self, now: float) -> None:
        self.call.first_came(self, now)

    def on_done(self, now: float) -> None:
        self.call.last_came(self, now)

    def on_lost(self, now: float, why: str) -> None:
        self.call.lost(self, now, why)

    def on_refused(self, now: float) -> None:
        self.call.answered(self, now, 400)


class Call(Journey):
    """A request of the demand.

    Attributes:
        index: row of the demand.
        attempt: the try under way, None while there is none; what others send is not listened to any more.
        held: the replica that has it.
        floor_s: what the replica's server adds to the answer's times besides its engine (``EngineProfile.first_s``).
            All requests of a replica are late by as much, so its engine would do the same later: adding it to what
            the client sees costs no event.
    """

    attempt: Attempt | None = None
    held: SimReplica | None = None
    floor_s: float = 0.0

    def __init__(
        self,
        path: DataPath,
        index: int,
        facts: RequestFacts,
        output_tokens: int,
        hashes: Sequence[int],
    ) -> None:
        Journey.__init__(self, path.dispatcher, facts, facts.prompt_bytes)
        self.path = path
        self.index = index
        self.output_tokens = output_tokens
        self.hashes = hashes

    # -- what the journey asks for ----------------------------------------------------------------------------------
    def perform(self, effect: int, now: float) -> None:
        if effect in (SEND, RECONNECT):
            if self.attempt is not None:
                self._abort_attempt(now)
            self._go(now)
        elif effect == PARK:
            self._abort_attempt(now)
            if self.state == BACKING_OFF:
                self.path.world.at(self.deadline, self._go_on)
        elif effect != NOTHING:
            self._over(effect, now)

    def waited(self, wait_s: float) -> None:
        self.path.world.recorder.queued_s[self.index] += wait_s

    def _go_on(self, now: float, _a: object, _b: object) -> None:
        if self.state == BACKING_OFF and self.deadline <= now:
            self.perform(self.expired(now), now)

    def _abort_attempt(self, now: float) -> None:
        attempt, held = self.attempt, self.held
        self.attempt = self.held = None
        if attempt is not None and held is not None:
            held.abort(attempt, now)

    def _go(self, now: float) -> None:
        placement = self.placement
        assert placement is not None
        path = self.path
        attempt = self.attempt = Attempt(self, self.facts.prompt_tokens, self.output_tokens, self.hashes)
        held = path.world.replicas[placement.replica_id]
        assert isinstance(held, SimReplica)
        self.held = held
        if path.hop_s:
            path.world.at(now + path.hop_s, self._reach, attempt)
        else:
            self._reach(now, attempt, None)

    def _reach(self, now: float, attempt: Attempt, _: object) -> None:
        held = self.held
        if self.attempt is not attempt or held is None:
            return
        if held.accepts:
            self.sent(now)
        held.submit(now, attempt)

    # -- what replicas answer ---------------------------------------------------------------------------------------
    def first_came(self, attempt: Attempt, now: float) -> None:
        """A replica has sent the first token."""
        path = self.path
        if path.hop_s:
            path.world.at(now + path.hop_s, self._first_seen, attempt)
        else:
            self._first_seen(now, attempt, None)

    def _first_seen(self, now: float, attempt: Attempt, _: object) -> None:
        if self.attempt is attempt and self.head(200, now) == PASS_ON:
            held = self.held
            if held is not None:
                self.floor_s = held.floor_s
            self.path.world.recorder.first[self.index] = now + self.floor_s
            self.first_byte(now, stream=True)

    def last_came(self, attempt: Attempt, now: float) -> None:
        """A replica has sent the last token."""
        path = self.path
        if path.hop_s:
            path.world.at(now + path.hop_s, self._last_seen, attempt)
        else:
            self._last_seen(now, attempt, None)

    def _last_seen(self, now: float, attempt: Attempt, _: object) -> None:
        if self.attempt is not attempt:
            return
        self.attempt = self.held = None  # nothing is left to give up there
        usages = self.path.usages
        key = (attempt.prompt_tokens, attempt.output_tokens, attempt.cached_tokens)
        usage = usages.get(key)
        if usage is None:
            usage = usages[key] = Usage(*key)
        self.perform(self.ended(usage, now), now)

    def answered(self, attempt: Attempt, now: float, status: int) -> None:
        """A replica has answered with an error."""
        if self.attempt is not attempt:
            return
        effect = self.head(status, now)
        self.perform(self.ended(None, now) if effect == PASS_ON else effect, now)

    def lost(self, attempt: Attempt, now: float, why: str) -> None:
        """The replica could not be reached, lost the request, or answered 500."""
        if self.attempt is not attempt:
            return
        if why == "status_5xx":
            self.answered(attempt, now, 500)
            return
        error: ReplicaError = ConnectFailed(why) if why == "connect" else ConnectionLost(why)
        self.perform(self.failed(error, now), now)

    def check_deadline(self, attempt: Attempt, now: float, silent_since: float | None) -> None:
        """Ends it if its replica is too late; ``silent_since`` as the replica says, None while it works."""
        if self.attempt is not attempt or attempt.state is SequenceState.FINISHED:
            return
        self.progressed(now if silent_since is None else silent_since)
        if self.deadline <= now:
            self.perform(self.expired(now), now)

    # -- the end ----------------------------------------------------------------------------------------------------
    def _over(self, effect: int, now: float) -> None:
        assert self.state == DONE
        if self.attempt is not None:
            self._abort_attempt(now)
        path = self.path
        recorder = path.world.recorder
        if self.attempts > 1:
            recorder.attempts[self.index] = min(self.attempts, 127)
        recorder.ended(self.index, now + self.floor_s, self._error(effect))
        path.world.open -= 1
        if path.dispatcher.waiting():
            path.dispatcher.wake(now)

    def _error(self, effect: int) -> str:
        if effect == BREAK:
            return "cut"
        if effect == ANSWER:
            return _ERRORS.get(self.error.code, "rejected") if self.error is not None else "rejected"
        outcome = self.outcome
        if outcome is Outcome.COMPLETED:
            return ""
        if outcome is Outcome.CLIENT_GONE:
            return "unfinished"
        return "status_5xx" if outcome is Outcome.REPLICA_ERROR else "rejected"
