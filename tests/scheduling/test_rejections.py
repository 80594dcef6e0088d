"""Who rejects what its peers accept attracts nothing; who rejects what all reject is as good as any."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, facts, rid

from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome
from exaserve.scheduling import POLICIES, Placement, Scheduler
from exaserve.scheduling.rejections import Rejections

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


def closed_loop(
    scheduler: Scheduler, requests: int, bad: set[str], route: str = CHAT, clients: int = 8, began: float = 0.0
) -> Counter[str]:
    """Clients that send one request after the other; ``bad`` replicas answer 400 in 2 ms, others well in 1 s."""
    counts: Counter[str] = Counter()
    under_way: list[tuple[float, int, Placement | None]] = [(began, k, None) for k in range(clients)]
    for number in range(requests + clients):
        now, _, ended = heapq.heappop(under_way)
        if ended is not None:
            rejected = ended.replica_id in bad
            if not rejected:
                scheduler.first_token(ended, now - 0.9)
            scheduler.release(ended, now, Outcome.REJECTED if rejected else Outcome.COMPLETED)
        if number < requests:
            placed = scheduler.place(facts(route=route, session=f"s{number}"), now)
            assert isinstance(placed, Placement)
            counts[placed.replica_id] += 1
            took_s = 0.002 if placed.replica_id in bad else 1.0
            heapq.heappush(under_way, (now + took_s, clients + number, placed))
        scheduler.validate()
    return counts


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_fast_rejections_attract_nothing(build: Build, policy: str) -> None:
    scheduler = build(3, policy=policy, reject_shun_s=60.0)
    counts = closed_loop(scheduler, 200, {rid(1)})
    assert counts[rid(1)] <= 10, counts
    assert scheduler.shunned() == {("m", CHAT): (rid(1),)}
    assert scheduler.explain(facts(route=CHAT), 30.0).chosen != rid(1)
    reasons = {c.replica: c.out for c in scheduler.explain(facts(route=CHAT), 30.0).candidates}
    assert reasons[rid(1)] == f"answers {CHAT} with 4xx, its peers do not"
    others = closed_loop(scheduler, 60, set(), PLAIN, began=30.0)
    assert policy == "literal" or others[rid(1)] >= 10, "other kinds of requests it takes like any other"


def answer(scheduler: Scheduler, by: int, rejected: bool, now: float) -> None:
    """A request that only this replica may take, and its answer."""
    others = {ledger for ledger in scheduler.states() if ledger != rid(by)}
    placed = scheduler.place(facts(route=CHAT), now, others)
    assert isinstance(placed, Placement)
    assert placed.replica_id == rid(by)
    scheduler.release(placed, now, Outcome.REJECTED if rejected else Outcome.COMPLETED)


@pytest.mark.parametrize("before", range(20))
def test_good_answers_of_peers_before_and_after_never_end_it(build: Build, before: int) -> None:
    """Three rejections are enough, in whatever order they and the peers' answers come, and however slowly."""
    scheduler = build(3, reject_shun_s=1e6, reject_shun_max_s=1e6)
    answer(scheduler, 1, True, 0.0)
    for k in range(before):
        answer(scheduler, 2 * (k % 2), False, 10.0 * k)
    for _ in range(2):
        answer(scheduler, 1, True, 200.0)
    for k in range(1000):  # beyond what makes earlier answers fade
        assert scheduler.shunned() == {("m", CHAT): (rid(1),)}, f"after {k} good answers"
        answer(scheduler, 2 * (k % 2), False, 200.0 + 10.0 * k)
        scheduler.validate()


def test_rejections_of_peers_end_what_was_judged_before_they_were_asked(build: Build) -> None:
    scheduler = build(3, reject_shun_s=1e6, reject_shun_max_s=1e6)
    for _ in range(3):
        answer(scheduler, 1, True, 0.0)
    assert scheduler.shunned() == {("m", CHAT): (rid(1),)}
    for k in range(3):
        answer(scheduler, 2 * (k % 2), True, 1.0)
    assert scheduler.shunned() == {}


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_clients_own_errors_shun_nobody(build: Build, policy: str) -> None:
    scheduler = build(3, policy=policy)
    closed_loop(scheduler, 200, {rid(k) for k in range(3)})
    assert scheduler.shunned() == {}


def test_it_is_tried_again_and_less_and_less_often(build: Build) -> None:
    scheduler = build(3, policy="round_robin", reject_shun_s=10.0, reject_shun_max_s=40.0)
    tried: list[float] = []
    for step in range(3000):
        now = 0.1 * step
        placed = scheduler.place(facts(route=CHAT), now)
        assert isinstance(placed, Placement)
        bad = placed.replica_id == rid(1) and now < 200.0
        if bad:
            tried.append(now)
        scheduler.release(placed, now + 0.05, Outcome.REJECTED if bad else Outcome.COMPLETED)
    pauses = [b - a for a, b in pairwise(tried) if b - a > 1.0]
    assert pauses[:3] == pytest.approx([10.0, 20.0, 40.0], abs=1.0)
    assert max(pauses) < 41.0
    assert scheduler.shunned() == {}
    assert scheduler.states()[rid(1)].placed_total > 200, "mended, it is one of three again"


def test_a_good_probe_of_that_route_ends_it_and_so_does_a_restart(build: Build) -> None:
    for end in ("probe", "restart", "removal"):
        scheduler = build(3, reject_shun_s=1000.0)
        closed_loop(scheduler, 40, {rid(1)})
        assert scheduler.shunned()
        scheduler.forgive(rid(1), "m", PLAIN)
        scheduler.forgive(rid(1), "other", CHAT)
        assert scheduler.shunned(), "another kind of request says nothing"
        if end == "probe":
            scheduler.forgive(rid(1), "m", CHAT)
        elif end == "restart":
            scheduler.restarted(rid(1))
        else:
            scheduler.remove(rid(1))
        assert scheduler.shunned() == {}
        scheduler.validate()


def test_where_nobody_else_is_left_the_shunned_one_answers(build: Build) -> None:
    scheduler = build(3, queue_depth_max=2, reject_shun_s=1000.0)
    closed_loop(scheduler, 40, {rid(1)}, clients=2)
    assert scheduler.shunned()
    scheduler.set_health(rid(0), False, "down")
    filled = [scheduler.place(facts(route=CHAT), 100.0) for _ in range(3)]
    assert [p.replica_id for p in filled if isinstance(p, Placement)] == [rid(2)] * 2, "the third waits for it"
    scheduler.set_health(rid(2), False, "down")
    alone = scheduler.place(facts(route=CHAT), 100.0)
    assert isinstance(alone, Placement)
    assert alone.replica_id == rid(1)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("replicas", [2, 5])
def test_equals_are_hardly_ever_shunned(share: float, replicas: int) -> None:
    """Whatever share of requests is wrong, as long as chance alone tells the replicas apart."""
    shunned = 0
    for seed in range(40):
        rng = Random(seed)
        rejections = Rejections(10.0, 300.0)
        for k in range(400):
            replica = ReplicaId(f"r{rng.randrange(replicas)}")
            rejections.answered("x", replica, 0.01 * k, rng.random() < share, replicas)
            shunned += len(rejections.shunned)
        rejections.validate()
    assert shunned < 0.02 * 40 * 400 * replicas


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans(), st.floats(0.0, 20.0)), max_size=600))
def test_any_order_of_answers_keeps_the_counts(answers: list[tuple[str, int, bool, float]]) -> None:
    rejections = Rejections(10.0, 300.0)
    now = 0.0
    for route, k, rejected, dt in answers:
        now += dt
        avoided = rejections.avoid(route, now)
        assert len(avoided) <= 2, "never more than half"
        assert all(until > now for until in avoided.values())
        rejections.answered(route, rid(k), now, rejected, 4)
        rejections.validate()


def test_requests_whose_kind_is_not_known_are_not_compared() -> None:
    rejections = Rejections(10.0, 300.0)
    for _ in range(10):
        rejections.answered("", ReplicaId("r"), 0.0, True, 3)
    assert not rejections
