"""Kinds of requests that one replica rejects are tried by probes, clients' requests only where probes cannot."""

from __future__ import annotations

from random import Random

import pytest

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.domain.request import Outcome, RequestFacts
from exaserve.scheduling import Placement, Scheduler, SchedulerConfig
from exaserve.serving.trials import Trials

CHAT, OTHER = "/v1/chat/completions", "/v1/responses"
BAD = ReplicaId("r0")
TRIAL = (BAD, "m", CHAT)


def shunning(route: str = CHAT) -> Scheduler:
    """Three replicas, of which ``BAD`` rejects what is sent to ``route``."""
    scheduler = Scheduler(SchedulerConfig(policy="round_robin", reject_shun_s=10.0), Random(0))
    for k in range(3):
        scheduler.add(ReplicaSpec(ReplicaId(f"r{k}"), f"http://h{k}", models=("m",)), 0.0)
        scheduler.set_health(ReplicaId(f"r{k}"), True, "")
    for _ in range(12):
        send(scheduler, 0.0, route)
    assert scheduler.shunned() == {("m", route): (BAD,)}
    return scheduler


def send(scheduler: Scheduler, now: float, route: str = CHAT) -> ReplicaId:
    placed = scheduler.place(RequestFacts(model="m", prompt_tokens=10, route=route), now)
    assert isinstance(placed, Placement)
    bad = placed.replica_id == BAD
    scheduler.release(placed, now, Outcome.REJECTED if bad else Outcome.COMPLETED)
    return placed.replica_id


def test_rejected_probes_spare_clients_and_a_good_one_after_them_ends_it() -> None:
    scheduler = shunning()
    trials = Trials(scheduler, {CHAT}, 5.0)
    for now in range(1, 100):
        for trial in trials.due(float(now), 8):
            assert trial == TRIAL
            assert not trials.finished(trial, 400, float(now), 5.0)
        assert send(scheduler, float(now)) != BAD
    assert trials.due(101.0, 8) == [TRIAL]
    assert trials.finished(TRIAL, 200, 101.0, 5.0)
    assert scheduler.shunned() == {}
    assert BAD in {send(scheduler, 101.0) for _ in range(3)}
    scheduler.validate()


@pytest.mark.parametrize("status", [200, 429, 500, None])
def test_what_does_not_show_the_rejection_leaves_the_trial_to_a_client(status: int | None) -> None:
    scheduler = shunning()
    trials = Trials(scheduler, {CHAT}, 5.0)
    for now in (1.0, 6.0):
        assert trials.due(now, 8) == [TRIAL]
        assert not trials.finished(TRIAL, status, now, 5.0)
    assert scheduler.shunned()
    assert BAD in {send(scheduler, 11.0) for _ in range(3)}


def test_each_is_asked_once_in_a_round_and_no_more_than_there_is_room_for() -> None:
    trials = Trials(shunning(), {CHAT}, 5.0)
    assert trials.due(1.0, 0) == []
    assert trials.due(1.1, 8) == [TRIAL]
    assert trials.due(5.9, 8) == []
    assert trials.due(6.0, 8) == [TRIAL]


def test_kinds_without_a_probe_are_left_to_clients() -> None:
    assert Trials(shunning(OTHER), {CHAT}, 5.0).due(1.0, 8) == []


def test_a_probe_that_ends_after_the_replica_was_forgiven_changes_nothing() -> None:
    scheduler = shunning()
    trials = Trials(scheduler, {CHAT}, 5.0)
    assert trials.due(1.0, 8) == [TRIAL]
    scheduler.forgive(*TRIAL)
    assert not trials.finished(TRIAL, 400, 2.0, 5.0)
    assert scheduler.shunned() == {}
