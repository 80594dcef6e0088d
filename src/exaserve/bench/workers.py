"""One run in several processes, so that the client is never the limit, and that drawing a table never delays a request.

The plan is dealt out (turns of one conversation stay together), every process has a load client of its own, all begin
at the same instant of the machine's monotonic clock, and their records are put together in the plan's order.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from typing import Any

from exaserve.bench.client import LoadClient
from exaserve.bench.load import LoadConfig, LoadResult, Progress
from exaserve.bench.record import Record
from exaserve.domain.errors import ExaServeError
from exaserve.workload import LoadPlan, PlannedRequest

__all__ = ["deal", "run_load"]

_READY_S = 60.0
_LEAD_S = 0.1
"""From the word to go until the first instant of the run."""
_CHUNK = 5_000
"""Records in one message."""
_JOIN_S = 5.0


def deal(plan: LoadPlan, count: int) -> list[tuple[LoadPlan, list[int]]]:
    """``count`` plans, each with the places that its requests have in the whole one."""
    owners: list[int] = []
    roots = 0
    for request in plan.requests:
        if request.after >= 0:
            owners.append(owners[request.after])
        else:
            owners.append(roots % count)
            roots += 1
    hands: list[list[PlannedRequest]] = [[] for _ in range(count)]
    places: list[list[int]] = [[] for _ in range(count)]
    local: list[int] = []
    for request, owner in zip(plan.requests, owners, strict=True):
        index = len(hands[owner])
        local.append(index)
        after = local[request.after] if request.after >= 0 else -1
        hands[owner].append(dataclasses.replace(request, index=index, after=after))
        places[owner].append(request.index)
    return [
        (LoadPlan(tuple(hand), plan.duration_s, plan.seed, plan.scenarios), where)
        for hand, where in zip(hands, places, strict=True)
    ]


def _share(total: int, count: int, which: int) -> int:
    return total // count + (which < total % count)


async def run_load(
    config: LoadConfig,
    plan: LoadPlan,
    processes: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> LoadResult:
    """Runs a plan.

    Args:
        processes: load clients, each a process of its own; 0 runs one within this process.
        on_progress: called several times a second with the sums over all.
        stop: when set, nothing more is sent; what is in flight may still end.

    Raises:
        ExaServeError: a load process ended before its time.
    """
    if processes < 1:
        client = LoadClient(config, plan, on_progress)
        task = asyncio.ensure_future(client.run())
        with _stopping(stop, client.stop):
            return await task
    if config.concurrency:
        processes = min(processes, config.concurrency)
    return await _Crew(config, plan, processes, on_progress).run(stop)


@contextlib.contextmanager
def _stopping(stop: asyncio.Event | None, call: Callable[[], None]) -> Any:
    """Calls ``call`` when ``stop`` is set."""

    async def wait() -> None:
        assert stop is not None
        await stop.wait()
        call()

    waiter = asyncio.ensure_future(wait()) if stop is not None else None
    try:
        yield
    finally:
        if waiter is not None:
            waiter.cancel()


def _watch(loop: asyncio.AbstractEventLoop, pipe: Pipe, call: Callable[..., None], *args: object) -> None:
    """Calls back when a message has begun to come."""
    loop.add_reader(pipe.fileno(), call, *args)
    # libuv makes what it polls non-blocking; a message is read and written whole.
    os.set_blocking(pipe.fileno(), True)


class _Crew:
    """The processes of one run, seen from the one that started them."""

    def __init__(
        self, config: LoadConfig, plan: LoadPlan, count: int, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self.on_progress = on_progress
        self.plan = plan
        self.closed = config.concurrency > 0
        self.hands = deal(plan, count)
        self.configs = [
            dataclasses.replace(
                config,
                inflight_max=max(1, _share(config.inflight_max, count, i)),
                concurrency=_share(config.concurrency, count, i),
                requests_max=None if config.requests_max is None else _share(config.requests_max, count, i),
            )
            for i in range(count)
        ]
        self.progress: list[Progress | None] = [None] * count
        self.results: list[LoadResult | None] = [None] * count
        self.records: list[list[Record]] = [[] for _ in range(count)]
        self.pipes: list[Pipe] = []
        self.processes: list[Any] = []
        self.over = asyncio.Event()
        self.failure = ""
        self._told_at = 0.0

    async def run(self, stop: asyncio.Event | None) -> LoadResult:
        loop = asyncio.get_running_loop()
        try:
            await self._start()
            for i, pipe in enumerate(self.pipes):
                _watch(loop, pipe, self._read, i)
            with _stopping(stop, lambda: self._tell("stop")):
                await self.over.wait()
        finally:
            for pipe in self.pipes:
                loop.remove_reader(pipe.fileno())
                pipe.close()
            for process in self.processes:
                # A process that has told its result ends by itself.
                if not self.over.is_set() or self.failure:
                    process.terminate()
            for process in self.processes:
                await asyncio.to_thread(process.join, _JOIN_S)
                if process.is_alive():
                    process.kill()
        if self.failure:
            raise ExaServeError(self.failure)
        return self._together()

    async def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        for config, (plan, _) in zip(self.configs, self.hands, strict=True):
            ours, theirs = context.Pipe()
            process = context.Process(target=_child, args=(theirs, config, plan), daemon=True)
            await asyncio.to_thread(process.start)
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        for pipe in self.pipes:
            try:
                ready = await asyncio.to_thread(pipe.poll, _READY_S) and pipe.recv() == "ready"
            except EOFError:
                ready = False
            if not ready:
                raise ExaServeError("a load process did not start; its message is above")
        self._tell(time.monotonic() + _LEAD_S)

    def _tell(self, what: object) -> None:
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.send(what)

    def _read(self, i: int) -> None:
        try:
            kind, value = self.pipes[i].recv()
        except (EOFError, OSError):
            self.failure = "a load process ended before its time"
            self.over.set()
            return
        if kind == "progress":
            last = self.progress[i]
            if last is not None and self.on_progress is not None:
                # What was not shown yet is not lost when a fast process reports twice.
                value = dataclasses.replace(value, recent=last.recent + value.recent)
            self.progress[i] = value
            self._show()
        elif kind == "records":
            self.records[i] += value
        elif kind == "failed":
            self.failure = value
            self.over.set()
        else:
            self.results[i] = value
            asyncio.get_running_loop().remove_reader(self.pipes[i].fileno())
            if all(result is not None for result in self.results):
                self.over.set()

    def _show(self) -> None:
        now = time.monotonic()
        known = [p for p in self.progress if p is not None]
        if self.on_progress is None or len(known) < len(self.progress) or now - self._told_at < 0.1:
            return
        self._told_at = now
        self.on_progress(_sum(known, self.plan.duration_s))
        self.progress = [dataclasses.replace(p, recent=()) if p is not None else None for p in self.progress]

    def _together(self) -> LoadResult:
        results = [result for result in self.results if result is not None]
        records: list[Record] = []
        for i, (mine, (_, places)) in enumerate(zip(self.records, self.hands, strict=True)):
            for place, record in enumerate(mine):
                record.index = place * len(self.hands) + i if self.closed else places[place]
            records += mine
        records.sort(key=lambda record: record.index)
        if self.on_progress is not None:
            known = [p for p in self.progress if p is not None]
            if known:
                self.on_progress(_sum(known, self.plan.duration_s))
        return LoadResult(
            records,
            elapsed_s=max(r.elapsed_s for r in results),
            lag_max_s=max(r.lag_max_s for r in results),
            lag_mean_s=max(r.lag_mean_s for r in results),
            late_max_s=max(r.late_max_s for r in results),
            lag_p99_s=max(r.lag_p99_s for r in results),
            cpu_share=max(r.cpu_share for r in results),
            waited=sum(r.waited for r in results),
            started_at=min(r.started_at for r in results),
        )


def _sum(parts: Sequence[Progress], duration_s: float) -> Progress:
    return Progress(
        elapsed_s=max(p.elapsed_s for p in parts),
        duration_s=duration_s,
        planned=sum(p.planned for p in parts),
        sent=sum(p.sent for p in parts),
        inflight=sum(p.inflight for p in parts),
        waiting=sum(p.waiting for p in parts),
        ok=sum(p.ok for p in parts),
        failed=sum(p.failed for p in parts),
        events=sum(p.events for p in parts),
        cut=sum(p.cut for p in parts),
        recent=tuple(item for p in parts for item in p.recent),
        lag_s=max(p.lag_s for p in parts),
    )


def _child(pipe: Pipe, config: LoadConfig, plan: LoadPlan) -> None:
    """What a load process does."""
    import signal

    import uvloop

    # Ctrl-C in the terminal reaches every process; the first one says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = uvloop.run(_drive(pipe, config, plan))
    except (EOFError, BrokenPipeError):
        return  # the process that wanted the result is gone
    except (OSError, ValueError) as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        return
    with contextlib.suppress(BrokenPipeError):
        for start in range(0, len(result.records), _CHUNK):
            pipe.send(("records", result.records[start : start + _CHUNK]))
        pipe.send(("result", dataclasses.replace(result, records=[])))


async def _drive(pipe: Pipe, config: LoadConfig, plan: LoadPlan) -> LoadResult:
    loop = asyncio.get_running_loop()
    client = LoadClient(config, plan, lambda progress: pipe.send(("progress", progress)))
    # A collection of millions of records would stop the loop for longer than answers take; cycles are few here.
    gc.collect()
    gc.freeze()
    gc.disable()
    pipe.send("ready")
    start_at = await asyncio.to_thread(pipe.recv)
    client.config = dataclasses.replace(config, start_at=start_at)

    def told() -> None:
        try:
            pipe.recv()
            client.stop()
        except EOFError:
            loop.remove_reader(pipe.fileno())
            client.stop()

    _watch(loop, pipe, told)
    try:
        return await client.run()
    finally:
        loop.remove_reader(pipe.fileno())
