"""Any order of events through the table of a request's life: what is held is given back once, and it ends once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaserve.domain.errors import ConnectFailed, ConnectionLost, InvalidResponse, ReplicaError
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.domain.request import Outcome, RequestFacts
from exaserve.health import HealthConfig, IllegalTransition
from exaserve.scheduling import Admission, AdmissionConfig, Scheduler, SchedulerConfig
from exaserve.serving import transitions as table
from exaserve.serving.config import RetrySettings
from exaserve.serving.dispatcher import Dispatcher
from exaserve.serving.fleet import Fleet
from exaserve.serving.journey import Journey

ERRORS: tuple[type[ReplicaError], ...] = (ConnectFailed, ConnectionLost, InvalidResponse)


class Recorded(Journey):
    """Carries nothing out; keeps what it was asked to do."""

    def __init__(self, dispatcher: Dispatcher, facts: RequestFacts) -> None:
        super().__init__(dispatcher, facts, 10)
        self.effects: list[int] = []

    def perform(self, effect: int, now: float) -> None:
        if effect != table.NOTHING:
            self.effects.append(effect)


def dispatcher(replicas: int = 3, depth: int = 2, queue: int = 3, per_node: int = 0, **retry: Any) -> Dispatcher:
    scheduler = Scheduler(SchedulerConfig(policy="round_robin", queue_depth_max=depth), Random(1))
    fleet = Fleet(scheduler, HealthConfig(), lambda: None)
    for k in range(replicas):
        replica = ReplicaId(f"r{k}")
        fleet.add(
            ReplicaSpec(id=replica, url=f"http://r{k}:1", models=("m",), node=f"n{k // per_node}" if per_node else ""),
            0.0,
        )
        fleet.probed(replica, ok=True, detail="ready", now=0.0, latency_s=0.0)
    return Dispatcher(
        scheduler,
        Admission(AdmissionConfig(queue_max=queue, wait_max_s=5.0)),
        fleet,
        RetrySettings(**retry),
        first_byte_s=10.0,
        between_bytes_s=3.0,
        total_s=60.0,
    )


def begin(desk: Dispatcher, now: float = 1.0, total_s: float = 60.0, model: str = "m") -> Recorded:
    journey = Recorded(desk, RequestFacts(model, 100, 10, stream=True))
    journey.perform(journey.begin(now, total_s), now)
    return journey


def events_of(journey: Recorded) -> list[str]:
    """What an executor can come to tell in this state."""
    legal = {
        table.CONNECTING: ["sent", "failed", "stale"],
        table.WAITING: ["head200", "head400", "head429", "head500", "head503", "failed", "stale"],
        table.RELAYING: ["failed", "ended", "progressed"],
    }.get(journey.state, [])
    if journey.state == table.WAITING and journey.status:
        legal += ["first_byte", "ended"]
    return [*legal, "left", "stopped", "evacuated", "tick", "later"]


def tell(desk: Dispatcher, journey: Recorded, event: str, now: float, error: type[ReplicaError]) -> None:
    if event == "sent":
        journey.sent(now)
    elif event in ("failed", "stale"):
        journey.perform(journey.failed(error("gone"), now, event == "stale"), now)
    elif event.startswith("head"):
        journey.perform(journey.head(int(event[4:]), now), now)
    elif event == "first_byte":
        journey.first_byte(now, stream=True)
    elif event == "progressed":
        journey.progressed(now)
    elif event == "ended":
        journey.perform(journey.ended(None, now), now)
    elif event == "left":
        journey.perform(journey.left(now), now)
    elif event == "stopped":
        journey.perform(journey.stopped(now), now)
    elif event == "evacuated":
        journey.perform(journey.evacuated(now), now)
    else:
        desk.tick(now)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_order_of_events_gives_back_what_it_took_and_ends_once(data: st.DataObject) -> None:
    desk = dispatcher(replicas=data.draw(st.integers(0, 3)), budget_min_per_s=data.draw(st.sampled_from((0.0, 10.0))))
    now = 1.0
    journeys = [begin(desk, now, data.draw(st.sampled_from((1.0, 60.0)))) for _ in range(data.draw(st.integers(1, 9)))]
    for _ in range(data.draw(st.integers(0, 40))):
        journey = data.draw(st.sampled_from(journeys))
        over = journey.state == table.DONE
        before = len(journey.effects)
        event = data.draw(st.sampled_from(events_of(journey)))
        if event == "later":
            now += data.draw(st.sampled_from((0.1, 1.0, 4.0, 11.0)))
        elif over and event == "tick":
            desk.tick(now)
        else:
            tell(desk, journey, event, now, data.draw(st.sampled_from(ERRORS)))
        desk.wake(now)
        desk.validate()
        if over:
            assert len(journey.effects) == before, "no effect after the end"
        for each in journeys:
            ends = [e for e in each.effects if e in (table.ANSWER, table.BREAK, table.END)]
            assert len(ends) == (1 if each.state == table.DONE else 0)
            assert each.deadline <= each.total_at
    desk.stop(now)
    assert not desk.open
    assert len(desk.admission) == 0
    assert all(state.inflight == 0 for state in desk.scheduler.states().values())
    assert all(journey.outcome is not None for journey in journeys)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from((0.5, 2.0, 4.0, 11.0)), max_size=12))
def test_time_alone_ends_every_request_at_its_deadline_at_the_latest(steps: list[float]) -> None:
    desk = dispatcher(replicas=2)
    journeys = [begin(desk, total_s=20.0) for _ in range(8)]
    now = 1.0
    for step in steps:
        now += step
        desk.tick(now)
        for journey in journeys:
            assert journey.state == table.DONE or now < journey.total_at
    desk.stop(now)
    desk.validate()


def test_what_is_not_in_the_table_is_a_mistake_of_the_executor() -> None:
    desk = dispatcher()
    journey = begin(desk)
    with pytest.raises(IllegalTransition, match="FIRST_BYTE cannot lead from CONNECTING"):
        journey.first_byte(1.0, stream=True)


def test_late_events_find_nothing_to_do() -> None:
    desk = dispatcher()
    journey = begin(desk)
    journey.sent(1.0)
    journey.perform(journey.left(1.5), 1.5)
    assert journey.head(200, 2.0) == table.NOTHING
    assert journey.ended(None, 2.0) == table.NOTHING
    assert journey.failed(ConnectionLost("late"), 2.0) == table.NOTHING
    assert journey.expired(99.0) == table.NOTHING
    assert journey.effects == [table.SEND, table.END]


def test_the_clients_own_deadline_blames_no_replica() -> None:
    desk = dispatcher()
    desk.trace = []
    journey = begin(desk, total_s=2.0)
    journey.sent(1.0)
    desk.tick(4.0)
    assert journey.outcome is Outcome.CLIENT_GONE
    assert journey.error is not None
    assert journey.error.code == "deadline_exceeded"
    assert [what for _, _, what, _ in desk.trace] == ["placed", "client_gone"]


def test_one_request_strikes_a_replica_once() -> None:
    desk = dispatcher(replicas=1)
    desk.trace = []
    journey, now = begin(desk), 1.0
    while journey.state != table.DONE:
        if journey.state == table.BACKING_OFF:
            now = journey.deadline
            desk.tick(now)
        else:
            journey.sent(now)
            journey.perform(journey.failed(ConnectionLost("reset"), now), now)
    assert journey.attempts == 3
    assert [what for _, _, what, _ in desk.trace].count("reset") == 1
    assert desk.fleet.member(ReplicaId("r0")).up  # type: ignore[union-attr]  # it is there


@pytest.mark.parametrize("error", [ConnectFailed, ConnectionLost])
def test_a_request_that_lost_its_replica_is_tried_on_other_nodes_first(error: type[ReplicaError]) -> None:
    desk = dispatcher(replicas=8, per_node=4, depth=9)
    journey = begin(desk)
    assert journey.placement is not None
    lost = journey.placement.replica_id
    journey.perform(journey.failed(error("the machine is gone"), 1.0), 1.0)
    assert journey.placement is not None
    assert desk.fleet.beside(lost).isdisjoint(desk.fleet.beside(journey.placement.replica_id))


def test_where_there_is_no_other_node_its_neighbour_takes_it_at_once() -> None:
    desk = dispatcher(replicas=2, per_node=2)
    journey = begin(desk)
    journey.perform(journey.failed(ConnectFailed("refused"), 1.0), 1.0)
    assert journey.state == table.CONNECTING
    assert journey.attempts == 2
