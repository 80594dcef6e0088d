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

import msgspec

from exaserve.config.settings import TelemetrySettings
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.engines import ENGINES, MetricsReader
from exaserve.engines.fetch import REFUSED, Fetched, Fetcher
from exaserve.gateway.fleet.roster import Row
from exaserve.observe import EventLog, Family, labels
from exaserve.serving.fleet import Fleet
from exaserve.wire import NodeBatch
from exaserve.wire.batch import report_of

__all__ = ["Telemetry", "TelemetryView"]

BACKOFF_MAX_S = 2.0
"""Longest pause between polls of a replica that does not answer them: it may be back any moment."""
POLLS_PER_S_MAX = 1_000.0
"""Polls of all replicas together; with more than 200 replicas the interval grows. Agents are for those sizes."""
RELEASE_S = 4.0
"""Longest time until a replica whose agent is lost is polled from here."""


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
    """The connection by which one replica is polled, and how that has gone."""

    __slots__ = ("error", "failures", "failures_row", "fetcher", "held", "missing", "polls", "reader", "spec", "timer")

    def __init__(self, spec: ReplicaSpec, fetcher: Fetcher) -> None:
        self.spec = spec
        self.fetcher = fetcher
        self.reader = MetricsReader(spec.engine)
        self.timer: asyncio.TimerHandle | None = None
        self.missing: tuple[str, ...] = ()
        """Signals that are missing, as last told."""
        self.polls = 0
        self.failures = 0
        self.failures_row = 0
        self.error = ""
        self.held = False


class Telemetry:
    """Polls replicas from :meth:`add` (or :meth:`start`) to :meth:`remove` (or :meth:`stop`).

    Args:
        on_report: called after each report the scheduler has taken, so that queued requests are looked at again.
        clock: the monotonic clock that the fleet's callers use, seconds.
        api_key: what the engines want as bearer token, "" for none.
        pushed_s: between two batches of an agent.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        fleet: Fleet,
        log: EventLog,
        on_report: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        api_key: str = "",
        pushed_s: float = 0.0,
    ) -> None:
        self._settings = settings
        self._pushed_s = pushed_s
        self._fleet = fleet
        self._log = log
        self._on_report = on_report
        self._clock = clock
        self._api_key = api_key
        self._pollers: dict[ReplicaId, _Poller] = {}
        self._held = 0
        self._polls = self._failures = 0
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

    def restarted(self, replica: ReplicaId) -> None:
        """Another process answers there: it may be another engine."""
        poller = self._pollers.get(replica)
        if poller is not None:
            poller.reader.forget()

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
            poller.reader.engine = engine if engine in ENGINES else ""
            self._note_missing(poller, missing)

    def push(self, rows: Mapping[int, Row], batch: NodeBatch, heard_at: float) -> None:
        """An agent's batch; ``rows`` says which replica each of its indexes is. Ages count back from ``heard_at``."""
        self._seq = seq = self._seq + 1
        pollers, fleet = self._pollers, self._fleet
        for record in batch.records:
            row = rows.get(record[0])
            if row is not None and (poller := pollers.get(row.id)) is not None:
                report = report_of(record, row.id, seq, heard_at - record[2] * 1e-3)
                if poller.missing:
                    report = msgspec.structs.replace(report, missing=poller.missing)
                fleet.report(report, heard_at)
        if batch.same:
            same = [row.id for index in batch.same if (row := rows.get(index)) is not None]
            fleet.confirm(same, seq, heard_at - batch.same_age_ms * 1e-3, heard_at)

    def engine(self, replica: ReplicaId) -> str:
        """Which engine it was found to be, "" where that is not known."""
        poller = self._pollers.get(replica)
        return "" if poller is None else poller.reader.engine

    def view(self, replica: ReplicaId) -> TelemetryView:
        """Raises KeyError for a replica that is not polled."""
        poller = self._pollers[replica]
        reader = poller.reader
        return TelemetryView(reader.engine, reader.path, poller.missing, poller.polls, poller.failures, poller.error)

    def families(self, nodes: Mapping[str, str] | None) -> Iterable[Family | None]:
        """Polls, failures and missing signals for the gateway's own metrics: per replica, or of all together where
        figures are by node, since a counter must not fall when a replica leaves its node."""
        polls = Family("exaserve_telemetry_polls_total", "counter", "Polls of a replica's metrics that ended.")
        failures = Family("exaserve_telemetry_failures_total", "counter", "Polls without a usable answer.")
        missing = Family(
            "exaserve_telemetry_signal_missing", "gauge", "1 where a replica should report this and does not."
        )
        if nodes is not None:
            polls.add(self._polls)
            failures.add(self._failures)
        for replica, poller in self._pollers.items():
            if nodes is None:
                head = labels(replica=replica)
                polls.add(poller.polls, head)
                failures.add(poller.failures, head)
            for signal in poller.missing:
                where = {"replica": replica} if nodes is None else {"node": nodes.get(replica, "")}
                missing.sum(1, labels(**where, signal=signal))
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
        pause_s = self._interval_s()
        if poller.failures_row:
            pause_s = max(pause_s, min(pause_s * 2.0 ** min(poller.failures_row - 1, 16), BACKOFF_MAX_S))
        poller.timer = asyncio.get_running_loop().call_later(pause_s, self._poll, poller)
        if not poller.fetcher.busy:
            poller.fetcher.start(
                "GET",
                poller.reader.path,
                lambda result: self._polled(poller, result),
                timeout_s=self._settings.timeout_s,
            )

    def _interval_s(self) -> float:
        """At most a few thousand polls a second, however many replicas have lost their agents."""
        return max(self._settings.interval_s, (len(self._pollers) - self._held) / POLLS_PER_S_MAX)

    def _polled(self, poller: _Poller, result: Fetched) -> None:
        replica = poller.spec.id
        if self._pollers.get(replica) is not poller:
            return
        poller.polls += 1
        self._polls += 1
        signals = poller.reader.take(result)
        if result.status == 200:
            self._note_missing(poller, poller.reader.missing)
        error = poller.reader.error
        if signals is None:
            poller.failures += 1
            poller.failures_row += 1
            self._failures += 1
            if result.error == REFUSED:
                self._fleet.unreachable(replica)
            if error != poller.error:
                poller.error = error
                self._log.warning("telemetry_failed", replica=replica, error=error)
            return
        if poller.error:
            self._log.info("telemetry_back", replica=replica)
        poller.error = ""
        poller.failures_row = 0
        self._seq += 1
        self._fleet.report(signals.report(replica, self._seq, result.sent_at), self._clock())
        self._on_report()

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
        self._fleet.look(self._clock(), max(self._interval_s(), self._pushed_s))
