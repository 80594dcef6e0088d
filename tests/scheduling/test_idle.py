"""Of many replicas, those without work are found by name and not by luck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.scheduling.conftest import Build, facts, report, rid

from exaserve.domain.request import Outcome
from exaserve.scheduling import Placement, Scheduler


def place(
    scheduler: Scheduler, now: float = 0.0, prompt: int = 100, but: Sequence[int] = (), model: str = "m"
) -> Placement:
    """A request that must find a place, on none of the replicas ``but``."""
    placement = scheduler.place(facts(prompt, model=model), now, [rid(k) for k in but])
    assert isinstance(placement, Placement)
    return placement


def fill(scheduler: Scheduler, count: int, idle: set[int], prompt: int = 4000) -> dict[int, Placement]:
    """A long prompt on each replica but the ``idle`` ones."""
    placed = {}
    for k in range(count):
        if k not in idle:
            placed[k] = place(scheduler, 0.0, prompt, but=[j for j in range(count) if j != k])
    scheduler.validate()
    return placed


def test_the_only_idle_replica_of_many_gets_the_request(build: Build) -> None:
    for idle in (0, 99, 199):
        scheduler = build(200)
        fill(scheduler, 200, {idle})
        placement = place(scheduler, 0.0)
        assert placement.replica_id == rid(idle)


def test_a_first_byte_makes_idle_again_and_a_report_of_others_work_does_not_leave_it_so(build: Build) -> None:
    scheduler = build(200)
    placed = fill(scheduler, 200, set())
    scheduler.first_token(placed[7], 0.4)
    placement = place(scheduler, 0.5)
    assert placement.replica_id == rid(7)
    scheduler.first_token(placement, 0.6)
    scheduler.first_token(placed[8], 0.6)
    scheduler.report(report(7, 1, 0.7, running=9, waiting=5, kv_use=0.1), 0.7)
    scheduler.validate()
    following = place(scheduler, 0.7)
    assert following.replica_id == rid(8)


def test_idle_replicas_leave_and_return_with_drain_health_and_membership(build: Build) -> None:
    scheduler = build(100)
    fill(scheduler, 100, {3, 4, 5})
    scheduler.drain(rid(3))
    scheduler.set_health(rid(4), False, "down")
    scheduler.validate()
    only = place(scheduler, 0.0)
    assert only.replica_id == rid(5)
    scheduler.release(only, 0.1, Outcome.COMPLETED)
    scheduler.remove(rid(5))
    scheduler.undrain(rid(3))
    scheduler.validate()
    back = place(scheduler, 0.2)
    assert back.replica_id == rid(3)


def test_models_and_homes_may_change_under_the_idle(build: Build) -> None:
    scheduler = build(100)
    for k in range(50):
        spec = scheduler.states()[rid(k)].spec
        scheduler.update(replace(spec, models=("m", "lora")))
    scheduler.validate()
    placement = place(scheduler, model="lora")
    assert int(placement.replica_id[1:]) < 50
    scheduler.peers.set_gateways("a", ["a", "b", "c"])
    scheduler.validate()
    home = place(scheduler, 0.0)
    assert scheduler.states()[home.replica_id].turf.home
    scheduler.peers.set_gateways("a", ["a"])
    scheduler.validate()


def test_sets_of_models_that_are_gone_are_forgotten(build: Build) -> None:
    scheduler = build(3)
    spec = scheduler.states()[rid(0)].spec
    for k in range(300):
        scheduler.update(replace(spec, models=("m", f"lora-{k}")))
        scheduler.validate()
