"""What replicas show, in virtual time: who takes nothing, and what has to be done about it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exaserve.domain.replica import ModelCard, ReplicaId, ReplicaSpec, Report
from exaserve.domain.request import Outcome, RequestFacts
from exaserve.health import FailureKind, HealthConfig
from exaserve.scheduling import Placement, Scheduler, SchedulerConfig
from exaserve.serving.fleet import Fleet
from exaserve.serving.member import ChangeKind

CONFIG = HealthConfig()
INTERVAL_S = 0.2


def named(index: int) -> ReplicaId:
    return ReplicaId(f"r{index}")


R = named(0)


class World:
    """Some replicas that report all the time, unless a test says otherwise."""

    def __init__(self, count: int = 2, *, models: tuple[str, ...] = ("m",), config: HealthConfig = CONFIG) -> None:
        self.now = 100.0
        self.rings = 0
        self.scheduler = Scheduler(SchedulerConfig(), Random(0))
        self.fleet = Fleet(self.scheduler, config, self._ring)
        self.seq = 0
        self.figures: dict[ReplicaId, dict[str, float]] = {}
        for index in range(count):
            self.fleet.add(ReplicaSpec(named(index), f"http://h:{index}", models), self.now)
            self.fleet.probed(named(index), True, "ok", self.now, 0.01)
            self.figures[named(index)] = {"running": 0, "waiting": 0, "kv_use": 0.0, "prompt_tokens_total": 100.0}
        self.pass_(1.0)
        self.fleet.take()

    def _ring(self) -> None:
        self.rings += 1

    def pass_(self, seconds: float, *, silent: frozenset[ReplicaId] = frozenset()) -> None:
        """Reports, ticks and looks, as a gateway's timers make them; probes that are due stay so."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += INTERVAL_S
            for replica in self.figures.keys() - silent:
                self.report(replica)
            self.fleet.tick(self.now)
            self.fleet.look(self.now, INTERVAL_S)
            self.fleet.validate()

    def report(self, replica: ReplicaId, **figures: float) -> None:
        self.figures[replica].update(figures)
        self.seq += 1
        self.now += 1e-6
        self.fleet.report(Report(replica, self.seq, self.now, **self.figures[replica]), self.now)  # type: ignore[arg-type]

    def place(self, prompt_tokens: int = 100) -> Placement:
        placed = self.scheduler.place(RequestFacts("m", prompt_tokens, 10, stream=True), self.now)
        assert isinstance(placed, Placement)
        return placed

    def place_on(self, replica: ReplicaId, prompt_tokens: int = 100) -> Placement:
        others = [each for each in self.scheduler.states() if each != replica]
        placed = self.scheduler.place(RequestFacts("m", prompt_tokens, 10, stream=True), self.now, others)
        assert isinstance(placed, Placement)
        return placed

    def probe(self, replica: ReplicaId, status: int | None = 200, latency_s: float = 0.01) -> None:
        self.fleet.probe_started(replica)
        self.now += latency_s
        self.fleet.probe_finished(replica, self.now, status=status, latency_s=latency_s)

    def kinds(self) -> list[ChangeKind]:
        return [change.kind for change in self.fleet.take()]

    def eligible(self, replica: ReplicaId = R) -> bool:
        return self.scheduler.states()[replica].eligible


def test_the_scheduler_knows_at_once_and_the_shell_when_it_is_its_turn():
    world = World()
    for _ in range(CONFIG.failures_max):
        world.fleet.failed(R, FailureKind.CONNECT, world.now)
    assert not world.eligible()
    assert world.rings == 2, "once for the start, once for this"
    (change,) = world.fleet.take()
    assert (change.kind, change.replica) == (ChangeKind.DOWN, R)
    assert "3 failures in a row" in change.why
    assert world.fleet.take() == []


# ---- silence -----------------------------------------------------------------------------------------------------
def test_a_replica_whose_figures_stop_gets_nothing_new_until_they_come_again():
    world = World(3)
    world.pass_(CONFIG.silent_s - INTERVAL_S, silent=frozenset({R}))
    assert world.eligible()
    world.pass_(3 * INTERVAL_S, silent=frozenset({R}))
    assert not world.eligible()
    assert world.eligible(named(1))
    assert world.kinds() == [ChangeKind.WITHHELD]
    assert R in world.fleet.due(world.now), "a probe is to tell whether it lives"
    world.pass_(INTERVAL_S)
    assert world.eligible()
    assert world.kinds() == [ChangeKind.GIVEN_BACK]


def test_figures_that_an_agent_confirms_are_not_silent_and_end_a_silence():
    world = World(3)
    for _ in range(30):
        world.pass_(INTERVAL_S, silent=frozenset({R}))
        world.seq += 1
        world.fleet.confirm([R], world.seq, world.now, world.now)
    assert world.eligible()
    world.pass_(CONFIG.silent_s + 2 * INTERVAL_S, silent=frozenset({R}))
    assert not world.eligible()
    world.seq += 1
    world.fleet.confirm([R], world.seq, world.now, world.now)
    world.pass_(INTERVAL_S, silent=frozenset({R}))
    assert world.eligible()


def test_a_replica_that_answers_works_without_figures():
    world = World(3)
    world.pass_(CONFIG.silent_s + 2 * INTERVAL_S, silent=frozenset({R}))
    assert not world.eligible()
    world.probe(R)
    assert world.eligible()
    world.pass_(20.0, silent=frozenset({R}))
    assert world.eligible(), "it has proved that its figures say nothing of it"


def test_a_replica_that_never_gave_figures_is_not_missed():
    world = World(1)
    world.fleet.add(ReplicaSpec(named(7), "http://h:7", ("m",)), world.now)
    world.fleet.probed(named(7), True, "ok", world.now, 0.01)
    world.pass_(20.0)
    assert world.eligible(named(7))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_where_most_are_silent_it_is_not_they(count):
    world = World(count)
    everyone = frozenset(world.figures)
    world.pass_(20.0, silent=everyone)
    assert all(world.eligible(replica) for replica in everyone)


def test_after_a_pause_of_our_own_nobody_is_blamed():
    world = World(3)
    world.now += 60.0  # this process stood still
    world.fleet.look(world.now, INTERVAL_S)
    assert world.eligible()
    world.report(named(1))
    world.report(named(2))
    world.fleet.look(world.now, INTERVAL_S)
    assert world.eligible()
    world.pass_(CONFIG.silent_s + 3 * INTERVAL_S, silent=frozenset({R}))
    assert not world.eligible()


def test_a_replica_that_comes_back_is_not_silent_by_figures_of_before():
    world = World(3)
    for _ in range(CONFIG.failures_max):
        world.fleet.failed(R, FailureKind.RESET, world.now)
    world.pass_(6.0, silent=frozenset({R}))
    world.probe(R)
    world.probe(R)
    assert world.eligible()
    world.pass_(6.0, silent=frozenset({R}))
    assert world.eligible()


# ---- hangs -------------------------------------------------------------------------------------------------------
def test_waiting_without_progress_is_a_hang_whatever_probes_say():
    world = World()
    world.report(R, waiting=5)
    world.pass_(CONFIG.hang_s - 1.0)
    assert world.eligible()
    world.pass_(2.0)
    assert not world.eligible()
    change = next(change for change in world.fleet.take() if change.kind is ChangeKind.WITHHELD)
    assert "5 wait, none runs" in change.why
    world.probe(R)
    assert not world.eligible()
    world.report(R, running=2, prompt_tokens_total=120.0)
    assert world.eligible()


def test_confirmed_figures_hang_too():
    world = World(3)
    world.report(R, waiting=5)
    for _ in range(int(CONFIG.hang_s / INTERVAL_S) + 2):
        world.pass_(INTERVAL_S, silent=frozenset({R}))
        world.seq += 1
        world.fleet.confirm([R], world.seq, world.now, world.now)
    assert not world.eligible()


@pytest.mark.parametrize("moves", ["prompt_tokens_total", "kv_use", "generation_tokens_total"])
def test_whatever_moves_is_no_hang(moves):
    world = World()
    world.figures[R] |= {"waiting": 5, moves: 0.0 if moves == "kv_use" else 200.0}
    for _ in range(100):
        world.pass_(INTERVAL_S)
        world.figures[R][moves] += 0.001
    assert world.eligible()


# ---- busy is not dead --------------------------------------------------------------------------------------------
def test_rising_kv_use_is_progress_for_probes_that_are_not_answered():
    """A long prompt is computed in pieces: no token counter moves for a minute, the KV cache fills."""
    world = World()
    for _ in range(6):
        world.fleet.probe_started(R)
        for _ in range(25):
            world.pass_(INTERVAL_S)
            world.figures[R] |= {"running": 1, "kv_use": world.figures[R]["kv_use"] + 0.001}
        world.fleet.probe_finished(R, world.now, status=None, latency_s=5.0, error="no answer within 5 s")
        assert world.eligible()


def frozen(world: World, replica: ReplicaId) -> None:
    for _ in range(3):
        limit_s = world.fleet.probe_started(replica)
        world.pass_(limit_s)
        world.fleet.probe_finished(replica, world.now, status=None, latency_s=limit_s, error="no answer")
        if not world.fleet.view(replica).available:
            return
    raise AssertionError("not ejected")


def test_requests_leave_a_replica_that_shows_no_work():
    world = World()
    placement = world.place_on(R)
    frozen(world, R)
    assert world.kinds() == [ChangeKind.DOWN, ChangeKind.LEAVE]
    world.scheduler.release(placement, world.now, Outcome.REPLICA_FAILED)


def test_requests_stay_where_work_was_seen_a_moment_ago_and_leave_when_it_stops():
    world = World()
    placement = world.place_on(R)
    world.report(R, prompt_tokens_total=500.0)
    for _ in range(CONFIG.failures_max):
        world.fleet.failed(R, FailureKind.STATUS_5XX, world.now)
    assert world.kinds() == [ChangeKind.DOWN]
    world.pass_(CONFIG.probe_limit_s + 1.0)
    assert world.kinds() == [ChangeKind.LEAVE]
    world.pass_(CONFIG.probe_limit_s)
    assert world.kinds() == [ChangeKind.LEAVE], "again while it stays: retries are a share of requests"
    world.scheduler.release(placement, world.now, Outcome.REPLICA_FAILED)
    world.pass_(10.0)
    assert world.kinds() == []


def test_plain_requests_leave_too_though_their_prefill_should_be_over():
    world = World()
    placed = world.scheduler.place(RequestFacts("m", 100, 10, stream=False), world.now, [named(1)])
    assert isinstance(placed, Placement)
    world.pass_(5.0)
    frozen(world, R)
    assert ChangeKind.LEAVE in world.kinds()
    world.scheduler.release(placed, world.now, Outcome.REPLICA_FAILED)


def test_a_long_prompt_is_given_as_long_as_it_may_take():
    world = World()
    placement = world.place_on(R, prompt_tokens=100_000)
    work_s = placement.work_s
    assert work_s > 5.0
    world.report(R, running=1, kv_use=0.1)
    began = world.now
    for _ in range(CONFIG.failures_max):
        world.fleet.failed(R, FailureKind.STATUS_5XX, world.now)
    world.pass_(work_s)
    assert ChangeKind.LEAVE not in world.kinds()
    world.pass_(CONFIG.probe_limit_s + 1.0)
    assert ChangeKind.LEAVE in world.kinds()
    assert world.now - began < work_s + CONFIG.probe_limit_s + 2.0
    world.scheduler.release(placement, world.now, Outcome.REPLICA_FAILED)


# ---- restarts ----------------------------------------------------------------------------------------------------
def listing(*names: str, length: int = 4096) -> tuple[ModelCard, ...]:
    return tuple(ModelCard(name, length, f"/models/{name}") for name in names)


def test_a_restarted_engine_is_asked_what_it_serves_before_it_takes_traffic():
    world = World(models=())
    member = world.fleet.members()[R]
    assert world.fleet.models_due(member, world.now)
    assert world.fleet.listed(R, listing("old"), world.now)
    world.fleet.listed(named(1), listing("old"), world.now)
    assert not world.fleet.models_due(member, world.now + 1.0)
    assert world.scheduler.ready_models() == ("old",)
    world.report(R, prompt_tokens_total=0.0)
    assert world.kinds() == [ChangeKind.RESTARTED, ChangeKind.DOWN]
    assert not world.eligible()
    assert world.fleet.models_due(member, world.now)
    world.fleet.probe_started(R)
    world.fleet.listed(R, listing("new", length=100), world.now)
    world.fleet.probe_finished(R, world.now, status=200, latency_s=0.01)
    assert world.eligible()
    assert world.scheduler.states()[R].spec.models == ("new",)
    assert world.scheduler.states()[R].spec.max_model_len == 100
    assert set(world.fleet.cards()) == {"new", "old"}


def test_an_engine_that_has_come_back_by_probes_is_not_taken_out_again_by_its_first_report():
    world = World()
    for _ in range(CONFIG.failures_max):
        world.fleet.failed(R, FailureKind.RESET, world.now)
    world.pass_(3.0, silent=frozenset({R}))
    assert world.fleet.models_due(world.fleet.members()[R], world.now), "whoever comes back may be another"
    world.probe(R)
    world.probe(R)
    assert world.eligible()
    world.fleet.take()
    world.report(R, prompt_tokens_total=0.0)
    assert world.eligible()
    assert world.kinds() == [ChangeKind.RESTARTED]


def test_late_reports_are_no_restarts():
    """An agent that stood still sends on what it had before others were asked."""
    world = World()
    world.report(R, prompt_tokens_total=500.0)
    world.fleet.take()
    old = Report(R, world.seq + 1, world.now - 1.0, prompt_tokens_total=100.0)
    world.fleet.report(old, world.now)
    assert world.kinds() == []
    assert world.eligible()


def test_what_an_agent_watches_is_asked_by_its_agent():
    world = World()
    world.fleet.told(R, "ready", world.now, ready=True)
    world.fleet.take()
    world.report(R, prompt_tokens_total=0.0)
    assert world.kinds() == [ChangeKind.RESTARTED]
    assert world.eligible()


# ---- too good to be true -----------------------------------------------------------------------------------------
def busy(world: World, seconds: float) -> None:
    held = [world.place() for _ in range(4 * len(world.figures))]
    for _ in range(int(seconds / INTERVAL_S)):
        world.pass_(INTERVAL_S)
    for placement in held:
        world.scheduler.release(placement, world.now, Outcome.COMPLETED)


def test_a_replica_that_always_looks_empty_is_suspect_though_only_kv_use_is_known():
    world = World(8)
    world.scheduler.set_policy("round_robin")
    for replica, figures in world.figures.items():
        figures["kv_use"] = 0.0 if replica == R else 0.5
    busy(world, 3.0)
    assert world.fleet.suspects == {R}
    assert world.scheduler.states()[R].standing.suspicion == CONFIG.suspicion
    assert ChangeKind.SUSPECT in world.kinds()
    world.figures[R]["kv_use"] = 0.5
    world.pass_(40.0)
    assert world.fleet.suspects == frozenset()
    assert world.scheduler.states()[R].standing.suspicion == 1.0


def test_idle_twins_are_not_suspect():
    world = World(8)
    for index, figures in enumerate(world.figures.values()):
        figures["kv_use"] = 0.0 if index == 0 else 0.5 + 0.001 * index
    world.pass_(5.0)
    assert world.fleet.suspects == frozenset()


# ---- membership --------------------------------------------------------------------------------------------------
def test_a_new_description_keeps_what_was_learned():
    world = World(models=())
    world.fleet.listed(R, listing("m", "adapter"), world.now)
    world.fleet.update(ReplicaSpec(R, "http://h:0", weight=0.5))
    spec = world.scheduler.states()[R].spec
    assert (spec.models, spec.max_model_len, spec.weight) == (("adapter", "m"), 4096, 0.5)
    assert world.fleet.cards()["adapter"] == ModelCard("adapter", 4096, "/models/adapter")


class FleetMachine(RuleBasedStateMachine):
    """Any order of events: all tables agree, and nothing is left of a replica that was removed."""

    replicas = st.sampled_from([named(index) for index in range(4)])

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.seq = 0
        self.rung = False
        self.scheduler = Scheduler(SchedulerConfig(), Random(0))
        self.fleet = Fleet(self.scheduler, HealthConfig(), self.ring)
        self.placed: list[Placement] = []
        for index in range(3):
            self.fleet.add(ReplicaSpec(named(index), f"http://h:{index}", ("m",)), self.now)

    def ring(self) -> None:
        assert not self.rung, "rung once until it is heard"
        self.rung = True

    @rule(replica=replicas, models=st.sampled_from([(), ("m",), ("n",)]))
    def join(self, replica, models):
        if replica not in self.fleet:
            self.fleet.add(ReplicaSpec(replica, "http://h:1", models), self.now)

    @rule(replica=replicas)
    def leave(self, replica):
        if replica in self.fleet:
            self.fleet.remove(replica)
            assert replica not in self.scheduler.states()
            assert replica not in self.fleet.health
            assert replica not in self.fleet.members()
            assert replica not in self.fleet.suspects
            assert replica not in self.fleet._guard
            assert replica not in {*self.fleet._leaving, *self.fleet._stuck, *self.fleet._suspects}
            assert all(change.replica != replica for change in self.fleet._changes)

    @rule(replica=replicas, models=st.sampled_from([(), ("m",), ("n",)]))
    def describe(self, replica, models):
        if replica in self.fleet:
            self.fleet.update(ReplicaSpec(replica, "http://h:1", models))

    @rule(replica=replicas, names=st.sampled_from([(), ("m",), ("n", "o")]))
    def lists(self, replica, names):
        self.fleet.listed(replica, listing(*names), self.now)
        assert set(self.fleet.cards()) == set(self.scheduler.models())

    @rule(
        replica=replicas,
        age_s=st.floats(0, 3),
        running=st.sampled_from([None, 0, 3]),
        waiting=st.sampled_from([None, 0, 2]),
        kv_use=st.sampled_from([None, 0.0, 0.5]),
        tokens=st.sampled_from([None, 0.0, 5.0, 9.0]),
    )
    def report(self, replica, age_s, running, waiting, kv_use, tokens):
        self.seq += 1
        figures = {"running": running, "waiting": waiting, "kv_use": kv_use, "generation_tokens_total": tokens}
        self.fleet.report(Report(replica, self.seq, self.now - age_s, **figures), self.now)

    @rule(replica=replicas)
    def confirm(self, replica):
        self.seq += 1
        self.fleet.confirm([replica], self.seq, self.now, self.now)

    @rule(replica=replicas)
    def refuse(self, replica):
        self.fleet.unreachable(replica)

    @rule(replica=replicas)
    def restart(self, replica):
        self.fleet.restarted(replica, "another process", self.now)

    @rule(replica=replicas, ready=st.booleans())
    def tell(self, replica, ready):
        self.fleet.told(replica, "word", self.now, ready=ready)

    @rule(replica=replicas)
    def lose(self, replica):
        self.fleet.word_lost(replica, "agent gone", self.now)

    @rule(replica=replicas, kind=st.sampled_from([*FailureKind, None]))
    def answer(self, replica, kind):
        if kind is None:
            self.fleet.succeeded(replica, self.now)
        else:
            self.fleet.failed(replica, kind, self.now)

    @rule(status=st.sampled_from([200, 429, 500, None]), latency_s=st.floats(0, 6), times=st.integers(1, 4))
    def probe(self, status, latency_s, times):
        for _ in range(times):
            for replica in self.fleet.due(self.now):
                self.fleet.probe_started(replica)
                self.fleet.probe_finished(replica, self.now, status=status, latency_s=latency_s)

    @rule(replica=replicas)
    def probe_of_one_that_leaves(self, replica):
        if replica in self.fleet.due(self.now):
            self.fleet.probe_started(replica)
            self.fleet.remove(replica)
            self.fleet.probe_finished(replica, self.now, status=200, latency_s=0.1)

    @rule(tokens=st.integers(1, 100_000))
    def place(self, tokens):
        result = self.scheduler.place(RequestFacts("m", tokens, 10, stream=True), self.now)
        if isinstance(result, Placement):
            self.placed.append(result)

    @rule()
    def release(self):
        if self.placed:
            self.scheduler.release(self.placed.pop(), self.now, Outcome.COMPLETED)

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds):
        self.now += seconds
        self.fleet.tick(self.now)
        self.fleet.look(self.now, INTERVAL_S)

    @rule()
    def take(self):
        self.rung = False
        for change in self.fleet.take():
            assert change.replica in self.fleet

    @invariant()
    def holds(self):
        if hasattr(self, "fleet"):
            self.fleet.validate()
            self.scheduler.validate()


TestFleetMachine = FleetMachine.TestCase
TestFleetMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
