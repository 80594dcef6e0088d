"""Reports of the replicas, by polling their engines' ``/metrics``.

(Those that a node agent watches are held: the agent's batches come through :meth:`Telemetry.push`.)

Each replica is polled on its own timer and its own connection with its own time limit, so that one that hangs delays
nobody. Timers are spread over the interval. A report is dated to when the poll was *sent*: a request placed while the
poll was under way may or may not be in its figures, and counting it twice for one interval does less harm than not at
all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from exaserve.config.settings import TelemetrySettings
from exaserve.domain.replica import ReplicaId, ReplicaSpec, Report
from exaserve.engines import ENGINES, Signals, metrics_paths, parse
from exaserve.engines.fetch import Fetched, Fetcher
from exaserve.health import AnomalyGuard, HealthBook
from exaserve.observe import EventLog, Family, labels
from exaserve.scheduling import Scheduler
from exaserve.wire import Batch
from exaserve.wire.batch import report_of

__all__ = ["Named", "Telemetry", "TelemetryView"]

BACKOFF_MAX_S = 2.0
"""Longest pause between polls of a replica that does not answer them: it may be back any moment."""
GUARD_EVERY_TICK_MAX = 768
"""Replicas up to which the anomaly guard looks in every interval; with twice as many in every second, and so on."""
POLLS_PER_S_MAX = 1_000.0
"""Polls of all replicas together; with more than 200 replicas the interval grows. Agents are for those sizes."""
RELEASE_S = 4.0
"""Longest time until a replica whose agent is lost is polled from here."""
SUSPICION = 3.0
"""Factor on the cost of a replica whose reports look too good to be true (A4)."""


class Named(Protocol):
    """What a batch's index stands for."""

    id: ReplicaId


@dataclass(frozen=True, slots=True)
class TelemetryView:
    """Polling of one replica so far.

    Attributes:
        engine: key of ENGINES as found out, "" if not yet.
        path: where its metrics are.
        missing: signals that it should give and does not, from the last poll.
        polls / failures: polls ended, and those without a usable answer.
        error: of the last poll, "" if it was well.
    """

    engine: str
    path: str
    missing: tuple[str, ...]
    polls: int
    failures: int
    error: str


class _Poller:
    __slots__ = (
        "engine",
        "error",
        "failures",
        "failures_row",
        "fetcher",
        "generated",
        "held",
        "missing",
        "path_index",
        "paths",
        "polls",
        "prompted",
        "spec",
        "timer",
    )

    def __init__(self, spec: ReplicaSpec, fetcher: Fetcher) -> None:
        self.spec = spec
        self.fetcher = fetcher
        self.timer: asyncio.TimerHandle | None = None
        self.engine = ""
        self.paths = metrics_paths(spec.engine)
        self.path_index = 0
        self.missing: tuple[str, ...] = ()
        self.polls = 0
        self.failures = 0
        self.failures_row = 0
        self.error = ""
        self.prompted = self.generated = -1.0
        """Token counters as last reported."""
        self.held = False


class Telemetry:
    """Polls replicas from :meth:`add` (or :meth:`start`) to :meth:`remove` (or :meth:`stop`).

    Args:
        on_report: called after each report the scheduler has taken, so that queued requests are looked at again.
        clock: the monotonic clock that the scheduler's callers use, seconds.
        api_key: what the engines want as bearer token, "" for none.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        scheduler: Scheduler,
        health: HealthBook,
        log: EventLog,
        on_report: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        api_key: str = "",
    ) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._health = health
        self._log = log
        self._on_report = on_report
        self._clock = clock
        self._api_key = api_key
        self._pollers: dict[ReplicaId, _Poller] = {}
        self._guard = AnomalyGuard()
        self._suspects: set[ReplicaId] = set()
        self._held = 0
        self._ticks = 0
        self._seq = 0
        self._added = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._running = False

    def start(self) -> None:
        """Begins polling; needs the running loop."""
        self._running = True
        self._ticker = asyncio.get_running_loop().call_later(self._settings.interval_s, self._tick)
        for poller in self._pollers.values():
            self._first(poller)

    def stop(self) -> None:
        """Ends all polling and closes the connections."""
        self._running = False
        if self._ticker is not None:
            self._ticker.cancel()
        for replica in list(self._pollers):
            self.remove(replica)

    def add(self, spec: ReplicaSpec) -> None:
        poller = self._pollers[spec.id] = _Poller(spec, Fetcher(spec.url, clock=self._clock, api_key=self._api_key))
        if self._running:
            self._first(poller)

    def remove(self, replica: ReplicaId) -> None:
        poller = self._pollers.pop(replica, None)
        if poller is None:
            return
        if poller.timer is not None:
            poller.timer.cancel()
        poller.fetcher.close()
        self._held -= poller.held
        self._guard.forget(replica)
        self._suspects.discard(replica)

    # ---- replicas that an agent watches -------------------------------------------------------------------------
    def hold(self, replica: ReplicaId) -> None:
        """Stops polling it. Idempotent; unknown replicas are ignored."""
        poller = self._pollers.get(replica)
        if poller is None or poller.held:
            return
        poller.held = True
        self._held += 1
        if poller.timer is not None:
            poller.timer.cancel()
            poller.timer = None
        poller.fetcher.close()
        poller.error = ""

    def release(self, replica: ReplicaId) -> None:
        """Polls it again, after a while: agents mostly come back at once, and when all are lost together (this machine
        was busy) polling thousands at once would keep it busy. Idempotent; unknown replicas are ignored."""
        poller = self._pollers.get(replica)
        if poller is None or not poller.held:
            return
        poller.held = False
        self._held -= 1
        poller.failures_row = 0
        if self._running:
            self._added += 1
            delay_s = RELEASE_S * (0.5 + 0.5 * ((self._added * 0.618033988749895) % 1.0))
            poller.timer = asyncio.get_running_loop().call_later(delay_s, self._poll, poller)

    def described(self, replica: ReplicaId, engine: str, missing: tuple[str, ...]) -> None:
        """What an agent found out of the engine's metrics."""
        poller = self._pollers.get(replica)
        if poller is not None:
            poller.engine = engine if engine in ENGINES else ""
            self._note_missing(poller, missing)

    def push(self, rows: Mapping[int, Named], batch: Batch, heard_at: float) -> None:
        """An agent's batch; ``rows`` says which replica each of its indexes is. Ages count back from ``heard_at``."""
        self._seq = seq = self._seq + 1
        pollers = self._pollers
        for record in batch.records:
            row = rows.get(record[0])
            if row is not None and (poller := pollers.get(row.id)) is not None:
                report = report_of(record, row.id, seq, heard_at - record[2] * 1e-3)
                if poller.missing:
                    report = msgspec.structs.replace(report, missing=poller.missing)
                self._take(poller, report, heard_at)
        if batch.same:
            same = [row.id for index in batch.same if (row := rows.get(index)) is not None]
            self._scheduler.confirm(same, seq, heard_at - batch.same_age_ms * 1e-3, heard_at)

    def view(self, replica: ReplicaId) -> TelemetryView:
        """Raises KeyError for a replica that is not polled."""
        poller = self._pollers[replica]
        path = poller.paths[poller.path_index]
        return TelemetryView(poller.engine, path, poller.missing, poller.polls, poller.failures, poller.error)

    @property
    def suspects(self) -> frozenset[ReplicaId]:
        return frozenset(self._suspects)

    def families(self) -> Iterable[Family]:
        """Polls, failures and missing signals per replica, for the gateway's own metrics."""
        polls = Family("exaserve_telemetry_polls_total", "counter", "Polls of a replica's metrics that ended.")
        failures = Family("exaserve_telemetry_failures_total", "counter", "Polls without a usable answer.")
        missing = Family(
            "exaserve_telemetry_signal_missing", "gauge", "1 where a replica should report this and does not."
        )
        for replica, poller in self._pollers.items():
            head = labels(replica=replica)
            polls.add(poller.polls, head)
            failures.add(poller.failures, head)
            for signal in poller.missing:
                missing.add(1, labels(replica=replica, signal=signal))
        return [polls, failures, missing]

    # ---- polling ------------------------------------------------------------------------------------------------
    def _first(self, poller: _Poller) -> None:
        """Spreads first polls over the interval by the golden ratio, which stays even at any number of replicas."""
        if poller.held:
            return
        self._added += 1
        delay_s = (self._added * 0.618033988749895) % 1.0 * self._settings.interval_s
        poller.timer = asyncio.get_running_loop().call_later(delay_s, self._poll, poller)

    def _poll(self, poller: _Poller) -> None:
        # At most a few thousand polls a second, however many replicas have lost their agents.
        pause_s = max(self._settings.interval_s, self._polled_now() / POLLS_PER_S_MAX)
        if poller.failures_row:
            pause_s = max(pause_s, min(pause_s * 2.0 ** min(poller.failures_row - 1, 16), BACKOFF_MAX_S))
        poller.timer = asyncio.get_running_loop().call_later(pause_s, self._poll, poller)
        if not poller.fetcher.busy:
            path = poller.paths[poller.path_index]
            poller.fetcher.start(
                "GET", path, lambda result: self._polled(poller, result), timeout_s=self._settings.timeout_s
            )

    def _polled_now(self) -> int:
        return len(self._pollers) - self._held

    def _polled(self, poller: _Poller, result: Fetched) -> None:
        if self._pollers.get(poller.spec.id) is not poller:
            return
        poller.polls += 1
        if result.status != 200:
            self._failed(poller, result.error or f"status {result.status}", try_next=result.status in {404, 405, 501})
            return
        signals = parse(result.body, poller.engine or poller.spec.engine)
        if not signals.values:
            # Another engine may have taken the address, or this path is not the one.
            poller.engine = ""
            signals = parse(result.body)
            if not signals.values:
                self._note_missing(poller, signals.missing)
                self._failed(poller, "no metrics of a known engine", try_next=True)
                return
        self._accept(poller, signals, result.sent_at)

    def _failed(self, poller: _Poller, error: str, *, try_next: bool) -> None:
        poller.failures += 1
        poller.failures_row += 1
        if try_next:
            poller.path_index = (poller.path_index + 1) % len(poller.paths)
        if error != poller.error:
            poller.error = error
            self._log.warning("telemetry_failed", replica=poller.spec.id, error=error)

    def _accept(self, poller: _Poller, signals: Signals, sent_at: float) -> None:
        replica = poller.spec.id
        now = self._clock()
        if poller.error:
            self._log.info("telemetry_back", replica=replica)
        poller.error = ""
        poller.failures_row = 0
        poller.engine = signals.engine
        self._note_missing(poller, signals.missing)
        self._seq += 1
        self._take(poller, signals.report(replica, self._seq, sent_at), now)
        self._on_report()

    def _take(self, poller: _Poller, report: Report, now: float) -> None:
        prompted = report.prompt_tokens_total or 0.0
        generated = report.generation_tokens_total or 0.0
        if generated != poller.generated or prompted != poller.prompted:
            if prompted < poller.prompted or generated < poller.generated:
                self._log.warning("replica_restarted", replica=report.replica)
                self._scheduler.restarted(report.replica)
            if poller.prompted >= 0.0:
                self._health.progressed(report.replica, now)
            poller.prompted = prompted
            poller.generated = generated
        self._scheduler.report(report, now)

    def _note_missing(self, poller: _Poller, missing: tuple[str, ...]) -> None:
        if missing != poller.missing:
            poller.missing = missing
            if missing:
                self._log.warning("signals_missing", replica=poller.spec.id, signals=",".join(missing))
            else:
                self._log.info("signals_complete", replica=poller.spec.id)

    # ---- once per interval --------------------------------------------------------------------------------------
    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(self._settings.interval_s, self._tick)
        now = self._clock()
        self._scheduler.tick(now)
        self._ticks += 1
        if self._ticks % (1 + len(self._pollers) // GUARD_EVERY_TICK_MAX):
            return  # the guard compares whole pools: with thousands of replicas it looks once a second, not five times
        suspects = self._guard.observe(self._scheduler.report_scores(), now)
        for replica in suspects - self._suspects:
            self._log.warning("replica_suspect", replica=replica, why="score far below all others")
            self._scheduler.set_suspicion(replica, SUSPICION)
        for replica in self._suspects - suspects:
            self._log.info("replica_trusted", replica=replica)
            self._scheduler.set_suspicion(replica, 1.0)
        self._suspects = suspects
