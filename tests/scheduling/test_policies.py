"""One suite for all policies: the filters hold for each; then what each one is for."""

from __future__ import annotations

import math
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, built, facts, report, rid

from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId
from exaserve.domain.request import Outcome, Usage
from exaserve.scheduling import POLICIES, Placement, Refusal, RefusalReason, Scheduler, SchedulerConfig
from exaserve.scheduling.pool import HashRing, session_hash

ALL = sorted(POLICIES)


@pytest.mark.parametrize("policy", ALL)
class TestEveryPolicy:
    def test_never_picks_what_is_out(self, build: Build, policy: str) -> None:
        scheduler = build(7, policy=policy, queue_depth_max=2)
        scheduler.set_health(rid(0), False, "down")
        scheduler.drain(rid(1))
        scheduler.set_weight(rid(2), 0)
        scheduler.force_score(rid(3), math.inf)
        scheduler.report(report(4, 1, 0.0, running=1, waiting=0, kv_use=0.9), 0.0)
        scheduler.place(facts(10), 0.0, [rid(k) for k in range(7) if k != 4])
        for _ in range(2):
            assert isinstance(scheduler.place(facts(10), 0.0, [rid(k) for k in range(7) if k != 5]), Placement)
        chosen = {scheduler.place(facts(100, session="s"), 0.0).replica_id for _ in range(2)}  # type: ignore[union-attr]
        assert chosen == {rid(6)}
        refused = scheduler.place(facts(100), 0.0)
        assert isinstance(refused, Refusal)
        assert refused.reason is RefusalReason.SATURATED

    def test_says_why_it_refuses(self, build: Build, policy: str) -> None:
        scheduler = build(2, policy=policy)
        unknown = scheduler.place(facts(model="other"), 0.0)
        tried = scheduler.place(facts(), 0.0, [rid(0), rid(1)])
        scheduler.set_health(rid(0), False, "connection refused")
        scheduler.set_health(rid(1), False, "connection refused")
        down = scheduler.place(facts(), 0.0)
        assert isinstance(unknown, Refusal)
        assert isinstance(tried, Refusal)
        assert isinstance(down, Refusal)
        assert [r.reason for r in (unknown, tried, down)] == [
            RefusalReason.MODEL_UNKNOWN,
            RefusalReason.ALL_TRIED,
            RefusalReason.NOT_READY,
        ]
        assert "connection refused" in down.message

    @settings(max_examples=30)
    @given(
        steps=st.lists(
            st.tuples(
                st.integers(1, 20_000), st.integers(0, 5), st.booleans(), st.sampled_from(["keep", "first", "done"])
            ),
            min_size=1,
            max_size=25,
        ),
        replicas=st.sampled_from([1, 5, 80]),
        seed=st.integers(0, 50),
    )
    def test_an_explanation_names_what_the_request_then_gets(
        self, policy: str, steps: list[tuple[int, int, bool, str]], replicas: int, seed: int
    ) -> None:
        """With weights, sessions, prefixes and reports, for pools that are scanned and pools that are sampled."""
        scheduler = built(replicas, policy, seed=seed)
        if replicas > 1:
            scheduler.set_weight(rid(1), 0.3)
        for number, (prompt, session, stream, fate) in enumerate(steps):
            now = 0.05 * number
            known = {"running": session, "waiting": number % 3, "kv_use": session / 7, "kv_age_ms": 5, "net_mb_s": 1}
            scheduler.report(report(prompt % replicas, number, now, **known), now)
            asked = facts(prompt, 50, stream=stream, session=f"s{session}", prefix=(session, session + 9, prompt))
            before = [ledger.inflight for ledger in scheduler.states().values()]
            first, second = scheduler.explain(asked, now), scheduler.explain(asked, now)
            assert first == second, "asking changes nothing"
            assert before == [ledger.inflight for ledger in scheduler.states().values()]
            placed = scheduler.place(asked, now)
            if isinstance(placed, Refusal):
                assert (first.chosen, first.refusal) == (None, placed.reason.value)
                continue
            assert first.chosen == placed.replica_id
            assert next(c.out for c in first.candidates if c.replica == placed.replica_id) is None
            if fate != "keep":
                scheduler.first_token(placed, now + 0.01)
            if fate == "done":
                scheduler.release(placed, now + 0.02, Outcome.COMPLETED, Usage(prompt, 20, prompt // 2))

    def test_same_seed_same_choices(self, build: Build, policy: str) -> None:
        runs = []
        for _ in range(2):
            scheduler = build(20, policy=policy, seed=7, full_scan_max=8)
            runs.append(
                [scheduler.place(facts(100 + k, session=f"s{k % 5}"), 0.01 * k).replica_id for k in range(60)]  # type: ignore[union-attr]
            )
        assert runs[0] == runs[1]

    def test_a_context_too_long_for_some_goes_to_one_that_can(self, build: Build, policy: str) -> None:
        scheduler = build(3, policy=policy, spec={"max_model_len": 1000})
        big = scheduler.states()[rid(2)].spec
        scheduler.update(type(big)(rid(2), big.url, ("m",), max_model_len=32_768))
        assert {scheduler.place(facts(5000), 0.0).replica_id for _ in range(5)} == {rid(2)}  # type: ignore[union-attr]

    def test_all_replicas_get_work_in_the_long_run(self, build: Build, policy: str) -> None:
        scheduler = build(6, policy=policy)
        counts: Counter[str] = Counter()
        for k in range(600):
            scheduler.report(report(k % 6, k, 0.01 * k, running=0, waiting=0, kv_use=(k * 7 % 13) / 40), 0.01 * k)
            p = scheduler.place(facts(session=f"session-{k}"), 0.01 * k)
            assert isinstance(p, Placement)
            counts[p.replica_id] += 1
            scheduler.first_token(p, 0.01 * k + 0.005)
            scheduler.release(p, 0.01 * k + 0.005, Outcome.COMPLETED)
        assert len(counts) == 6

    @pytest.mark.parametrize("how", ["weight", "slow start"])
    def test_a_share_of_traffic_is_honoured(self, build: Build, policy: str, how: str) -> None:
        scheduler = build(4, policy=policy)
        if how == "weight":
            scheduler.set_weight(rid(1), 0.25)
        else:
            scheduler.set_health(rid(1), True, "slow start", 0.25)
        for k in range(4):
            scheduler.report(report(k, 1, 0.0, running=0, waiting=0, kv_use=0.1, kv_age_ms=0, net_mb_s=0), 0.0)
        held: deque[Placement] = deque()
        counts: Counter[str] = Counter()
        for k in range(2600):
            now = 0.02 * k
            placed = scheduler.place(facts(100, session=f"s{k}"), now)
            assert isinstance(placed, Placement)
            scheduler.first_token(placed, now + 0.01)
            counts[placed.replica_id] += 1
            held.append(placed)
            if len(held) > 52:
                scheduler.release(held.popleft(), now + 0.01, Outcome.COMPLETED)
        assert 0.03 < counts[rid(1)] / 2600 < 0.13, counts  # 1/13
        assert min(counts[rid(k)] for k in (0, 2, 3)) > 0.2 * 2600, counts

    def test_a_small_share_still_takes_what_nobody_else_can(self, build: Build, policy: str) -> None:
        scheduler = build(3, policy=policy)
        scheduler.set_weight(rid(1), 0.01)
        placed = scheduler.place(facts(session="s"), 0.0, [rid(0), rid(2)])
        assert isinstance(placed, Placement)
        assert placed.replica_id == rid(1)

    def test_a_clients_own_bound_on_the_answer_must_fit_the_context(self, build: Build, policy: str) -> None:
        scheduler = build(3, policy=policy, spec={"max_model_len": 1000})
        big = scheduler.states()[rid(2)].spec
        scheduler.update(type(big)(rid(2), big.url, ("m",), max_model_len=4000))
        asked = facts(500, 100, total_tokens_max=500 + 2000)
        assert {scheduler.place(asked, 0.0).replica_id for _ in range(5)} == {rid(2)}  # type: ignore[union-attr]
        unbounded = facts(999, 100, total_tokens_max=0)
        assert len({scheduler.place(unbounded, 0.0).replica_id for _ in range(20)}) == 3  # type: ignore[union-attr]
        nowhere = facts(500, 100, total_tokens_max=500 + 2_000_000)
        assert scheduler.place(nowhere, 0.0).replica_id == rid(2)  # type: ignore[union-attr]

    def test_a_full_cache_is_full_also_where_its_size_is_unknown(self, build: Build, policy: str) -> None:
        scheduler = build(2, policy=policy, spec={"kv_tokens_max": 0})
        scheduler.report(report(0, 1, 0.0, running=3, waiting=0, kv_use=0.99), 0.0)
        chosen = {scheduler.place(facts(100), 0.0).replica_id for _ in range(20)}  # type: ignore[union-attr]
        assert chosen == {rid(1)}
        out = {c.replica: c.out for c in scheduler.explain(facts(100), 0.0).candidates}
        assert out[rid(0)] == "KV use 0.99 has reached the watermark 0.85"
        scheduler.report(report(0, 2, 0.1, running=3, waiting=0, kv_use=0.5), 0.1)
        assert rid(0) in {scheduler.place(facts(100), 0.1).replica_id for _ in range(20)}  # type: ignore[union-attr]
        scheduler.report(report(0, 3, 0.2, running=3, waiting=0, kv_use=0.99), 0.2)
        scheduler.tick(10.0)
        assert scheduler.states()[rid(0)].room, "a report that is too old says nothing"

    def test_busy_by_its_report_is_not_idle(self, build: Build, policy: str) -> None:
        """Nothing of ours is there, but a full cache with others' work takes nothing more."""
        scheduler = build(2, policy=policy)
        scheduler.report(report(0, 1, 0.0, running=100, waiting=5, kv_use=0.99), 0.0)
        for k in range(10):
            placed = scheduler.place(facts(100, session=f"s{k}"), 0.01 * k)
            assert isinstance(placed, Placement)
            assert placed.replica_id == rid(1)
            scheduler.release(placed, 0.01 * k, Outcome.COMPLETED)


def test_round_robin_takes_turns(build: Build) -> None:
    scheduler = build(3, policy="round_robin")
    assert [scheduler.place(facts(), 0.0).replica_id for _ in range(6)] == [rid(k % 3) for k in range(6)]  # type: ignore[union-attr]


def test_least_connections_fills_the_emptiest(build: Build) -> None:
    scheduler = build(3, policy="least_connections")
    scheduler.place(facts(), 0.0, [rid(1), rid(2)])
    scheduler.place(facts(), 0.0, [rid(0), rid(2)])
    assert scheduler.place(facts(), 0.0).replica_id == rid(2)  # type: ignore[union-attr]


def test_weighted_least_connections_prefers_free_kv_and_says_when_it_cannot_see_it(build: Build) -> None:
    scheduler = build(2, policy="weighted_least_connections")
    scheduler.place(facts(), 0.0)
    assert scheduler.signal_missing()["kv_use"] >= 1
    scheduler = build(2, policy="weighted_least_connections")
    scheduler.report(report(0, 1, 0.0, running=0, waiting=0, kv_use=0.8), 0.0)
    scheduler.report(report(1, 1, 0.0, running=0, waiting=0, kv_use=0.0), 0.0)
    assert [scheduler.place(facts(), 0.0).replica_id for _ in range(3)] == [rid(1)] * 3  # type: ignore[union-attr]


def test_least_tokens_counts_tokens_not_requests(build: Build) -> None:
    scheduler = build(2, policy="least_tokens")
    scheduler.place(facts(10_000), 0.0, [rid(1)])
    assert [scheduler.place(facts(1000), 0.0).replica_id for _ in range(3)] == [rid(1)] * 3  # type: ignore[union-attr]


def test_literal_takes_free_memory_for_what_can_still_be_digested(build: Build) -> None:
    scheduler = build(3, policy="literal")
    for k, free_gb in enumerate((4.0, 9.0, None)):
        known = {} if free_gb is None else {"free_mem_gb": free_gb}
        scheduler.report(report(k, 1, 0.0, kv_use=0.5, kv_age_ms=100.0, net_mb_s=1.0, **known), 0.0)
    assert {scheduler.place(facts(), 0.0).replica_id for _ in range(5)} == {rid(1)}  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(3))
def test_the_ring_is_even(seed: int) -> None:
    for n in (4, 5, 64):
        ring = HashRing(SchedulerConfig().ring_vnodes)
        ring.fill(ReplicaId(f"node{seed}-{k // 4}/r{k % 4}") for k in range(n))
        counts = Counter(next(ring.walk(session_hash(f"session-{key}"))) for key in range(20_000))
        assert len(counts) == n
        assert max(counts.values()) < (1.25 if n < 10 else 1.4) * 20_000 / n, "one in sixty-four is 3 sigma off"


def test_the_ring_moves_only_what_it_must() -> None:
    ring = HashRing(128)
    ring.fill(rid(k) for k in range(4))
    before = {key: next(ring.walk(session_hash(f"s{key}"))) for key in range(5000)}
    ring.add(rid(4))
    after = {key: next(ring.walk(session_hash(f"s{key}"))) for key in range(5000)}
    moved = [key for key in before if before[key] != after[key]]
    assert {after[key] for key in moved} == {rid(4)}
    assert 0.15 < len(moved) / 5000 < 0.25
    for _ in range(200):
        ring.remove(rid(4))
        ring.add(rid(4))
    ring.remove(rid(4))
    assert {key: next(ring.walk(session_hash(f"s{key}"))) for key in range(5000)} == before


def test_literal_says_when_its_signals_are_missing(build: Build) -> None:
    scheduler = build(2, policy="literal")
    scheduler.place(facts(), 0.0)
    assert scheduler.signal_missing()["literal_score"] == 2


@pytest.mark.parametrize("policy", ["consistent_hash", "hybrid"])
class TestSessions:
    def test_a_session_stays_at_home(self, build: Build, policy: str) -> None:
        scheduler = build(8, policy=policy)
        homes = set()
        for k in range(10):
            p = scheduler.place(facts(session="alice"), float(k))
            assert isinstance(p, Placement)
            homes.add(p.replica_id)
            scheduler.release(p, k + 0.5, Outcome.COMPLETED)
        assert len(homes) == 1

    def test_home_is_the_same_in_another_gateway(self, build: Build, policy: str) -> None:
        homes = [build(8, policy=policy, seed=seed).place(facts(session="bob"), 0.0) for seed in (1, 2, 3)]
        assert len({h.replica_id for h in homes if isinstance(h, Placement)}) == 1

    def test_losing_one_replica_moves_only_its_sessions(self, build: Build, policy: str) -> None:
        def homes(down: int | None) -> dict[str, str]:
            out = {}
            for k in range(100):
                scheduler = build(8, policy=policy)
                if down is not None:
                    scheduler.set_health(rid(down), False, "down")
                out[f"s{k}"] = scheduler.place(facts(session=f"s{k}"), 0.0).replica_id  # type: ignore[union-attr]
            return out

        before, after = homes(None), homes(3)
        moved = [s for s in before if before[s] != after[s]]
        assert moved
        assert all(before[s] == rid(3) for s in moved)

    def test_a_hot_session_overflows_at_the_bound(self, build: Build, policy: str) -> None:
        scheduler = build(4, policy=policy)
        counts: Counter[str] = Counter(
            scheduler.place(facts(10, session="hot"), 0.0).replica_id  # type: ignore[union-attr]
            for _ in range(40)
        )
        assert max(counts.values()) <= math.ceil(40 * 0.55)
        assert len(counts) > 1

    def test_without_a_key_the_conversation_prefix_stands_in(self, build: Build, policy: str) -> None:
        scheduler = build(8, policy=policy)
        homes = set()
        for k in range(5):
            p = scheduler.place(facts(prefix=(123456789, k)), float(k))
            assert isinstance(p, Placement)
            homes.add(p.replica_id)
            scheduler.release(p, k + 0.5, Outcome.COMPLETED)
        assert len(homes) == 1


def test_unknown_policy_names_the_field_and_the_choices(build: Build) -> None:
    with pytest.raises(ConfigError, match="round_robin") as caught:
        build(1).set_policy("rond_robin")
    assert caught.value.param == "scheduling.strategy"


def test_who_has_been_taken_out_is_not_waited_for(build: Build) -> None:
    def reason(scheduler: Scheduler) -> RefusalReason:
        refused = scheduler.place(facts(), 0.0)
        assert isinstance(refused, Refusal)
        return refused.reason

    scheduler = build(3)
    scheduler.drain(rid(0))
    scheduler.set_weight(rid(1), 0)
    scheduler.force_score(rid(2), math.inf)
    assert reason(scheduler) is RefusalReason.WITHDRAWN
    assert scheduler.explain(facts(), 0.0).refusal == "withdrawn"
    scheduler.drain(rid(2), returning=True)
    scheduler.force_score(rid(2), None)
    assert reason(scheduler) is RefusalReason.NOT_READY, "its agent restarts it"
    scheduler.drain(rid(2))
    assert reason(scheduler) is RefusalReason.WITHDRAWN, "the operator's word goes further"
    scheduler.undrain(rid(2))
    scheduler.set_health(rid(2), False, "down")
    assert reason(scheduler) is RefusalReason.NOT_READY


@pytest.mark.parametrize("policy", ALL)
def test_explain_names_each_reason_and_charges_nothing(build: Build, policy: str) -> None:
    scheduler = build(5, policy=policy)
    scheduler.set_health(rid(0), False, "probe timed out")
    scheduler.drain(rid(1))
    scheduler.force_score(rid(2), math.inf)
    scheduler.report(report(3, 1, 0.0, running=1, waiting=0, kv_use=0.86), 0.0)
    scheduler.place(facts(), 0.0, [rid(k) for k in range(5) if k != 3])
    before = scheduler.states()[rid(4)].inflight
    explained = scheduler.explain(facts(), 0.0)
    assert explained.chosen == rid(4)
    reasons = {c.replica: c.out or "" for c in explained.candidates}
    assert "probe timed out" in reasons[rid(0)]
    assert "draining" in reasons[rid(1)]
    assert "infinity" in reasons[rid(2)]
    assert explained.as_dict()["candidates"][0]["terms"]["prefill_s"] > 0
    assert scheduler.states()[rid(4)].inflight == before


def test_a_request_larger_than_the_watermark_still_gets_an_idle_replica(build: Build) -> None:
    scheduler = build(1)
    assert isinstance(scheduler.place(facts(90_000, 1000), 0.0), Placement)
    assert isinstance(scheduler.place(facts(10), 0.0), Refusal)


def test_a_replica_that_returns_ramps_up(build: Build) -> None:
    scheduler = build(2)
    scheduler.set_health(rid(0), True, "slow start", 0.1)
    counts = Counter(scheduler.place(facts(1000), 0.0).replica_id for _ in range(11))  # type: ignore[union-attr]
    assert counts[rid(0)] <= 2


def test_a_sleeping_engine_gets_nothing_until_it_wakes(build: Build) -> None:
    scheduler = build(2)
    scheduler.report(report(0, 1, 0.0, running=0, waiting=0, asleep=True), 0.0)
    assert {scheduler.place(facts(), 0.0).replica_id for _ in range(4)} == {rid(1)}  # type: ignore[union-attr]
    assert scheduler.explain(facts(), 0.0).candidates[-1].out == "the engine sleeps"
    scheduler.report(report(0, 2, 0.2, running=0, waiting=0, asleep=None), 0.2)
    assert rid(0) in {scheduler.place(facts(), 0.2).replica_id for _ in range(4)}  # type: ignore[union-attr]


@pytest.mark.parametrize("policy", ALL)
def test_what_one_replica_keeps_is_asked_for_there_under_every_policy(build: Build, policy: str) -> None:
    scheduler = build(5, policy)

    def placed(exclude: tuple[ReplicaId, ...] = ()) -> ReplicaId:
        placement = scheduler.place(facts(session="s", kept_by=rid(3)), 0.0, exclude)
        assert isinstance(placement, Placement)
        return placement.replica_id

    assert {placed() for _ in range(20)} == {rid(3)}
    assert placed((rid(3),)) != rid(3), "it failed there"
    scheduler.set_health(rid(3), False, "ejected")
    assert placed() != rid(3), "another one says that it does not know of it"
