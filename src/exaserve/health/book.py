# compiled
"""One entry per replica: observations in, changes of availability out.

Every observation returns what it changed, and who made it decides when to act on that: a client's request that finds a
replica broken is never in the middle of moving others.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import Enum

from exaserve.domain.replica import ReplicaId
from exaserve.health.breaker import Breaker
from exaserve.health.config import HealthConfig
from exaserve.health.lifecycle import AVAILABLE, Event, State, transition
from exaserve.health.probe import judge_probe

__all__ = ["FailureKind", "HealthBook", "HealthChange", "HealthView"]

_GOLDEN = 0.618033988749895
"""Multiples of the golden ratio, modulo 1, are spread evenly at any number of them."""


class FailureKind(Enum):
    """How a client's request failed at a replica. 4xx and 429 are no failures."""

    CONNECT = "connect"
    RESET = "reset"
    TIMEOUT = "timeout"
    INVALID = "invalid"
    STATUS_5XX = "status_5xx"


@dataclass(frozen=True, slots=True)
class HealthChange:
    """What an observation changed of one replica: whether it may take requests, its share of them (0..1), and why."""

    replica: ReplicaId
    available: bool
    share: float
    reason: str


@dataclass(frozen=True, slots=True)
class HealthView:
    """What is known of one replica's health.

    Attributes:
        state: name of the life-cycle state, such as ``healthy``.
        since: when it entered that state, monotonic seconds.
        share: part of its normal traffic it may take now, 0..1.
        reason: what moved it there, in words.
        consecutive_failures: clients' requests that failed in a row.
        strikes: failed probes in a row.
        ejections: times ejected since it was last forgiven.
        probe_latency_s: latency of the last probe that was answered, None if none was.
        last_failure: kind and detail of the last failure, "" if none.
    """

    state: str
    since: float
    available: bool
    share: float
    reason: str
    consecutive_failures: int
    strikes: int
    ejections: int
    probe_latency_s: float | None
    last_failure: str


class _Entry:
    __slots__ = (
        "announced",
        "available",
        "breaker",
        "down_by_word",
        "ejections",
        "held",
        "last_failure",
        "probe_at",
        "probe_latency_s",
        "probe_timeout_s",
        "probe_wait_s",
        "progress_at",
        "reason",
        "recoveries",
        "since",
        "state",
        "strikes",
        "told",
    )

    def __init__(self, config: HealthConfig, now: float) -> None:
        self.state = State.UNKNOWN
        self.available = False
        """Whether ``state`` is one of AVAILABLE, which is asked for each answer."""
        self.since = now
        self.reason = "not probed yet"
        self.breaker = Breaker(config.failures_max, config.failure_rate_max, config.window_s, config.window_min)
        self.strikes = 0
        self.recoveries = 0
        self.ejections = 0
        self.probe_at = now
        self.probe_wait_s = config.probe_fast_s
        self.probe_timeout_s = config.probe_timeout_s
        """Of the probe under way, or of the last one."""
        self.probe_latency_s: float | None = None
        self.progress_at = float("-inf")
        self.last_failure = ""
        self.announced = (False, 0.0)
        self.told = False
        """A node agent watches it."""
        self.held = False
        """That agent says it cannot serve: no use in probing."""
        self.down_by_word = False
        """It is out because of the agent, not because of failures: the agent's word brings it back."""


class HealthBook:
    """Health of every replica as this gateway sees it. A replica that is added may take nothing yet."""

    def __init__(self, config: HealthConfig) -> None:
        self.config = config
        self._entries: dict[ReplicaId, _Entry] = {}
        self._due: list[tuple[float, ReplicaId]] = []
        """Heap of probe times; entries whose time has changed since are skipped when they come up."""
        self._spread = 0.0
        self._timed: set[ReplicaId] = set()
        """Replicas that :meth:`tick` has to look at: ejected, ramping, or with failures in their window."""
        self._probing: set[ReplicaId] = set()
        """Replicas with a probe under way."""

    # ---- membership ---------------------------------------------------------------------------------------------
    def add(self, replica: ReplicaId, now: float) -> None:
        if replica in self._entries:
            raise ValueError(f"replica {replica} is already known")
        self._entries[replica] = _Entry(self.config, now)
        heapq.heappush(self._due, (now, replica))

    def remove(self, replica: ReplicaId) -> None:
        self._entries.pop(replica, None)
        self._timed.discard(replica)
        self._probing.discard(replica)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, replica: ReplicaId) -> bool:
        return replica in self._entries

    # ---- observations. All but `probed` may name a replica that has left: such stragglers say nothing -----------
    def succeeded(self, replica: ReplicaId, now: float) -> None:
        """A response to a client began with a status below 500."""
        entry = self._entries.get(replica)
        if entry is None:
            return
        entry.progress_at = now
        if entry.available:
            entry.breaker.succeeded(now)

    def progressed(self, replica: ReplicaId, now: float) -> None:
        """The replica did some work, say its figures moved or bytes of an answer came. Says it is not frozen."""
        entry = self._entries.get(replica)
        if entry is not None:
            entry.progress_at = now

    def failed(self, replica: ReplicaId, kind: FailureKind, now: float) -> HealthChange | None:
        """A client's request failed at the replica."""
        entry = self._entries.get(replica)
        if entry is None:
            return None
        entry.last_failure = kind.value
        if not entry.available:
            return None
        entry.breaker.failed(now)
        self._timed.add(replica)
        if (why := entry.breaker.tripped(now)) is not None:
            return self._trip(replica, entry, f"{why}, last: {kind.value}", now)
        self._probe_by(replica, entry, now + self.config.probe_fast_s)
        return self._announce(replica, entry, now)

    def renewed(self, replica: ReplicaId, reason: str, now: float) -> HealthChange | None:
        """Another process answers at the replica's address: nothing goes there until one probe has gone well."""
        entry = self._entries.get(replica)
        if entry is None or not entry.available:
            return None
        entry.strikes = 0
        # A probe under way may have been sent to the process that was there before.
        entry.recoveries = self.config.recoveries_min - (2 if replica in self._probing else 1)
        entry.breaker.reset()
        change = self._move(replica, entry, Event.RENEWED, reason, now)
        self._probe_by(replica, entry, now)
        return change

    # ---- a node agent's word --------------------------------------------------------------------------------------
    def told(self, replica: ReplicaId, reason: str, now: float, *, ready: bool) -> HealthChange | None:
        """The replica's agent, which probes it on its own machine, says whether it may serve, and why.

        Ready ends what the agent's word began; an ejection for failures seen from here is ended by probes from here.
        """
        entry = self._entries.get(replica)
        if entry is None:
            return None
        entry.told = True
        entry.held = not ready
        change: HealthChange | None = None
        if not ready:
            if entry.available:
                change = self._trip(replica, entry, reason, now)
                entry.down_by_word = True
                return change
            entry.down_by_word = entry.state is not State.UNKNOWN
            entry.reason = reason
            return HealthChange(replica, available=False, share=0.0, reason=reason)
        if entry.state is State.UNKNOWN:
            change = self._move(replica, entry, Event.PROBED_WELL, reason, now)
        elif entry.down_by_word:
            if entry.state is State.EJECTED:
                self._move(replica, entry, Event.COOLED, reason, now)
            if entry.state is State.HALF_OPEN:
                change = self._move(replica, entry, Event.PROBED_WELL, reason, now)
        entry.down_by_word = False
        entry.strikes = 0
        if replica not in self._probing:
            self._spread = (self._spread + _GOLDEN) % 1.0
            self._probe_at(replica, entry, now + self.config.probe_told_s * (0.25 + 0.75 * self._spread))
        return change

    def word_lost(self, replica: ReplicaId, reason: str, now: float) -> HealthChange | None:
        """The agent is gone, perhaps with its node. The replica is out until the agent is back or probes from here are
        answered."""
        entry = self._entries.get(replica)
        if entry is None:
            return None
        entry.told = entry.held = False
        if entry.available:
            change = self._trip(replica, entry, reason, now)
            entry.down_by_word = True
            return change
        if entry.state is State.UNKNOWN:
            self._probe_at(replica, entry, now)
        return None

    def probe_soon(self, replica: ReplicaId, now: float) -> None:
        """There is a doubt: the next probe is due now."""
        entry = self._entries.get(replica)
        if entry is not None:
            self._probe_by(replica, entry, now)

    def probe_started(self, replica: ReplicaId) -> float:
        """A probe is under way; the replica is not due again until :meth:`probed`. Returns its time limit, seconds.

        What confirms a doubt is given up at the limit for a good answer: the time-out was waited for before.
        """
        entry = self._entries[replica]
        assert replica not in self._probing, replica
        self._probing.add(replica)
        doubted = entry.available and entry.strikes > 0
        entry.probe_timeout_s = self.config.probe_limit_s if doubted else self.config.probe_timeout_s
        return entry.probe_timeout_s

    def probe_finished(
        self, replica: ReplicaId, now: float, *, status: int | None, latency_s: float, error: str = ""
    ) -> HealthChange | None:
        """A probe ended; judges it by :func:`judge_probe` and counts the verdict."""
        entry = self._entries.get(replica)
        if entry is None:
            return None
        progressed = entry.progress_at >= now - latency_s
        verdict = judge_probe(
            self.config,
            status=status,
            latency_s=latency_s,
            progressed=progressed,
            error=error,
            timeout_s=entry.probe_timeout_s,
        )
        if status is not None:
            entry.probe_latency_s = latency_s
        return self._count_probe(replica, entry, verdict.ok, max(1, verdict.strikes), verdict.detail, now)

    def probed(self, replica: ReplicaId, ok: bool, detail: str, now: float, latency_s: float) -> HealthChange | None:
        """A probe that the caller judged itself. Unknown replicas are ignored."""
        entry = self._entries.get(replica)
        if entry is None:
            return None
        entry.probe_latency_s = latency_s
        return self._count_probe(replica, entry, ok, 1, detail, now)

    # ---- time ---------------------------------------------------------------------------------------------------
    def tick(self, now: float) -> list[HealthChange]:
        """Moves what only time moves: ejected replicas cool, slow starts grow, failure windows empty."""
        changes = []
        for replica in sorted(self._timed):
            entry = self._entries[replica]
            if entry.held:
                continue
            change: HealthChange | None = None
            if entry.state is State.EJECTED and now >= entry.since + self._open_s(entry):
                change = self._move(replica, entry, Event.COOLED, f"probing after: {entry.reason}", now)
                self._probe_by(replica, entry, now)
            elif entry.state is State.RAMPING and now >= entry.since + self.config.slow_start_s:
                change = self._move(replica, entry, Event.RAMPED, "recovered", now)
            elif entry.available:
                change = self._announce(replica, entry, now)
            if change is not None:
                changes.append(change)
            if entry.state is State.HEALTHY and entry.breaker.rate(now) == 0.0:
                self._timed.discard(replica)
        return changes

    def due(self, now: float) -> list[ReplicaId]:
        """Replicas to probe now, the longest due first. Each stays due until :meth:`probe_started`."""
        ready: dict[ReplicaId, float] = {}
        while self._due and self._due[0][0] <= now:
            at, replica = heapq.heappop(self._due)
            entry = self._entries.get(replica)
            if entry is None or entry.probe_at != at or entry.state is State.EJECTED or entry.held:
                continue
            if replica in self._probing:
                continue
            ready[replica] = at
        for replica, at in ready.items():
            heapq.heappush(self._due, (at, replica))
        return list(ready)

    def progress_at(self, replica: ReplicaId) -> float:
        """When it last showed that it works, minus infinity where it never has. KeyError for an unknown replica."""
        return self._entries[replica].progress_at

    def since(self, replica: ReplicaId) -> float:
        """When it entered its state. KeyError for an unknown replica."""
        return self._entries[replica].since

    def told_by_agent(self, replica: ReplicaId) -> bool:
        """Whether a node agent watches it."""
        entry = self._entries.get(replica)
        return entry is not None and entry.told

    def state(self, replica: ReplicaId) -> tuple[str, int]:
        """Name of the life-cycle state, and ejections since last forgiven. KeyError for a replica that is not known."""
        entry = self._entries[replica]
        return entry.state.value, entry.ejections

    def view(self, replica: ReplicaId, now: float | None = None) -> HealthView:
        """Raises KeyError for a replica that is not known."""
        entry = self._entries[replica]
        return HealthView(
            state=entry.state.value,
            since=entry.since,
            available=entry.available,
            share=self._share(entry, entry.since if now is None else now),
            reason=entry.reason,
            consecutive_failures=entry.breaker.consecutive,
            strikes=entry.strikes,
            ejections=entry.ejections,
            probe_latency_s=entry.probe_latency_s,
            last_failure=entry.last_failure,
        )

    def validate(self) -> None:
        """Asserts the invariants that hold between any two calls."""
        for replica, entry in self._entries.items():
            assert entry.available == (entry.state in AVAILABLE), replica
            assert entry.announced[0] == (entry.state in AVAILABLE), replica
            assert 0.0 <= entry.announced[1] <= 1.0, replica
            assert entry.state in AVAILABLE or entry.announced[1] == 0.0, replica
            assert entry.strikes < self.config.strikes_max or entry.state not in AVAILABLE, replica
            assert entry.state is not State.EJECTED or replica in self._timed, replica
            assert entry.state is not State.RAMPING or replica in self._timed, replica
        assert self._timed <= self._entries.keys()
        assert self._probing <= self._entries.keys()
        assert len(self._due) <= 8 * len(self._entries) + 64, len(self._due)

    # ---- inside -------------------------------------------------------------------------------------------------
    def _count_probe(
        self, replica: ReplicaId, entry: _Entry, ok: bool, strikes: int, detail: str, now: float
    ) -> HealthChange | None:
        self._probing.discard(replica)
        if ok:
            entry.strikes = 0
            entry.recoveries += 1
        else:
            entry.strikes += strikes
            entry.recoveries = 0
            entry.last_failure = f"probe: {detail}"
        change: HealthChange | None = None
        wait_s = self.config.probe_told_s if entry.told else self.config.probe_interval_s
        if entry.state is State.UNKNOWN:
            if ok:
                change = self._move(replica, entry, Event.PROBED_WELL, "probed", now)
            else:
                change = self._move(replica, entry, Event.PROBED_BADLY, detail, now)
                wait_s = entry.probe_wait_s
                entry.probe_wait_s = min(wait_s * self.config.probe_backoff, self.config.probe_interval_s)
        elif entry.state is State.HALF_OPEN:
            wait_s = self.config.probe_fast_s
            if not ok:
                change = self._eject(replica, entry, Event.PROBED_BADLY, f"still failing: {detail}", now)
            elif entry.recoveries >= self.config.recoveries_min:
                change = self._move(replica, entry, Event.PROBED_WELL, f"{entry.recoveries} probes well", now)
                wait_s = self.config.probe_interval_s
        elif entry.available and not ok:
            wait_s = self.config.probe_fast_s
            if entry.strikes >= self.config.strikes_max:
                change = self._trip(replica, entry, f"probe: {detail}", now)
        self._probe_at(replica, entry, now + wait_s)
        return change

    def _trip(self, replica: ReplicaId, entry: _Entry, reason: str, now: float) -> HealthChange | None:
        if entry.state is State.HEALTHY and now - entry.since >= self.config.forgive_s:
            entry.ejections = 0
        return self._eject(replica, entry, Event.TRIPPED, reason, now)

    def _eject(self, replica: ReplicaId, entry: _Entry, event: Event, reason: str, now: float) -> HealthChange | None:
        entry.ejections += 1
        entry.recoveries = 0
        entry.strikes = 0
        self._timed.add(replica)
        return self._move(replica, entry, event, reason, now)

    def _move(self, replica: ReplicaId, entry: _Entry, event: Event, reason: str, now: float) -> HealthChange | None:
        state = transition(entry.state, event)
        entry.reason = reason
        if state is not entry.state:
            entry.state = state
            entry.available = state in AVAILABLE
            entry.since = now
            if event is Event.PROBED_WELL:
                entry.breaker.reset()
            if state is State.RAMPING:
                self._timed.add(replica)
        return self._announce(replica, entry, now)

    def _announce(self, replica: ReplicaId, entry: _Entry, now: float) -> HealthChange | None:
        """The change, only where there is one; shares in steps of a tenth, so that it stays rare."""
        available = entry.available
        new = (available, max(0.1, round(self._share(entry, now), 1)) if available else 0.0)
        if new == entry.announced:
            return None
        entry.announced = new
        return HealthChange(replica, available=available, share=new[1], reason=entry.reason)

    def _share(self, entry: _Entry, now: float) -> float:
        """Slow start times the share of answers that did not fail: what fails fast must not look idle and draw more."""
        if not entry.available:
            return 0.0
        share = 1.0 - entry.breaker.rate(now)
        if entry.state is State.RAMPING and self.config.slow_start_s > 0.0:
            start = self.config.slow_start_share
            done = min(1.0, max(0.0, (now - entry.since) / self.config.slow_start_s))
            share *= start + (1.0 - start) * done
        return share

    def _open_s(self, entry: _Entry) -> float:
        doublings = min(max(entry.ejections - 1, 0), 32)
        return min(self.config.open_s * 2.0**doublings, self.config.open_max_s)

    def _probe_by(self, replica: ReplicaId, entry: _Entry, at: float) -> None:
        """The next probe is at ``at`` or sooner."""
        if at < entry.probe_at or entry.state is State.HALF_OPEN:
            self._probe_at(replica, entry, at)

    def _probe_at(self, replica: ReplicaId, entry: _Entry, at: float) -> None:
        entry.probe_at = at
        heapq.heappush(self._due, (at, replica))
        if len(self._due) > 8 * len(self._entries) + 64:
            self._due = [(known.probe_at, name) for name, known in self._entries.items()]
            heapq.heapify(self._due)
