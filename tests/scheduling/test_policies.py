"""One suite for all policies: the filters hold for each; then what each one is for."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from tests.scheduling.conftest import Build, facts, report, rid

from exaserve.domain.errors import ConfigError
from exaserve.domain.request import Outcome
from exaserve.scheduling import POLICIES, Placement, Refusal, RefusalReason

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


def test_explain_names_each_reason_and_charges_nothing(build: Build) -> None:
    scheduler = build(5)
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
