"""An open-loop HTTP load client: raw ``asyncio.Protocol`` and httptools, meant for uvloop.

Requests are sent when the plan says so, whatever the server does. Connections are kept alive and reused, newest first;
where none is free another is opened, up to ``inflight_max``; above it requests wait, and the wait counts, since latency
counts from the scheduled time. Per streamed event the cost is one parser pass and one count (see ``events``).

The instants of a record are read on arrival of the bytes. The event loop's timers have a resolution of one millisecond,
so a request may be sent up to one millisecond late; it is never sent early.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from exaserve.bench.record import Record, Verdict
from exaserve.bench.wire import Connection, Target, target
from exaserve.workload import BodyRenderer, Plan, PlannedRequest

__all__ = ["LoadClient", "LoadConfig", "LoadResult", "Progress"]

_DISPATCH_MAX = 128
"""Requests started in one go, so that a late dispatcher still lets answers be read."""
_SWEEP_S = 0.25
_CLOSE_TURNS = 100
"""Turns of the event loop that aborted connections get to say goodbye; one or two suffice."""
_LAG_PERIOD_S = 0.02


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """How to send.

    Attributes:
        urls: ``http://host:port`` of the endpoint; several are taken in turn (to measure replicas without a gateway).
        renderer: makes the bodies.
        inflight_max: requests in flight at once; each has a connection of its own, so keep it below the file limit.
        connect_timeout_s: a connection not open after this is a failure.
        request_timeout_s: sent to last byte; above it the connection is closed and the request is a ``timeout``.
        drain_s: how long answers may still come after the last request was due.
        progress_s: seconds between calls of the progress callback.
        headers: sent with every request.
    """

    urls: tuple[str, ...]
    renderer: BodyRenderer
    inflight_max: int = 8_192
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 300.0
    drain_s: float = 60.0
    progress_s: float = 0.25
    headers: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.urls:
            raise ValueError("urls must name at least one endpoint")
        if self.inflight_max < 1:
            raise ValueError(f"inflight_max {self.inflight_max} must be at least 1")


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the run stands. Counts of requests, except ``events`` (server-sent events so far) and the times."""

    elapsed_s: float
    duration_s: float
    planned: int
    sent: int
    inflight: int
    waiting: int
    ok: int
    failed: int
    events: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Records in the plan's order, and how well the client itself kept up.

    Attributes:
        lag_max_s: longest that the event loop was late; a run where this nears the latencies is worth nothing.
        lag_mean_s: mean of the same over the run.
        late_max_s: longest that a request was sent after it was due, waiting for a free slot included.
    """

    records: list[Record]
    elapsed_s: float
    lag_max_s: float
    lag_mean_s: float
    late_max_s: float


class LoadClient:
    """Sends one plan to one endpoint, once.

    Example::

        client = LoadClient(LoadConfig(urls=(url,), renderer=BodyRenderer("m")), plan)
        result = await client.run()

    Args:
        on_progress: called every ``progress_s`` and once at the end; must not block.
    """

    def __init__(self, config: LoadConfig, plan: Plan, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.config = config
        self.renderer = config.renderer
        self.plan = plan
        self.targets: Sequence[Target] = tuple(target(url, config.renderer.path, config.headers) for url in config.urls)
        self.events = 0
        self._on_progress = on_progress
        self._records = [
            Record(r.index, r.scenario, r.scheduled_s, r.prompt_tokens, r.output_tokens) for r in plan.requests
        ]
        self._idle: list[list[Connection]] = [[] for _ in self.targets]
        self._open: set[Connection] = set()
        self._inflight: dict[int, tuple[float, Connection | None]] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: deque[PlannedRequest] = deque()
        self._next = 0
        self._ok = self._failed = 0
        self._started_at = 0.0
        self._stopped = False
        self._done = asyncio.Event()
        self._lag = [0.0, 0.0, 0.0]
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None

    def now(self) -> float:
        """Seconds from the start of the run."""
        return time.monotonic() - self._started_at

    def stop(self) -> None:
        """Send nothing more; what is in flight may still end within ``drain_s``."""
        self._stopped = True
        self._check_done()

    async def run(self) -> LoadResult:
        """Send the plan and wait for the answers. Cancelling it closes every connection."""
        self._loop = asyncio.get_running_loop()
        self._started_at = time.monotonic()
        tasks = [asyncio.ensure_future(self._watch_lag()), asyncio.ensure_future(self._report())]
        try:
            self._dispatch()
            self._check_done()
            await self._wait()
        finally:
            elapsed = self.now()
            if self._timer is not None:
                self._timer.cancel()
            for task in tasks:
                task.cancel()
            await self._close()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._report_now()
        total, worst, count = self._lag
        late = (r.sent_s - r.scheduled_s for r in self._records if r.sent_s is not None)
        return LoadResult(self._records, elapsed, worst, total / max(1.0, count), max(late, default=0.0))

    async def _wait(self) -> None:
        """Until every request is over; time-outs are looked for here."""
        drained_s = math.inf
        while not self._done.is_set():
            now = self.now()
            if drained_s == math.inf and (self._stopped or self._next >= len(self.plan)):
                drained_s = now + self.config.drain_s
            if now >= drained_s:
                return
            self._sweep(now)
            try:
                await asyncio.wait_for(self._done.wait(), min(_SWEEP_S, max(0.001, drained_s - now)))
            except TimeoutError:
                continue

    def _sweep(self, now: float) -> None:
        """End what is over its limit. Requests are held in the order of sending: the first young one ends it."""
        expired = []
        for began_s, connection in self._inflight.values():
            if connection is None:
                continue
            if now - began_s <= self.config.request_timeout_s:
                break
            expired.append(connection)
        for connection in expired:
            connection.abort("timeout")

    def _dispatch(self) -> None:
        requests = self.plan.requests
        started = 0
        while self._next < len(requests) and not self._stopped:
            request = requests[self._next]
            wait_s = request.scheduled_s - self.now()
            if wait_s > 0.0:
                # Rounded up: the loop rounds to its own milliseconds, and early is worse than late.
                self._timer = self._loop.call_later(math.ceil(wait_s * 1000.0) / 1000.0, self._dispatch)
                return
            if started >= _DISPATCH_MAX:
                self._timer = self._loop.call_soon(self._dispatch)
                return
            started += 1
            self._next += 1
            if len(self._inflight) >= self.config.inflight_max:
                self._waiting.append(request)
            else:
                self._start(request)

    def _start(self, request: PlannedRequest) -> None:
        where = request.index % len(self.targets)
        idle = self._idle[where]
        while idle:
            connection = idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                self._send(connection, request)
                return
        self._connect(request, where)

    def _send(self, connection: Connection, request: PlannedRequest) -> None:
        self._inflight[request.index] = (self.now(), connection)
        connection.send(request, self._records[request.index])

    def _connect(self, request: PlannedRequest, where: int) -> None:
        self._inflight[request.index] = (self.now(), None)
        self._connecting[request.index] = self._loop.create_task(self._open_and_send(request, where))

    async def _open_and_send(self, request: PlannedRequest, where: int) -> None:
        address = self.targets[where]
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self.config.connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self, where), address.host, address.port
                )
        except (OSError, TimeoutError):
            pass
        finally:
            self._connecting.pop(request.index, None)
        if connection is not None and connection.transport is not None:
            self._open.add(connection)
            self._inflight.pop(request.index, None)  # again at the end: the order is that of sending
            self._send(connection, request)
            return
        record = self._records[request.index]
        record.error, record.last_s = "connect", self.now()
        self.finished(record)

    # Called by connections
    def free(self, connection: Connection) -> None:
        """A connection may carry the next request."""
        if not self._waiting:
            self._idle[connection.target].append(connection)
            return
        if len(self.targets) == 1:
            self._send(connection, self._waiting.popleft())
            return
        self._idle[connection.target].append(connection)
        self._start(self._waiting.popleft())

    def forget(self, connection: Connection) -> None:
        """A connection is closed."""
        self._open.discard(connection)
        idle = self._idle[connection.target]
        if connection in idle:
            idle.remove(connection)
        self._start_waiting()

    def retry(self, request: PlannedRequest, record: Record, connection: Connection) -> None:
        """A reused connection was closed before any byte of the answer: once more on a fresh one."""
        self._open.discard(connection)
        record.sent_s = None
        self._inflight.pop(request.index, None)
        self._connect(request, connection.target)

    def finished(self, record: Record) -> None:
        """A request is over."""
        self._inflight.pop(record.index, None)
        if record.verdict is Verdict.OK:
            self._ok += 1
        else:
            self._failed += 1
        if record.error == "connect":
            self._start_waiting()
        self._check_done()

    def _start_waiting(self) -> None:
        if self._waiting and len(self._inflight) < self.config.inflight_max and not self._done.is_set():
            self._start(self._waiting.popleft())

    def _check_done(self) -> None:
        if self._stopped:
            self._waiting.clear()
        if not self._inflight and not self._waiting and (self._stopped or self._next >= len(self.plan)):
            self._done.set()

    async def _close(self) -> None:
        self._done.set()
        self._waiting.clear()
        connecting = list(self._connecting.values())
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)
        for connection in tuple(self._open):
            connection.abort("unfinished")
        for record in self._records:
            if not record.complete and not record.error:
                record.error = "unfinished"
        for _ in range(_CLOSE_TURNS):
            if not self._open:
                break
            await asyncio.sleep(0)

    async def _watch_lag(self) -> None:
        while True:
            due = time.monotonic() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            # The timer's own resolution is not lag.
            lag = max(0.0, time.monotonic() - due - 0.001)
            self._lag[0] += lag
            self._lag[1] = max(self._lag[1], lag)
            self._lag[2] += 1.0

    async def _report(self) -> None:
        while self._on_progress is not None:
            self._report_now()
            await asyncio.sleep(self.config.progress_s)

    def progress(self) -> Progress:
        return Progress(
            elapsed_s=self.now(),
            duration_s=self.plan.duration_s,
            planned=len(self.plan),
            sent=self._next - len(self._waiting),
            inflight=len(self._inflight),
            waiting=len(self._waiting),
            ok=self._ok,
            failed=self._failed,
            events=self.events,
        )

    def _report_now(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress())
