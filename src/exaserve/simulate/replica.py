# compiled
"""A simulated replica: the engine model in virtual time, and what can be wrong with it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from exaserve.domain.replica import ReplicaId, Report
from exaserve.perfmodel.engine import EngineRequest, SequenceState
from exaserve.perfmodel.runs import RunEngine
from exaserve.simulate.units import SimUnit
from exaserve.simulate.world import Stepper

if TYPE_CHECKING:
    from exaserve.simulate.world import World

__all__ = ["Job", "Mode", "SimReplica"]

CONNECT_S = 2.0


class Mode(Enum):
    UP = "up"
    DOWN = "down"
    """Connections are refused."""
    LOST = "lost"
    """Cut off from the network: new connections time out, open ones are silent."""
    FROZEN = "frozen"
    """Connections are taken, nothing is answered."""


_UP: Final = Mode.UP
_DOWN: Final = Mode.DOWN
_LOST: Final = Mode.LOST
_FROZEN: Final = Mode.FROZEN


class Job(EngineRequest):
    """A request that an engine computes, with somebody to tell."""

    __slots__ = ()

    def on_first(self, now: float) -> None:
        """Its first token is out."""

    def on_done(self, now: float) -> None:
        """Its last token is out."""

    def on_lost(self, now: float, why: str) -> None:
        """The replica could not be reached (``connect``), lost it (``reset``) or answered 5xx (``status_5xx``)."""

    def on_refused(self, now: float) -> None:
        """It can never run there (400)."""


class SimReplica(Stepper):
    """One replica.

    Attributes:
        end: when the step or run of steps under way ends, as far as is known.
        usable: up and not drained by the operator, so that its idle time counts.
        error_share: share of requests answered with 500 at once.
        floor_s: of every first token besides the engine's steps, seconds.
    """

    __slots__ = (
        "draining",
        "end",
        "engine",
        "error_share",
        "floor_s",
        "frozen_at",
        "idle_seen",
        "mode",
        "profile",
        "slow",
        "spec",
        "unit",
        "usable",
        "waiting_seen",
        "world",
    )

    def __init__(self, world: World, unit: SimUnit) -> None:
        super().__init__()
        self.world = world
        self.unit = unit
        self.spec = unit.spec
        self.profile = unit.profile
        self.floor_s = unit.profile.first_s / unit.speed
        self.mode = _UP
        self.slow = 1.0
        self.error_share = 0.0
        self.draining = False
        self.usable = False
        self.end = 0.0
        self.frozen_at = 0.0
        self.waiting_seen = 0
        self.idle_seen = 0
        self.engine = self._new_engine()

    def _new_engine(self) -> RunEngine:
        unit = self.unit
        return RunEngine(unit.profile, prefix_caching=unit.prefix_caching, speed=unit.speed)

    @property
    def id(self) -> ReplicaId:
        return self.spec.id

    @property
    def accepts(self) -> bool:
        """Connections to it are taken, whether or not anything comes back."""
        return self.mode is _UP or self.mode is _FROZEN

    # -- requests ---------------------------------------------------------------------------------------------------
    def submit(self, now: float, job: Job, _: Any = None) -> None:
        """A request arrives."""
        mode = self.mode
        if mode is _DOWN:
            job.on_lost(now, "connect")
            return
        if mode is _LOST:
            self.world.at(now + CONNECT_S, _timed_out, job)
            return
        if self.error_share and self.world.rng.random() < self.error_share:
            job.on_lost(now, "status_5xx")
            return
        engine = self.engine
        try:
            engine.submit(job, now)
        except ValueError:
            job.on_refused(now)
            return
        if mode is _FROZEN:
            self._count(now)
        elif engine.busy:
            self.waiting_seen += 1
            self.world.count(now, 1, 0)
            end = engine.join(now)
            if end != self.end:
                self._step_ends(end)
                self._count(now)
        else:
            end_or_none = engine.begin_run(now)
            if end_or_none is not None:
                self._step_ends(end_or_none)
            self._count(now)

    def abort(self, job: Job, now: float) -> None:
        """The gateway left: its place is free at once."""
        engine = self.engine
        if job.state not in (SequenceState.WAITING, SequenceState.PREFILL, SequenceState.DECODE):
            return
        if engine.busy:
            engine.cut_run(now)
        engine.abort(job, now)
        if engine.busy and self.mode is _UP:
            self._step_ends(engine.replan(now))
        self._count(now)

    def jobs(self) -> list[Job]:
        """Everything it holds, oldest first."""
        return [*self.engine.running, *self.engine.waiting]  # type: ignore[list-item]  # every request here is a Job

    def _step_ends(self, end: float) -> None:
        self.end = end
        self.world.step_at(end, self)

    def step(self, now: float) -> None:
        """The step under way ends."""
        engine = self.engine
        result = engine.end_step(now)
        end = engine.begin_run(now)
        if end is not None:
            self._step_ends(end)
        # Only now: what these calls place must find the engine as it stands after the step.
        waiting = len(engine.waiting)
        if waiting != self.waiting_seen or not engine.decoding:
            self._count(now)
        for job in result.first:
            assert isinstance(job, Job)
            job.on_first(now)
        for job in result.finished:
            assert isinstance(job, Job)
            job.on_done(now)

    def _count(self, now: float) -> None:
        """Tells the world how many wait here, and whether there is nothing to do."""
        engine = self.engine
        waiting = len(engine.waiting)
        idle = 1 if self.usable and not waiting and not engine.running_count else 0
        if waiting != self.waiting_seen or idle != self.idle_seen:
            self.world.count(now, waiting - self.waiting_seen, idle - self.idle_seen)
            self.waiting_seen, self.idle_seen = waiting, idle

    def silent_since(self) -> float | None:
        """Since when it has given no sign of life on open connections, None while it works."""
        return self.frozen_at if self.mode in (_FROZEN, _LOST) else None

    # -- what can happen to it --------------------------------------------------------------------------------------
    def set_usable(self, now: float) -> None:
        """Takes note of a change of ``mode`` or ``draining``."""
        usable = self.mode is _UP and not self.draining
        if usable != self.usable:
            self.usable = usable
            self.world.count(now, 0, 0, 1 if usable else -1)
        self._count(now)

    def fail(self, now: float) -> None:
        """The process is gone: everything in it is lost."""
        jobs = self.jobs()
        self.mode = _DOWN
        self.due = -1.0
        for job in jobs:
            self.engine.abort(job, now)
        self.set_usable(now)
        for job in jobs:
            job.on_lost(now, "reset")

    def start(self, now: float) -> None:
        """A new process with an empty cache; what the old one still held is lost."""
        if self.jobs():
            self.fail(now)
        self.engine = self._new_engine()
        self.engine.slow = self.slow
        self.mode = _UP
        self.due = -1.0
        self.set_usable(now)

    def freeze(self, now: float, mode: Mode = _FROZEN) -> None:
        """Stands still (or, ``LOST``, cannot be reached): nothing comes from it any more."""
        if self.mode is _UP:
            if self.engine.busy:
                self.end = self.engine.cut_run(now)
            self.mode = mode
            self.frozen_at = now
            self.due = -1.0
            self.set_usable(now)

    def thaw(self, now: float) -> None:
        """Goes on where it stood."""
        if self.mode is not _FROZEN:
            return
        self.mode = _UP
        if self.engine.busy:
            self.engine.delay(now - self.frozen_at)
            self._step_ends(self.end + now - self.frozen_at)
        else:
            end = self.engine.begin_run(now)
            if end is not None:
                self._step_ends(end)
        self.set_usable(now)

    def set_slow(self, now: float, factor: float) -> None:
        """Steps take ``factor`` times as long from the next one on."""
        self.slow = factor
        if self.engine.busy and self.mode is _UP:
            self._step_ends(self.engine.cut_run(now))
        self.engine.slow = factor

    # -- telemetry --------------------------------------------------------------------------------------------------
    def report(self, seq: int, now: float, *, ages: bool) -> Report | None:
        """Its metrics as they are now; None where it answers nothing.

        Args:
            ages: whether the mean age of the cache's contents is wanted, which costs a pass over the batch.
        """
        if self.mode is not _UP:
            return None
        engine = self.engine
        engine.advance(now)
        age_ms = None
        if ages:
            since = [now - r.first_token_at for r in engine.running if r.first_token_at >= 0.0]
            age_ms = 1000.0 * sum(since) / len(since) if since else 0.0
        return Report(
            self.spec.id,
            seq,
            now,
            engine.running_count,
            len(engine.waiting),
            engine.kv_use,
            self.profile.kv_tokens_max,
            engine.preemptions_total,
            engine.prefix_hits_total,
            engine.prefix_queries_total,
            engine.prompt_tokens_total,
            engine.generation_tokens_total,
            None,
            age_ms,
            0.0,
        )

    # -- perfect knowledge ------------------------------------------------------------------------------------------
    def wait_s(self, now: float) -> float:
        """Seconds until a prompt that arrives now would begin: the true rest of the step and of the prompts ahead.

        Prompts are taken at what they cost alone; what the batch adds is in :func:`exaserve.simulate.oracle.pick`.
        """
        engine, profile = self.engine, self.profile
        total = 0.0
        if engine.busy:
            total = max(engine.step_end(now) - now, 0.0)
        if engine.waiting or engine.prefilling:
            for tokens in engine.uncomputed():
                total += profile.prefill_s(tokens) * self.slow
        return total


def _timed_out(now: float, job: Job, _: Any) -> None:
    job.on_lost(now, "connect")
