"""One replica under supervision: its life cycle driven by its process, its probes, and the verbs it is given.

One task per unit. Everything that can happen (the process ends, a verb comes, a hang is seen) sets one event, and the
task looks at what is true then; so nothing is lost between two awaits, and no callback changes the state.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Literal

from exaserve.agent.host import EngineHost, RunningEngine
from exaserve.agent.lifecycle import HAS_PROCESS, UnitEvent, UnitState, transition
from exaserve.agent.plan import UnitPlan
from exaserve.agent.policy import HangWatch, RestartPolicy, diagnose, telling
from exaserve.agent.sampler import Sample, Sampler
from exaserve.agent.state_folder import Hold
from exaserve.agent.tasks import where_failed
from exaserve.config import AgentSettings
from exaserve.domain.errors import ConfigError
from exaserve.engines.fetch import Fetched, Fetcher
from exaserve.engines.probe import ask_completion, ask_models, reason_of
from exaserve.observe import EventLog

__all__ = ["ReplicaUnit"]

Wish = Literal["run", "stop", "restart"]
_LOOK_MIN_S, _LOOK_MAX_S = 0.02, 1.0
"""Pauses between probes of an engine that loads: short at first, since small ones are quick."""
_STRIKES_MAX = 2
"""Bad probes in a row after which a ready replica is called not ready."""
_ALARM_PAUSE_S = 0.5
"""Between two probes for what an engine's log says: its lines may come fast, and from clients."""
_DRAIN_LOOK_S = 0.05
_HELD = "stopped by an operator, until exaserve restart"
_BROKEN_PAUSE_S = 1.0
"""After an error of the supervision itself, so that one that comes at every turn does not take a core."""


class ReplicaUnit:
    """Supervises one replica from :meth:`start` to :meth:`close`.

    Args:
        on_change: called after each change of state or readiness.
        clock: monotonic seconds.
        api_key: what the engine wants as bearer token from probes and samples, "" for none.
        held: what an operator asked for before; a restart verb ends it.

    Attributes:
        state / reason: of the life cycle.
        well: whether the last probes were good.
        restarts: after failures, since the agent began.
        exits: ends that nobody had asked for since then, by cause.
        spec: as gateways are told; the engine's own list of models adds adapters and the context length.
    """

    def __init__(
        self,
        plan: UnitPlan,
        settings: AgentSettings,
        host: EngineHost,
        log: EventLog,
        rng: Random,
        on_change: Callable[[ReplicaUnit], None],
        clock: Callable[[], float] = time.monotonic,
        api_key: str = "",
        held: Hold | None = None,
    ) -> None:
        self.plan = plan
        self.spec = plan.spec
        self.state = UnitState.STOPPED
        self.reason = _HELD if held == "stop" else "not started yet"
        self.well = False
        self.restarts = 0
        self.exits: Counter[str] = Counter()
        self.engine: RunningEngine | None = None
        self.sampler = Sampler(plan.spec, clock, api_key)
        self.last_words: list[str] = []
        self._settings = settings
        self._host = host
        self._log = log
        self._rng = rng
        self._on_change = on_change
        self._clock = clock
        self._api_key = api_key
        self._policy = RestartPolicy(
            settings.restarts_max, settings.backoff_s, settings.backoff_max_s, settings.restart_window_s
        )
        self._hang = HangWatch(settings.hang_s)
        self._fetcher: Fetcher | None = None
        self._dialect = 0
        self._wish: Wish = "stop" if held == "stop" else "run"
        self._drain = held == "drain"
        self._drain_s = settings.drain_s
        self._drain_until = 0.0
        self._event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._was_ready = False
        self._again = False
        self._closing = False
        self._failure = ""

    # ---- for the agent ------------------------------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        return self.state is UnitState.READY and self.well

    @property
    def serving(self) -> bool:
        """Whether its figures are worth sampling."""
        return self.state in (UnitState.READY, UnitState.DRAINING)

    @property
    def held(self) -> bool:
        """Whether an operator keeps it from taking requests."""
        return self._drain or self._wish == "stop"

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def ask(self, verb: str, drain_s: float | None = None) -> str:
        """A life-cycle verb; returns what will be done about it. ValueError for an unknown one."""
        if self._closing:
            return f"{self.spec.id}: ends for good, nothing else is done"
        if drain_s is not None and drain_s >= 0.0:
            self._drain_s = drain_s
        else:
            self._drain_s = self._settings.drain_s
        if verb == "start":
            self._policy.forget()
            self._again = True
            self._wish, self._drain = "run", False
        elif verb == "stop":
            self._wish = "stop"
        elif verb == "restart":
            self._policy.forget()
            self._again = True
            self._wish, self._drain = "restart", False
        elif verb == "drain":
            self._drain = True
        elif verb == "resume":
            self._drain = False
        else:
            raise ValueError(f"unknown verb {verb!r}")
        self._log.info("verb", replica=self.spec.id, verb=verb, state=self.state.value)
        self._poke()
        return f"{self.spec.id}: {verb} (was {self.state.value})"

    def _poke(self) -> None:
        """Something happened. A probe under way is cut short where this life is over."""
        self._event.set()
        if self._fetcher is not None and self._fetcher.busy and self._over():
            self._fetcher.close()

    def describe(self, plan: UnitPlan) -> None:
        """Another description of the same process: what gateways are told of it."""
        found, planned = self.spec, self.plan.spec
        self.plan = plan
        models = found.models if plan.spec.models == planned.models else plan.spec.models
        self.spec = replace(plan.spec, models=models, max_model_len=plan.spec.max_model_len or found.max_model_len)
        self._on_change(self)

    def hurry(self) -> None:
        """No draining any more."""
        self._drain_s = 0.0
        self._drain_until = 0.0

    async def close(self, drain_s: float) -> None:
        """Drain, stop, and end the supervision; returns when no process is left."""
        self._drain_s = drain_s
        self._wish = "stop"
        self._closing = True
        self._poke()
        if self._task is None:
            return
        try:
            await asyncio.wait([self._task])  # it returns once it is stopped
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._end_engine()

    def sampled(self, sample: Sample) -> None:
        """Told of each sample: one sign among others of whether the engine hangs."""
        report = sample.report
        tokens = (report.prompt_tokens_total or 0.0) + (report.generation_tokens_total or 0.0)
        known = report.prompt_tokens_total is not None or report.generation_tokens_total is not None
        self._hang.sampled(report.running, tokens if known else None, self._clock())
        if self.state is UnitState.READY and self._hang.hung(self._clock()):
            self._event.set()

    # ---- life ---------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        """Supervises to the end. What nobody foresaw ends this life of the engine, is told at once, and goes on."""
        while True:
            try:
                await self._supervise()
                return
            except Exception as error:  # noqa: BLE001 -- a replica that nobody watches would be the worst of all ends
                self._log.error("supervision_failed", replica=self.spec.id, error=where_failed(error))
                self._failure = f"the agent's own error: {error!r}"
                await self._end_engine()
                if self._closing:
                    return
                if self.state not in (UnitState.STOPPED, UnitState.FAILED):
                    self.state = transition(self.state, UnitEvent.BROKE)
                    self.reason = self._failure
                await asyncio.sleep(_BROKEN_PAUSE_S)

    async def _supervise(self) -> None:
        """From any state without a process."""
        while True:
            if self.state is UnitState.BACKOFF:
                await self._after_failure()
            if self.state is UnitState.FAILED:
                while not self._again and self._asked() != "stop":
                    await self._pause(None)
                if self._asked() == "stop":
                    self._move(UnitEvent.STOP, "asked to")
            while self._asked() == "stop":
                if self._closing:
                    return
                if self.reason != _HELD:
                    self.reason = _HELD
                    self._on_change(self)
                await self._pause(None)
            self._wish, self._again = "run", False
            self._move(UnitEvent.START, "asked to" if not self.restarts else f"restart {self.restarts}")
            await self._one_life()

    def _asked(self) -> Wish:
        """A method, since the wish may change in every await."""
        return self._wish

    async def _one_life(self) -> None:
        """From STARTING to STOPPED or BACKOFF. Whatever happens, no process is left when it returns."""
        self.last_words = []
        self._was_ready = False
        self.well = False
        self.spec = self.plan.spec
        why = ""
        try:
            self.engine = await self._host.start(self.plan, self._poke)
            self._move(UnitEvent.SPAWNED, f"pid {self.engine.pid}" if self.engine.pid else "inside this process")
            self._fetcher = Fetcher(self.spec.url, clock=self._clock, api_key=self._api_key)
            why = await self._load() or await self._warm() or await self._serve()
        except (ConfigError, OSError) as error:
            why = str(error)
        finally:
            ended = self.engine.ended() if self.engine is not None else ""
            asked = self._wish != "run"
            if asked and self.state is UnitState.STARTING:
                self._move(UnitEvent.STOP, "asked to")
            elif self.state in HAS_PROCESS and not ended:
                self._move(UnitEvent.STOP, why or "asked to")
            await self._end_engine()
        self._failure = ended or why
        broke = self.state is UnitState.STOPPING and not asked
        self._move(UnitEvent.BROKE if broke else UnitEvent.EXITED, self._failure or "asked to")

    async def _load(self) -> str:
        """Probes until the first completion. Returns why it did not come, "" where it did."""
        end = self._clock() + self._settings.start_timeout_s
        pause_s, result, told = _LOOK_MIN_S, "", ""
        while self._clock() < end:
            result = await self._probe()
            if why := self._over():
                return why
            if result.startswith("status ") and result != told:  # "refused" is what every engine says while it loads
                told = result
                self.reason = f"probe: {result}"
                self._log.info("replica_probe", replica=self.spec.id, why=self.reason)
                self._on_change(self)
            if not result:
                self._move(UnitEvent.ANSWERED, "answered a completion")
                return ""
            await self._pause(pause_s * (0.75 + 0.5 * self._rng.random()))
            if why := self._over():
                return why
            pause_s = min(pause_s * 1.5, _LOOK_MAX_S)
        return f"no completion within {self._settings.start_timeout_s:g} s of its start: {result}"

    async def _warm(self) -> str:
        for number in range(self._settings.warm_requests if self.plan.engine != "null" else 0):
            result = await self._probe()
            if why := self._over():
                return why
            if result:
                return f"warming request {number + 1} failed: {result}"
        await self._list()
        if why := self._over():
            return why
        self._hang.reset(self._clock())
        self._was_ready = self.well = True
        self._move(UnitEvent.WARMED, "answers in time")
        return ""

    async def _serve(self) -> str:
        strikes = 0
        interval_s = self._settings.probe_interval_s
        probe_at = self._clock() + interval_s * self._rng.random()
        asked_at = 0.0
        while True:
            if why := self._over():
                return why if self.engine is not None and self.engine.ended() else await self._drained(why)
            if self._drain is not (self.state is UnitState.DRAINING):
                self._move(UnitEvent.DRAIN if self._drain else UnitEvent.RESUME, "asked to")
            if (hung := self._hang.hung(self._clock())) and self.state is UnitState.READY:
                self._log.error("replica_hangs", replica=self.spec.id, why=hung)
                return f"hangs: {hung}"
            alarm = self.engine is not None and self.engine.alarm and self._clock() - asked_at >= _ALARM_PAUSE_S
            if self._clock() < probe_at and not alarm:
                await self._pause(probe_at - self._clock())
                continue
            if alarm and self.engine is not None:
                self.engine.alarm = False
            asked_at = self._clock()
            result = await self._probe()
            strikes = strikes + (_STRIKES_MAX if alarm else 1) if result else 0
            probe_at = self._clock() + (interval_s if not strikes else min(0.5, interval_s))
            if not result:
                self._hang.probed_well(self._clock())
                await self._list()
            self._judge(strikes, result)

    def _judge(self, strikes: int, result: str) -> None:
        well = strikes < _STRIKES_MAX
        if well != self.well and self.state is UnitState.READY:
            self.well = well
            self.reason = "answers again" if well else f"probe: {result}"
            self._log.event("info" if well else "warning", "replica_probe", replica=self.spec.id, why=self.reason)
            self._on_change(self)

    async def _drained(self, why: str) -> str:
        """Takes it out of rotation, waits until nothing runs or the time is over. Returns ``why``."""
        if self.state is UnitState.READY:
            self._move(UnitEvent.DRAIN, why)
        self._drain_until = self._clock() + self._drain_s
        quiet = 0
        while (left_s := self._drain_until - self._clock()) > 0 and self.engine is not None and not self.engine.ended():
            # A sample may be older than the last placement; two in a row, taken after the gateways know, are not.
            await asyncio.sleep(min(max(_DRAIN_LOOK_S, 1.25 * self._settings.interval_s), left_s))
            busy = self.sampler.busy()
            quiet = 0 if busy is None or busy else quiet + 1
            if quiet >= 2:
                break
        return why

    async def _after_failure(self) -> None:
        diagnosis = diagnose(telling(self.last_words, 50))
        restart = self._policy.failed(self._failure, diagnosis, self._was_ready, self._clock())
        self.reason = restart.reason
        self.exits[diagnosis.cause or "other"] += 1
        for line in telling(self.last_words, 8):
            self._log.warning("last_words", replica=self.spec.id, line=line)
        if restart.delay_s is None:
            self._move(UnitEvent.GIVE_UP, restart.reason)
            return
        self._log.warning("replica_restarts", replica=self.spec.id, in_s=restart.delay_s, why=restart.reason)
        self._on_change(self)
        end = self._clock() + restart.delay_s
        while self._clock() < end and self._wish == "run":
            await self._pause(end - self._clock())
        if self._wish == "stop":
            self._move(UnitEvent.STOP, "asked to")
        else:
            self.restarts += 1

    async def _end_engine(self) -> None:
        """Never raises: a stop that fails is told, what is left of the engine holds its port."""
        engine, self.engine = self.engine, None
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        self.sampler.close()
        if engine is not None:
            try:
                await engine.stop()
            except Exception as error:  # noqa: BLE001 -- see above
                self._log.error("stop_failed", replica=self.spec.id, error=where_failed(error))
            self.last_words = engine.tail(200)

    # ---- small --------------------------------------------------------------------------------------------------
    def _over(self) -> str:
        """Why this life ends now, "" while it goes on."""
        if self.engine is not None and (how := self.engine.ended()):
            return how
        return "asked to" if self._wish != "run" else ""

    async def _pause(self, timeout_s: float | None) -> None:
        """Until something happens, at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return
        self._event.clear()

    async def _probe(self) -> str:
        """One completion, or the engine's end or a verb before it; "" where it was good."""
        model = self.spec.models[0] if self.spec.models else ""
        fetched, worked = await ask_completion(self._ask, model, self.spec.engine, self._dialect)
        self._dialect = worked or 0
        if worked is not None:
            return ""
        return fetched.error or f"status {fetched.status} {reason_of(fetched.status, fetched.body)}"

    async def _list(self) -> None:
        """Takes over what the engine lists beside the model it was started for: adapters come and go."""
        planned = self.plan.spec
        if self.plan.engine == "null" or not planned.models:
            return
        _, cards = await ask_models(self._ask)
        served = planned.models[0]
        names = dict.fromkeys(card.id for card in cards or ())
        if served not in names:
            return  # it does not speak of models as the cluster file does
        lengths = [card.max_model_len for card in cards or () if card.max_model_len]
        models = (served, *(name for name in names if name != served))
        length = planned.max_model_len or (min(lengths) if lengths else 0)
        if (models, length) != (self.spec.models, self.spec.max_model_len):
            self.spec = replace(self.spec, models=models, max_model_len=length)
            self._log.info("replica_models", replica=self.spec.id, models=",".join(models), max_model_len=length)
            self._on_change(self)

    async def _ask(self, method: str, path: str, body: bytes) -> Fetched:
        assert self._fetcher is not None
        future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()

        def done(result: Fetched) -> None:
            if not future.done():
                future.set_result(result)

        fetcher = self._fetcher
        fetcher.start(method, path, done, timeout_s=self._settings.probe_timeout_s, body=body)
        return await future

    def _move(self, event: UnitEvent, reason: str) -> None:
        state = transition(self.state, event)
        self._log.event(
            "warning" if state in (UnitState.BACKOFF, UnitState.FAILED) else "info",
            "replica_state",
            replica=self.spec.id,
            state=state.value,
            was=self.state.value,
            why=reason,
        )
        self.state = state
        self.reason = reason
        if state is not UnitState.READY and state is not UnitState.DRAINING:
            self.well = False
        self._on_change(self)
