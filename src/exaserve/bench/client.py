"""An HTTP load client: raw ``asyncio.Protocol`` and httptools, meant for uvloop.

**Open loop** (the default): requests are sent when the plan says so, whatever the server does. Connections are kept
alive and reused, newest first; where none is free another is opened, up to ``inflight_max``; above it requests wait,
and the wait counts, since latency counts from the scheduled time. Turns of a conversation are due after the answer
before them. **Closed loop**: a fixed number of lanes, each of which asks again as soon as it has its answer.

Per streamed event the cost is one parser pass, one count (see ``events``) and one clock reading. The instants of a
record are read on arrival of the bytes. A request is due by a timer of some ten microseconds' grain (see ``timer``) and
never sent early.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import math
import ssl
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence

from exaserve.bench.load import LoadConfig, LoadResult, Progress
from exaserve.bench.record import Ending, Record
from exaserve.bench.timer import Alarm
from exaserve.bench.wire import LoadConnection, Target, target
from exaserve.workload import LoadPlan, PlannedRequest, percentile

__all__ = ["LoadClient"]

_DISPATCH_MAX = 128
"""Requests started in one go, so that a late dispatcher still lets answers be read."""
_SWEEP_S = 0.25
_CLOSE_TURNS = 100
"""Turns of the event loop that aborted connections get to say goodbye; one or two suffice."""
_LAG_PERIOD_S = 0.02
_LAG_SAMPLES_MAX = 500_000
_RECENT_MAX = 2_000
"""First tokens told with one progress report; more are not needed to draw a live figure."""
_FAILED_PAUSE_S = 0.1
"""A lane of the closed loop rests so long after a failure."""
_HEAD_STEP = 0x9E3779B97F4A7C15


class LoadClient:
    """Sends one plan to one endpoint, once.

    Example::

        client = LoadClient(LoadConfig(urls=(url,), renderer=BodyRenderer("m")), plan)
        result = await client.run()

    Args:
        on_progress: called every ``progress_s`` and once at the end; must not block.
    """

    def __init__(
        self, config: LoadConfig, plan: LoadPlan, on_progress: Callable[[Progress], None] | None = None
    ) -> None:
        self.config = config
        self.renderer = config.renderer
        self.plan = plan
        self.targets: Sequence[Target] = tuple(target(url, config.renderer.path, config.headers) for url in config.urls)
        self.events = 0
        self._on_progress = on_progress
        self._closed = config.concurrency > 0
        self._records = [] if self._closed else [_blank(r) for r in plan.requests]
        # What waits for an answer has no instant yet; everything else is due in this order.
        self._due = () if self._closed else tuple(r for r in plan.requests if r.after < 0)
        self._followers: dict[int, list[PlannedRequest]] = {}
        if not self._closed:
            for request in plan.requests:
                if request.after >= 0:
                    self._followers.setdefault(request.after, []).append(request)
        self._later: list[tuple[float, int, PlannedRequest]] = []
        self._pending_turns = sum(len(each) for each in self._followers.values())
        self._idle: list[list[LoadConnection]] = [[] for _ in self.targets]
        self._open: set[LoadConnection] = set()
        self._inflight: dict[int, tuple[float, LoadConnection | None]] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: deque[PlannedRequest] = deque()
        self._next = 0
        self._ok = self._failed = self._cut = 0
        self._recent: list[tuple[str, float]] = []
        self._context: ssl.SSLContext | None = None
        if any(each.tls for each in self.targets):
            self._context = self._tls()  # reads files, so not while requests are due
        self._waited = 0
        self._fault: ValueError | None = None
        self._lag_recent_s = 0.0
        self._lags = array("d")
        self._started_at = 0.0
        self._stopped = False
        self._done = asyncio.Event()
        self._timer: asyncio.Handle | None = None
        self._alarm: Alarm | None = None

    @property
    def records(self) -> list[Record]:
        """Records so far; those of open requests fill up while they run."""
        return self._records

    def now(self) -> float:
        """Seconds from the start of the run."""
        return time.monotonic() - self._started_at

    def stop(self) -> None:
        """Send nothing more; what is in flight may still end within ``drain_s``."""
        self._stopped = True
        self._check_done()

    async def run(self) -> LoadResult:
        """Send the plan and wait for the answers. Cancelling it closes every connection.

        Raises:
            ValueError: a request's body cannot be made.
        """
        self._loop = asyncio.get_running_loop()
        start_at = self.config.start_at
        if start_at is not None and start_at > time.monotonic():
            await asyncio.sleep(start_at - time.monotonic())
        self._started_at = time.monotonic() if start_at is None else start_at
        cpu_s, began = time.process_time(), time.monotonic()
        self._alarm = Alarm(self._loop, self._dispatch)
        tasks = [asyncio.ensure_future(self._watch_lag()), asyncio.ensure_future(self._report())]
        try:
            if self._closed:
                for _ in range(self.config.concurrency):
                    self._next_in_lane()
            else:
                self._dispatch()
            self._check_done()
            await self._wait()
            if self._fault is not None:
                raise self._fault
        finally:
            elapsed = self.now()
            cpu_share = (time.process_time() - cpu_s) / max(time.monotonic() - began, 1e-9)
            if self._timer is not None:
                self._timer.cancel()
            self._alarm.close()
            self._alarm = None
            for task in tasks:
                task.cancel()
            await self._close()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._report_now()
        lags = sorted(self._lags)
        late = (r.sent_s - r.scheduled_s for r in self._records if r.sent_s is not None)
        return LoadResult(
            self._records,
            elapsed,
            lag_max_s=max(lags, default=0.0),
            lag_mean_s=math.fsum(lags) / max(1, len(lags)),
            late_max_s=max(late, default=0.0),
            lag_p99_s=percentile(lags, 0.99) if lags else 0.0,
            cpu_share=cpu_share,
            waited=self._waited,
            started_at=self._started_at,
        )

    async def _wait(self) -> None:
        """Until every request is over; time-outs are looked for here."""
        drained_s = math.inf
        while not self._done.is_set():
            now = self.now()
            if drained_s == math.inf and self._all_sent(now):
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

    def _all_sent(self, now: float) -> bool:
        """Nothing more will be due, or (of turns that wait for answers) the plan's time is over."""
        if self._stopped:
            return True
        if self._closed:
            return now >= self.plan.duration_s or self._lanes_used_up()
        turns_left = self._pending_turns > 0 and now < self.plan.duration_s
        return self._next >= len(self._due) and not self._later and not turns_left

    def _dispatch(self) -> None:
        """Start what is due, then set the alarm for the next request."""
        due, later = self._due, self._later
        started = 0
        if self._alarm is None:
            return
        while not self._stopped:
            next_s = due[self._next].scheduled_s if self._next < len(due) else math.inf
            if later and later[0][0] < next_s:
                next_s = later[0][0]
            if next_s == math.inf:
                return
            if next_s > self.now():
                self._alarm.set(self._started_at + next_s)
                return
            if started >= _DISPATCH_MAX:
                self._timer = self._loop.call_soon(self._dispatch)
                return
            started += 1
            if later and later[0][0] <= next_s:
                request = heapq.heappop(later)[2]
            else:
                request = due[self._next]
                self._next += 1
            if len(self._inflight) >= self.config.inflight_max:
                self._waiting.append(request)
                self._waited += 1
            else:
                self._start(request)

    def _lanes_used_up(self) -> bool:
        limit = self.config.requests_max
        return limit is not None and self._next >= limit

    def _next_in_lane(self) -> None:
        """A lane of the closed loop asks again: the plan's requests in turn, with new heads from the second round."""
        now = self.now()
        if self._stopped or now >= self.plan.duration_s or self._lanes_used_up() or not self.plan.requests:
            return
        rounds, place = divmod(self._next, len(self.plan.requests))
        base = self.plan.requests[place]
        head = (base.head + rounds * _HEAD_STEP) % (1 << 60)
        request = dataclasses.replace(base, index=self._next, scheduled_s=now, head=head, after=-1)
        self._next += 1
        self._records.append(_blank(request))
        self._start(request)

    def _follow(self, record: Record) -> None:
        """An answer has ended: the turn after it is due after its pause, or never, where the answer was none."""
        for request in self._followers.pop(record.index, ()):
            mine = self._records[request.index]
            if record.verdict is not Ending.OK or self._stopped:
                mine.error = "earlier_turn" if record.verdict is not Ending.OK else "unfinished"
                mine.scheduled_s = mine.last_s = self.now()
                self._pending_turns -= 1
                self._failed += 1
                self._follow(mine)
                continue
            self._pending_turns -= 1
            mine.scheduled_s = self.now() + request.think_s
            if mine.scheduled_s >= self.plan.duration_s:
                self._forget_turn(mine)
                continue
            heapq.heappush(self._later, (mine.scheduled_s, request.index, request))
            if self._later[0][1] == request.index:
                self._dispatch()

    def _forget_turn(self, record: Record) -> None:
        """A turn that would be due after the end of the run, with those after it, was never asked."""
        record.error = "unfinished"
        for request in self._followers.pop(record.index, ()):
            self._pending_turns -= 1
            later = self._records[request.index]
            later.scheduled_s = record.scheduled_s
            self._forget_turn(later)

    def _start(self, request: PlannedRequest) -> None:
        where = request.index % len(self.targets)
        idle = self._idle[where]
        while idle:
            connection = idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                self._send(connection, request)
                return
        self._connect(request, where)

    def _send(self, connection: LoadConnection, request: PlannedRequest) -> None:
        self._inflight[request.index] = (self.now(), connection)
        try:
            connection.send(request, self._records[request.index])
        except ValueError as error:  # a body that cannot be made: the run is not what was planned
            self._fault = error
            self._done.set()

    def _connect(self, request: PlannedRequest, where: int) -> None:
        self._inflight[request.index] = (self.now(), None)
        self._connecting[request.index] = self._loop.create_task(self._open_and_send(request, where))

    async def _open_and_send(self, request: PlannedRequest, where: int) -> None:
        address = self.targets[where]
        connection: LoadConnection | None = None
        try:
            async with asyncio.timeout(self.config.connect_timeout_s):
                _, connection = await self._loop.create_connection(
                    lambda: LoadConnection(self, where),
                    address.host,
                    address.port,
                    ssl=self._tls() if address.tls else None,
                )
        except (OSError, TimeoutError):
            pass  # ssl.SSLError is an OSError
        finally:
            self._connecting.pop(request.index, None)
        if connection is not None and connection.transport is not None:
            self._open.add(connection)
            self._inflight.pop(request.index, None)  # again at the end: the order is that of sending
            self._records[request.index].connected_s = self.now()
            self._send(connection, request)
            return
        record = self._records[request.index]
        record.error, record.last_s = "connect", self.now()
        self.finished(record)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self.config.ca_file or None)
            if not self.config.tls_verify:
                self._context.check_hostname = False
                self._context.verify_mode = ssl.CERT_NONE
        return self._context

    # Called by connections
    def free(self, connection: LoadConnection) -> None:
        """A connection may carry the next request."""
        if not self._waiting:
            self._idle[connection.target].append(connection)
            return
        if len(self.targets) == 1:
            self._send(connection, self._waiting.popleft())
            return
        self._idle[connection.target].append(connection)
        self._start(self._waiting.popleft())

    def forget(self, connection: LoadConnection) -> None:
        """A connection is closed."""
        self._open.discard(connection)
        idle = self._idle[connection.target]
        if connection in idle:
            idle.remove(connection)
        self._start_waiting()

    def retry(self, request: PlannedRequest, record: Record, connection: LoadConnection) -> None:
        """A reused connection was closed before any byte of the answer: once more on a fresh one."""
        self._open.discard(connection)
        record.sent_s = record.connected_s = None
        self._inflight.pop(request.index, None)
        self._connect(request, connection.target)

    def first_token(self, record: Record) -> None:
        """The first token of an answer has come."""
        if len(self._recent) < _RECENT_MAX and record.ttft_s is not None:
            self._recent.append((record.scenario, record.ttft_s))

    def finished(self, record: Record) -> None:
        """A request is over."""
        self._inflight.pop(record.index, None)
        verdict = record.verdict
        if verdict is Ending.OK:
            self._ok += 1
        else:
            self._failed += 1
            self._cut += verdict is Ending.CUT
        if self._followers:
            self._follow(record)
        if self._closed:
            # Not at once: a connection that carried the answer is free for the next request only after this. And a
            # server that refuses is not asked as fast as it can refuse.
            pause_s = 0.0 if verdict is Ending.OK else _FAILED_PAUSE_S
            self._loop.call_later(pause_s, self._next_in_lane_and_check)
        elif record.error == "connect":
            self._start_waiting()
        self._check_done()

    def _next_in_lane_and_check(self) -> None:
        if not self._done.is_set():
            self._next_in_lane()
            self._check_done()

    def _start_waiting(self) -> None:
        if self._waiting and len(self._inflight) < self.config.inflight_max and not self._done.is_set():
            self._start(self._waiting.popleft())

    def _check_done(self) -> None:
        if self._stopped:
            self._waiting.clear()
        if not self._inflight and not self._waiting and self._all_sent(self.now()):
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
            self._lag_recent_s = max(self._lag_recent_s, lag)
            if len(self._lags) < _LAG_SAMPLES_MAX:
                self._lags.append(lag)

    async def _report(self) -> None:
        while self._on_progress is not None:
            self._report_now()
            await asyncio.sleep(self.config.progress_s)

    def progress(self) -> Progress:
        return Progress(
            elapsed_s=self.now(),
            duration_s=self.plan.duration_s,
            planned=max(self._next, self.config.requests_max or 0) if self._closed else len(self.plan),
            sent=self._ok + self._failed + len(self._inflight),
            inflight=len(self._inflight),
            waiting=len(self._waiting),
            ok=self._ok,
            failed=self._failed,
            events=self.events,
            cut=self._cut,
            recent=tuple(self._recent),
            lag_s=self._lag_recent_s,
        )

    def _report_now(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress())
            self._recent.clear()
            self._lag_recent_s = 0.0


def _blank(request: PlannedRequest) -> Record:
    return Record(
        request.index,
        request.scenario,
        request.scheduled_s,
        request.prompt_tokens,
        request.output_tokens,
        request.session,
    )
