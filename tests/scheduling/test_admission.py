"""The waiting queue: bounds, order, fairness, deadlines; and properties under any order of events."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, facts

from exaserve.domain.errors import QueueFull
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.domain.request import RequestFacts
from exaserve.scheduling import (
    Admission,
    AdmissionConfig,
    Placement,
    Refusal,
    RefusalReason,
    Scheduler,
    SchedulerConfig,
    Ticket,
)

REFUSED = Refusal(RefusalReason.SATURATED, "full")


def order(admission: Admission, build: Build) -> list[object]:
    scheduler = build(1, queue_depth_max=1000)
    return [t.waiter for t, _ in admission.dispatch(lambda f: scheduler.place(f, 0.0))]


def test_first_come_first_served(build: Build) -> None:
    admission = Admission(AdmissionConfig())
    for k in range(5):
        admission.offer(facts(), k, k)
    assert order(admission, build) == [0, 1, 2, 3, 4]
    assert len(admission) == 0


def test_priority_goes_first(build: Build) -> None:
    admission = Admission(AdmissionConfig())
    for k, priority in enumerate([0, -5, 3, 0, 3]):
        admission.offer(facts(priority=priority), 0.0, k)
    assert order(admission, build) == [2, 4, 0, 3, 1]


def test_tenants_take_turns(build: Build) -> None:
    admission = Admission(AdmissionConfig())
    for k in range(4):
        admission.offer(facts(tenant="greedy"), 0.0, f"g{k}")
    admission.offer(facts(tenant="small"), 0.0, "s0")
    assert order(admission, build) == ["g0", "s0", "g1", "g2", "g3"]


def test_one_model_without_room_does_not_block_another(build: Build) -> None:
    scheduler = build(1)
    admission = Admission(AdmissionConfig())
    admission.offer(facts(model="full"), 0.0, "full")
    admission.offer(facts(), 0.0, "fits")

    def place(f: RequestFacts) -> Placement | Refusal:
        return REFUSED if f.model == "full" else scheduler.place(f, 0.0)

    assert [t.waiter for t, _ in admission.dispatch(place)] == ["fits"]
    assert len(admission) == 1
    admission.validate()


def test_bounds_in_tickets_bytes_and_share() -> None:
    admission = Admission(AdmissionConfig(queue_max=4, bytes_max=100, tenant_share=0.5, retry_after_s=7))
    admission.offer(facts(tenant="a"), 0.0, 0, 60)
    with pytest.raises(QueueFull) as caught:
        admission.offer(facts(tenant="b"), 0.0, 1, 50)
    assert caught.value.retry_after_s == 7
    assert caught.value.status == 429
    admission.offer(facts(tenant="b"), 0.0, 1)
    admission.offer(facts(tenant="a"), 0.0, 2)
    with pytest.raises(QueueFull, match="share"):
        admission.offer(facts(tenant="a"), 0.0, 3)
    admission.offer(facts(tenant="c"), 0.0, 3)
    with pytest.raises(QueueFull, match="full"):
        admission.offer(facts(tenant="b"), 0.0, 4)
    admission.validate()


def test_a_newcomer_displaces_the_newest_of_the_one_that_holds_most() -> None:
    admission = Admission(AdmissionConfig(queue_max=4))
    for k, priority in enumerate([0, 1, 0, 1]):
        admission.offer(facts(tenant="flood", priority=priority), 0.0, k)
    admission.offer(facts(tenant="new"), 0.1, "first")
    with pytest.raises(QueueFull):
        admission.offer(facts(tenant="flood"), 0.1, 5)
    admission.offer(facts(tenant="new"), 0.2, "second")
    with pytest.raises(QueueFull):
        admission.offer(facts(tenant="new"), 0.3, "more than the flood holds")
    admission.validate()
    assert admission.next_deadline() == -math.inf
    assert [(t.waiter, t.displaced) for t in admission.expired(0.3)] == [(2, True), (0, True)]
    assert [t.waiter for t in admission.expired(100.0)] == [1, 3, "first", "second"]


def test_bodies_are_displaced_like_tickets() -> None:
    admission = Admission(AdmissionConfig(bytes_max=100))
    for k in range(5):
        admission.offer(facts(tenant="flood"), 0.0, k, 20)
    with pytest.raises(QueueFull):
        admission.offer(facts(tenant="new"), 0.0, "half and more", 60)
    with pytest.raises(QueueFull):
        admission.offer(facts(tenant="new"), 0.0, "more than ever fits", 101)
    ticket = admission.offer(facts(tenant="new"), 0.0, "new", 40)
    admission.validate()
    gone = admission.expired(0.0)
    assert [t.waiter for t in gone] == [4, 3]
    admission.cancel(gone[0])
    assert ticket.queued
    assert admission.size_bytes == 100


@pytest.mark.parametrize("queue_max", [4, 20])
def test_a_flood_of_one_key_does_not_keep_another_out(build: Build, queue_max: int) -> None:
    """60 clients of key A that try again 0.1 s after each refusal, one of key B that sends one request at a time, and
    a replica that takes one request every 0.05 s."""
    admission = Admission(AdmissionConfig(queue_max=queue_max, tenant_share=0.5))
    placement = build(1).place(facts(), 0.0)
    assert isinstance(placement, Placement)
    retry_at = dict.fromkeys(range(60), 0.0)
    waits: list[float] = []
    waiting: Ticket | None = None
    for step in range(5_000):
        now = step * 0.01
        for client, due in list(retry_at.items()):
            if due <= now:
                try:
                    admission.offer(facts(tenant="A"), now, client)
                    del retry_at[client]
                except QueueFull:
                    retry_at[client] = now + 0.1
        if waiting is None:
            waiting = admission.offer(facts(tenant="B"), now, "B")  # never refused
        for ticket in admission.expired(now):
            assert ticket.displaced
            retry_at[cast("int", ticket.waiter)] = now + 0.1
        room = step % 5 == 0
        if room:
            for ticket, _ in admission.dispatch(once(placement)):
                if ticket is waiting:
                    waits.append(now - ticket.offered_at)
                    waiting = None
                else:
                    retry_at[cast("int", ticket.waiter)] = now + 0.2
        admission.validate()
    assert len(waits) > 300
    assert max(waits) <= 0.15, "it takes turns with the flood"


def once(placement: Placement) -> Callable[[RequestFacts], Placement | Refusal]:
    """A placing that has room for one request."""
    left = [placement]
    return lambda _: left.pop() if left else REFUSED


def test_alone_a_tenant_may_fill_the_queue() -> None:
    admission = Admission(AdmissionConfig(queue_max=4))
    for k in range(4):
        admission.offer(facts(tenant="a"), 0.0, k)
    assert len(admission) == 4


def test_deadlines_and_cancel() -> None:
    admission = Admission(AdmissionConfig(wait_max_s=10.0))
    first = admission.offer(facts(), 0.0, "a")
    gone = admission.offer(facts(), 1.0, "b", 5)
    short = admission.offer(facts(), 2.0, "c", wait_max_s=1.0)
    longer = admission.offer(facts(), 2.0, "d", wait_max_s=99.0)
    admission.cancel(gone)
    admission.cancel(gone)
    assert admission.size_bytes == 0
    assert admission.next_deadline() == 3.0
    assert admission.expired(2.9) == []
    assert admission.expired(10.0) == [first, short]
    assert longer.deadline == 12.0
    assert len(admission) == 1
    admission.validate()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "cancel", "dispatch", "expire", "wait"]),
            st.integers(0, 2),
            st.integers(-1, 1),
            st.integers(0, 30),
        ),
        max_size=80,
    )
)
def test_any_order_of_events_keeps_the_books(events: list[tuple[str, int, int, int]]) -> None:
    admission = Admission(AdmissionConfig(queue_max=6, bytes_max=100, wait_max_s=5.0))
    now, room = 0.0, 0
    live: list[Ticket] = []
    owners: list[int] = []
    left: set[int] = set()
    scheduler = Scheduler(SchedulerConfig(), random.Random(1))
    scheduler.add(ReplicaSpec(id=ReplicaId("r"), url="http://r:1", models=("m",)), 0.0)
    scheduler.set_health(ReplicaId("r"), True, "ready")
    placement = scheduler.place(facts(model="m"), 0.0)
    assert isinstance(placement, Placement)

    def place(f: RequestFacts) -> Placement | Refusal:
        nonlocal room
        if room <= 0:
            return REFUSED
        room -= 1
        return placement

    for kind, who, priority, size in events:
        if kind == "offer":
            try:
                live.append(
                    admission.offer(facts(model=f"m{who}", tenant=f"t{who}", priority=priority), now, len(live), size)
                )
                owners.append(who)
            except QueueFull:
                held = Counter(owners[k] for k in range(len(live)) if k not in left)
                own = held.pop(who, 0)
                at_share = bool(held) and own >= 3
                full = len(admission) == 6 and own + 1 > max(held.values(), default=0) - 1
                assert at_share or full or admission.size_bytes + size > 100
        elif kind == "cancel" and live:
            admission.cancel(live[size % len(live)])
            left.add(size % len(live))
        elif kind == "dispatch":
            room = who
            for ticket, _ in admission.dispatch(place):
                assert ticket.waiter not in left
                left.add(ticket.waiter)  # type: ignore[arg-type]
        elif kind == "expire":
            for ticket in admission.expired(now):
                assert ticket.waiter not in left
                left.add(ticket.waiter)  # type: ignore[arg-type]
        else:
            now += size / 10
        for ticket in live:
            if ticket.displaced and ticket.waiter not in left:
                admission.cancel(ticket)
                left.add(ticket.waiter)  # type: ignore[arg-type]
        admission.validate()
        assert len(admission) == len(live) - len(left)
