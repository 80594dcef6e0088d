"""One emulated replica: the engine model driven by the event loop's clock, its listener, and its faults."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from exaserve.config import join_address
from exaserve.emulator.ask import ModelLimits
from exaserve.emulator.faults import Faults, merge
from exaserve.emulator.http import Connection, HttpRequest
from exaserve.emulator.metrics import Exposition, Stats
from exaserve.perfmodel.engine import EngineModel, EngineRequest, FinishReason

if TYPE_CHECKING:
    from exaserve.emulator.answers import AnswerChoice, EngineAnswer
    from exaserve.emulator.config import EmulatorConfig
    from exaserve.perfmodel import EngineProfile

__all__ = ["Replica"]

STEPS_PER_TURN = 32
"""Steps that one turn of the event loop may catch up on, so that sockets are served in between."""

REOPEN_TRIES = 50
REOPEN_S = 0.1
"""Tries to listen again after a fault, and seconds between them."""

RESET_DELAY_S = 0.02
"""Between the last bytes of an answer and its reset, so that the client has seen them."""

LAG_MAX_S = 0.25
"""A replica further behind the clock than this (a busy machine) drops the lag instead of catching up."""


class Replica:
    """One replica. Everything runs on the loop's thread; times are ``time.monotonic`` seconds.

    Args:
        index: its number in the process.
        host / port: where it listens; port 0 takes a free one at the first :meth:`open` and keeps it.
        dispatch: answers a request (:func:`exaserve.emulator.routes.dispatch`).
    """

    def __init__(
        self,
        index: int,
        config: EmulatorConfig,
        profile: EngineProfile,
        host: str,
        port: int,
        dispatch: Callable[[Replica, Connection, HttpRequest], None],
    ) -> None:
        self._dispatch = dispatch
        self.index = index
        self.config = config
        self.host, self.port = host, port
        self.body_bytes_max = config.body_bytes_max
        self.limits = ModelLimits(
            names=config.names,
            max_model_len=profile.max_model_len,
            block_size=profile.block_size,
            seed=config.seed,
            output_tokens_mean=config.output_tokens_mean,
        )
        self._profile = profile
        self.faults = Faults()
        self.frozen_metrics = b""
        self.connections: set[Connection] = set()
        self.restarts = 0
        self.requests_total = 0
        self.alive = False
        self.rng = random.Random(config.seed * 7919 + index)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._timer: asyncio.Handle | None = None
        self._reload: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._new_engine()

    def _new_engine(self) -> None:
        """An engine as after a start: empty cache, counters at zero."""
        config = self.config
        self.engine = EngineModel(
            self._profile, watermark=config.watermark, prefix_caching=config.prefix_caching, speed=config.speed
        )
        self.engine.slow = self.faults.slow
        self.stats = Stats(self._profile.max_model_len)
        self.created = time.time()
        self.exposition = Exposition(
            self.engine, self.stats, config.names[0], config.metrics_size, self.created, config.utilization
        )
        self.answers: set[EngineAnswer] = set()
        self._step_end = 0.0

    @property
    def url(self) -> str:
        return f"http://{join_address(self.host, self.port)}"

    @property
    def load_s(self) -> float:
        """Seconds from a restart to ready."""
        load = self._profile.load_s if self.config.load_s is None else self.config.load_s
        return load / self.config.speed

    # -- listener ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Listens. OSError where the address is taken."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            Connection.factory(self), self.host, self.port, backlog=1024, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.alive = True

    def _shut(self) -> None:
        """Stops listening at once; connections stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def close(self) -> None:
        """Ends everything; not to be opened again."""
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        self._die(reset=False)

    def _reopen(self) -> None:
        self._reload = None
        if self._server is None and self._loop is not None:
            task = self._loop.create_task(self._open_again())
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def _open_again(self) -> None:
        """Listens on the old address, waiting for it if something else holds it for a moment."""
        for _ in range(REOPEN_TRIES):
            with contextlib.suppress(OSError):
                await self.open()
                return
            await asyncio.sleep(REOPEN_S)

    # -- the engine on the clock ------------------------------------------------------------------------------------

    def submit(self, answer: EngineAnswer) -> None:
        """Starts an answer whose request was read and found good; the engine sees it after what its server costs."""
        self.answers.add(answer)
        answer.on_complete = self.answers.discard
        answer.connection.on_gone = lambda: self.abort(answer)
        answer.start()
        floor_s = self._profile.first_s / self.config.speed
        if floor_s:
            assert self._loop is not None
            self._loop.call_later(floor_s, self._reach_engine, answer)
        else:
            self._reach_engine(answer)

    def _reach_engine(self, answer: EngineAnswer) -> None:
        if answer not in self.answers:  # its client left, or the process died
            return
        now = time.monotonic()
        for choice in answer.choices:
            self.engine.submit(choice.request, now)
        if self._timer is None and not self.faults.freeze:
            assert self._loop is not None
            # In the loop's next turn, so that requests that arrive together share the first step.
            self._timer = self._loop.call_soon(self._kick)

    def abort(self, answer: EngineAnswer) -> None:
        """The client is gone: the answer's blocks are free at once."""
        now = time.monotonic()
        self.answers.discard(answer)
        for choice in answer.choices:
            self._abort(choice, now)

    def _abort(self, choice: AnswerChoice, now: float) -> None:
        request = choice.request
        if self.engine.abort(request, now):
            request.reason = FinishReason.ABORT
            self.stats.finish(request, self.engine.outputs(request), request.output_tokens, choice.answer.job.n)

    def _kick(self) -> None:
        """Begins a step if the engine stands still and there is work."""
        self._timer = None
        if self.faults.freeze or not self.alive:
            return
        now = time.monotonic()
        if self.engine.busy:
            self._step_end = max(self._step_end, now)
            self._sleep(now)
        elif self._begin(now):
            self._sleep(now)

    def _begin(self, now: float) -> bool:
        end = self.engine.begin_step(now)
        if end is None:
            return False
        self._step_end = end
        return True

    def _sleep(self, now: float) -> None:
        assert self._loop is not None
        delay = self._step_end - now
        # The loop's timers count whole milliseconds; shorter waits go through its ready queue.
        if delay < 0.0005:
            self._timer = self._loop.call_soon(self._turn)
        else:
            self._timer = self._loop.call_later(delay, self._turn)

    def _turn(self) -> None:
        """Ends the step that is due, and those after it that are due by now."""
        self._timer = None
        if self.faults.freeze or not self.alive:
            return
        now = time.monotonic()
        if now - self._step_end > LAG_MAX_S:
            self._step_end = now
        for _ in range(STEPS_PER_TURN):
            if self._step_end > now + 0.0005:
                break
            end = self._step_end
            self._finish_step(end)
            if not self._begin(end):
                return
        self._sleep(now)

    def _finish_step(self, end: float) -> None:
        engine = self.engine
        result = engine.end_step(end)
        self.stats.step(result, end)
        request: EngineRequest
        for request in result.first:
            request.tag.begin()
        # A fault may abort requests while this runs.
        for request in list(engine.decoding):
            request.tag.emit()
        for request in result.finished:
            choice = request.tag
            self.stats.finish(request, request.output_tokens, request.output_tokens, choice.answer.job.n)
            choice.finish()

    # -- responder --------------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self.connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def handle(self, connection: Connection, request: HttpRequest) -> None:
        self._dispatch(self, connection, request)

    # -- faults -----------------------------------------------------------------------------------------------------

    def set_faults(self, changes: dict[str, Any]) -> None:
        """Changes the named faults and leaves the others. ConfigError for an unknown name or wrong value."""
        old, new = self.faults, merge(self.faults, changes)
        if new.metrics == "frozen" and old.metrics != "frozen":
            self.frozen_metrics = self.exposition.render()
        self.faults = new
        self.engine.slow = new.slow
        if new.refuse and not old.refuse:
            self._shut()
            for connection in list(self.connections):
                if connection.idle:
                    connection.transport.close()
        elif old.refuse and not new.refuse and self.alive:
            self._reopen()
        if new.freeze and not old.freeze and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif old.freeze and not new.freeze:
            for connection in list(self.connections):
                held = connection.active
                if held is not None and connection.on_gone is None:
                    self.handle(connection, held)
            self._kick_soon()

    def _kick_soon(self) -> None:
        if self._timer is None and self._loop is not None and self.alive:
            self._timer = self._loop.call_soon(self._kick)

    def reset_soon(self, connection: Connection) -> None:
        """Resets a connection once what was written has had time to arrive: a reset drops what is still queued."""
        assert self._loop is not None
        self._loop.call_later(RESET_DELAY_S, connection.reset)

    def clear_faults(self) -> None:
        """Healthy again (a killed replica stays dead until it is restarted)."""
        self.set_faults({name: getattr(Faults(), name) for name in Faults.__struct_fields__})

    def kill(self) -> None:
        """The process dies: connections are reset, nobody listens, all state is lost."""
        if self._reload is not None:
            self._reload.cancel()
            self._reload = None
        self._die(reset=True)

    def _die(self, *, reset: bool) -> None:
        self.alive = False
        self._shut()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for connection in list(self.connections):
            connection.on_gone = None
            if reset:
                connection.reset()
            else:
                connection.transport.close()
        self._new_engine()

    def restart(self, load_s: float | None = None) -> None:
        """Dies and is ready again after ``load_s`` seconds (default: the profile's load time over the speed)."""
        self.kill()
        self.restarts += 1
        assert self._loop is not None
        self.faults = merge(self.faults, {"refuse": False})
        self._reload = self._loop.call_later(self.load_s if load_s is None else load_s, self._reopen)

    def state(self) -> dict[str, Any]:
        """What ``GET /emulator/state`` shows."""
        engine, pool = self.engine, self.engine.pool
        return {
            "replica": self.index,
            "url": self.url,
            "alive": self.alive,
            "listening": self._server is not None,
            "faults": {name: getattr(self.faults, name) for name in Faults.__struct_fields__},
            "running": engine.running_count,
            "waiting": len(engine.waiting),
            "kv_use": engine.kv_use,
            "blocks": pool.total,
            "blocks_free": pool.free,
            "blocks_cached": pool.cached,
            "steps": engine.steps_total,
            "preemptions": engine.preemptions_total,
            "aborts": engine.aborts_total,
            "requests": self.requests_total,
            "connections": len(self.connections),
            "restarts": self.restarts,
        }
