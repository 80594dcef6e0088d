"""The cost model: what it says, that the fast loop says the same, and what follows for placement."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, facts, report, rid

from exaserve.domain.replica import ReplicaSpec
from exaserve.domain.request import Outcome, Usage
from exaserve.scheduling import Placement, Refusal, Scheduler, SchedulerConfig, block_hashes
from exaserve.scheduling.entropy import cost, terms


def place(scheduler: Scheduler, now: float, **kw: object) -> Placement:
    result = scheduler.place(facts(**kw), now)  # type: ignore[arg-type]
    assert isinstance(result, Placement), result
    return result


def test_a_long_prompt_keeps_short_ones_away_until_its_first_token(build: Build) -> None:
    scheduler = build(3)
    long = place(scheduler, 0.0, prompt=12_842)
    shorts = [place(scheduler, 0.001 * k, prompt=327) for k in range(1, 5)]
    assert all(p.replica_id != long.replica_id for p in shorts)
    for p in shorts:
        scheduler.first_token(p, 0.1)
        scheduler.release(p, 0.1, Outcome.COMPLETED)
    scheduler.first_token(long, 1.6)
    after = [place(scheduler, 1.6, prompt=327) for _ in range(3)]
    assert {p.replica_id for p in after} == {rid(0), rid(1), rid(2)}


def test_a_prompt_does_not_join_one_that_is_nearly_through(build: Build) -> None:
    """Their steps would be shared, and the first token of the one ahead would wait for the newcomer's tokens."""
    for weight, joins in ((0.0, True), (0.5, False)):
        scheduler = build(2, join_weight=weight, stall_weight=0.0, prefill_tokens_per_s=10_000.0)
        for k in (0, 1):
            # Replica 1 has the larger batch, which costs 0.15 s.
            scheduler.report(report(k, 1, 0.0, running=30 * k, waiting=0, kv_use=0.1), 0.0)
        ahead = place(scheduler, 0.0, prompt=4_000)
        assert ahead.replica_id == rid(0)
        # Some 0.05 s are left of it: it is the head of the queue, of which nine tenths can have drained.
        assert (place(scheduler, 0.4, prompt=4_000).replica_id == rid(0)) is joins


def test_what_arrives_between_two_reports_spreads_instead_of_herding(build: Build) -> None:
    scheduler = build(8)
    for k in range(8):
        scheduler.report(report(k, 1, 0.0, running=0 if k == 0 else 2, waiting=0, kv_use=0.0 if k == 0 else 0.1), 0.0)
    chosen = [place(scheduler, 0.0, prompt=4218).replica_id for _ in range(8)]
    assert len(set(chosen)) == 8


def test_the_literal_recipe_herds_and_entropy_does_not(build: Build) -> None:
    spread = {}
    for policy in ("literal", "entropy"):
        scheduler = build(8, policy=policy)
        for k in range(8):
            scheduler.report(report(k, 1, 0.0, running=0, waiting=0, kv_use=0.01 * k, kv_age_ms=0, net_mb_s=0), 0.0)
        spread[policy] = {place(scheduler, 0.0, prompt=1000).replica_id for _ in range(8)}
    assert len(spread["literal"]) == 1
    assert len(spread["entropy"]) == 8


def test_ties_take_turns(build: Build) -> None:
    scheduler = build(5)
    chosen = []
    for k in range(10):
        p = place(scheduler, float(k), prompt=10)
        chosen.append(p.replica_id)
        scheduler.first_token(p, k + 0.01)
        scheduler.release(p, k + 0.01, Outcome.COMPLETED)
    assert set(chosen) == {rid(k) for k in range(5)}


def test_a_frozen_replica_keeps_its_backlog_however_long_it_lasts(build: Build) -> None:
    scheduler = build(2)
    frozen = place(scheduler, 0.0, prompt=4218)
    state = scheduler.states()[frozen.replica_id]
    queued = place(scheduler, 0.0, prompt=4218)
    assert queued.replica_id != frozen.replica_id
    scheduler.first_token(queued, 0.6)
    # The one at the head may be nearly done, the ones behind it cannot have been started.
    second = Placement(state, "m", 0.7, 0.0, 4218, 0.5, 0, 4318, True, 0)
    state.charge(second, 0.7)
    assert state.backlog_s(100.0) == pytest.approx(0.5 + 0.1 * frozen.work_s)
    state.release(second, 100.0, Outcome.CLIENT_GONE)


def test_plain_answers_drain_by_the_learned_rate(build: Build) -> None:
    scheduler = build(1, spec={"prefill_tokens_per_s": 1000.0})
    p = place(scheduler, 0.0, prompt=1000, stream=False)
    state = scheduler.states()[rid(0)]
    assert state.backlog_s(0.25) == pytest.approx(0.75)
    assert state.backlog_s(2.0) == 0
    q = place(scheduler, 2.0, prompt=500, stream=False)
    assert state.decoding == 1
    assert state.backlog_s(2.0) == pytest.approx(0.5)
    scheduler.release(p, 3.0, Outcome.COMPLETED)
    scheduler.release(q, 3.0, Outcome.COMPLETED)
    scheduler.validate()


def test_plain_requests_that_wait_in_the_engine_count_as_waiting(build: Build) -> None:
    """Their prefill must be over by the learned rate, but the engine has no place in its batch for them."""
    scheduler = build(1, queue_depth_max=4)
    batch, placed, finished = 4, [], 0
    worst, now = 0, 0.0
    scheduler.report(report(0, 0, 0.0, running=0, waiting=0, kv_use=0.0), 0.0)
    for step in range(400):
        now += 0.01
        while isinstance(p := scheduler.place(facts(100, stream=False), now), Placement):
            placed.append(p)
        waiting = len(placed) - finished - batch
        worst = max(worst, waiting)
        if step % 20 == 19:
            running = min(len(placed) - finished, batch)
            scheduler.report(report(0, step + 1, now, running=running, waiting=max(waiting, 0), kv_use=0.1), now)
        if step % 100 == 99:
            scheduler.release(placed[finished], now, Outcome.COMPLETED)
            finished += 1
        scheduler.validate()
    assert len(placed) > batch
    assert worst <= 4


def test_rate_is_learned_from_first_tokens(build: Build) -> None:
    scheduler = build(1, spec={"prefill_tokens_per_s": 8000.0})
    now = 0.0
    for _ in range(40):
        p = place(scheduler, now, prompt=2000)
        now += 1.0  # 2,000 tokens/s
        scheduler.first_token(p, now)
        scheduler.release(p, now, Outcome.COMPLETED)
    assert scheduler.states()[rid(0)].prefill_s(2000) == pytest.approx(1.0, rel=0.1)


def test_a_slower_replica_gets_less(build: Build) -> None:
    scheduler = build(2)
    slow = rid(1)
    now, counts = 0.0, {rid(0): 0, slow: 0}
    free = {rid(0): 0.0, slow: 0.0}
    rate = {rid(0): 8000.0, slow: 1000.0}
    live: list[tuple[float, Placement]] = []
    for _ in range(400):
        now += 0.35
        for due, p in sorted((e for e in live if e[0] <= now), key=lambda e: e[0]):
            scheduler.first_token(p, due)
            scheduler.release(p, due, Outcome.COMPLETED)
        live = [e for e in live if e[0] > now]
        p = place(scheduler, now, prompt=2000)
        counts[p.replica_id] += 1
        free[p.replica_id] = max(now, free[p.replica_id]) + 2000 / rate[p.replica_id]
        live.append((free[p.replica_id], p))
    assert counts[slow] < 0.2 * counts[rid(0)]


def test_foreign_work_in_reports_counts_and_drains(build: Build) -> None:
    scheduler = build(2)
    scheduler.report(report(0, 1, 0.0, running=3, waiting=4, kv_use=0.1), 0.0)
    scheduler.report(report(1, 1, 0.0, running=0, waiting=0, kv_use=0.0), 0.0)
    busy = scheduler.states()[rid(0)]
    assert (busy.seen.foreign_running, busy.seen.foreign_waiting) == (3, 4)
    assert place(scheduler, 0.0).replica_id == rid(1)
    backlog = busy.backlog_s(0.0)
    assert backlog > 0.1
    assert busy.backlog_s(0.1) == pytest.approx(backlog - 0.1)


def test_own_work_in_a_report_is_not_counted_twice(build: Build) -> None:
    scheduler = build(1)
    first = place(scheduler, 0.0, prompt=1000)
    scheduler.first_token(first, 0.1)
    place(scheduler, 0.2, prompt=1000)
    scheduler.report(report(0, 1, 0.3, running=1, waiting=1, kv_use=0.02), 0.3)
    state = scheduler.states()[rid(0)]
    assert (state.seen.foreign_running, state.seen.foreign_waiting) == (0, 0)
    assert state.depth == 1
    place(scheduler, 0.31, prompt=1000)
    assert state.depth == 2


def test_placements_newer_than_the_report_are_kept_on_top_of_it(build: Build) -> None:
    scheduler = build(1)
    place(scheduler, 1.0, prompt=1000, output=0)
    scheduler.report(report(0, 1, 0.9, running=0, waiting=0, kv_use=0.1), 1.01)
    state = scheduler.states()[rid(0)]
    assert state.kv.predicted == pytest.approx(0.1 * 100_000 + 1000)
    assert state.depth == 1


def test_older_and_stale_reports_are_ignored(build: Build) -> None:
    scheduler = build(1)
    state = scheduler.states()[rid(0)]
    scheduler.report(report(0, 5, 1.0, running=9, waiting=0), 1.0)
    scheduler.report(report(0, 4, 1.1, running=1, waiting=0), 1.1)
    assert state.seen.foreign_running == 9
    scheduler.report(report(0, 6, 1.0, running=1, waiting=0), 9.0)
    assert state.seen.foreign_running == 9
    scheduler.tick(2.9)
    assert state.seen.fresh
    scheduler.tick(3.1)
    assert not state.seen.fresh
    assert state.seen.foreign_running == 0


def test_missing_signals_are_unknown_not_zero(build: Build) -> None:
    scheduler = build(1)
    for _ in range(3):
        place(scheduler, 0.0, prompt=10_000, output=0)
    scheduler.report(report(0, 1, 0.1), 0.1)
    state = scheduler.states()[rid(0)]
    assert state.kv.predicted == 30_000
    assert state.depth == 3


def test_memory_is_free_below_the_watermark_steep_above_infinite_where_it_cannot_fit(build: Build) -> None:
    scheduler = build(1)
    state = scheduler.states()[rid(0)]
    scheduler.report(report(0, 1, 0.0, running=1, waiting=0, kv_use=0.5), 0.0)
    assert terms(state, facts(30_000, 1000), 0, 0.0)["memory_s"] == 0
    just = terms(state, facts(40_000, 0), 0, 0.0)["memory_s"]
    more = terms(state, facts(48_000, 0), 0, 0.0)["memory_s"]
    assert 0 < just < more < math.inf
    assert terms(state, facts(101_000, 0), 0, 0.0)["memory_s"] == math.inf


def test_failures_repel_before_any_breaker_opens(build: Build) -> None:
    scheduler = build(2)
    chosen = []
    for k in range(20):
        p = place(scheduler, 0.001 * k)
        chosen.append(p.replica_id)
        if p.replica_id == rid(0):
            scheduler.release(p, 0.001 * k, Outcome.REPLICA_FAILED)
    assert chosen.count(rid(0)) <= 4


def test_prefix_affinity_wins_until_the_queue_costs_more(build: Build) -> None:
    scheduler = build(4)
    prefix = block_hashes(b"system prompt " * 2000)
    home = place(scheduler, 0.0, prompt=7000, prefix=prefix)
    scheduler.first_token(home, 1.0)
    scheduler.release(home, 1.0, Outcome.COMPLETED, Usage(7000, 10, 0))
    again = place(scheduler, 1.0, prompt=7000, prefix=prefix)
    assert again.replica_id == home.replica_id
    assert again.cached_tokens > 6000
    filler = [place(scheduler, 1.0, prompt=7000, prefix=prefix).replica_id for _ in range(30)]
    assert len(set(filler)) > 1


def test_restart_forgets_the_prefix(build: Build) -> None:
    scheduler = build(1)
    prefix = block_hashes(b"x" * 10_000)
    place(scheduler, 0.0, prompt=2500, prefix=prefix)
    assert place(scheduler, 0.0, prompt=2500, prefix=prefix).cached_tokens > 0
    scheduler.restarted(rid(0))
    assert place(scheduler, 0.0, prompt=2500, prefix=prefix).cached_tokens == 0


def test_eight_blind_gateways_do_not_choose_the_same_replica() -> None:
    """X2: the same picture, the same instant, the same history; only chance differs."""
    chosen = []
    for seed in range(8):
        scheduler = Scheduler(SchedulerConfig(), Random(seed))
        for k in range(32):
            scheduler.add(ReplicaSpec(rid(k), f"http://r{k}", ("m",), kv_tokens_max=100_000), 0.0)
            scheduler.set_health(rid(k), True, "up")
        for seq in range(1, 60):
            now = seq * 0.2
            first = place(scheduler, now, prompt=4000)
            scheduler.release(first, now, Outcome.CLIENT_GONE)
            for k in range(32):
                idle = k < 12
                scheduler.report(report(k, seq, now, running=4, waiting=0 if idle else 2, kv_use=0.1), now)
        assert scheduler.peers.foreign_share > 0.25
        chosen.append(place(scheduler, 12.0).replica_id)
    assert all(int(c[1:]) < 12 for c in chosen)
    assert len(set(chosen)) >= 4


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 20_000),
            st.booleans(),
            st.sampled_from(["keep", "first", "done", "fail"]),
            st.floats(0.0, 0.5),
        ),
        max_size=40,
    ),
    st.integers(1, 30_000),
)
def test_the_fast_loop_prices_as_the_definition_does(
    events: list[tuple[int, int, bool, str, float]], prompt: int
) -> None:
    scheduler = Scheduler(SchedulerConfig(tie_s=0.0, tie_share=0.0, tie_idle_share=0.0), Random(0))
    for k in range(4):
        scheduler.add(ReplicaSpec(rid(k), f"http://r{k}", ("m",), kv_tokens_max=80_000), 0.0)
        scheduler.set_health(rid(k), True, "up", 0.25 + 0.25 * k)
    now = 0.0
    for seq, (k, tokens, stream, fate, dt) in enumerate(events, 1):
        now += dt
        others = [rid(j) for j in range(4) if j != k]
        placed = scheduler.place(facts(tokens, 50, stream=stream), now, others)
        scheduler.report(report(k, seq, now, running=seq % 5, waiting=seq % 3, kv_use=(seq % 10) / 12), now)
        if isinstance(placed, Refusal) or fate == "keep":
            continue
        if fate == "first":
            scheduler.first_token(placed, now)
        else:
            scheduler.release(placed, now, Outcome.COMPLETED if fate == "done" else Outcome.REPLICA_FAILED)
    now += 0.05
    asked = facts(prompt, 100)
    explained = scheduler.explain(asked, now)
    result = scheduler.place(asked, now)
    if isinstance(result, Refusal):
        assert explained.chosen is None
        return
    state = scheduler.states()[result.replica_id]
    by_id = {c.replica: c for c in explained.candidates}
    assert by_id[state.id].out is None
    assert result.cost_s == pytest.approx(by_id[state.id].cost_s)
    best = min(c.cost_s for c in explained.candidates if c.cost_s is not None)
    assert result.cost_s == pytest.approx(best)


def test_forced_scores_replace_the_cost(build: Build) -> None:
    scheduler = build(2)
    scheduler.force_score(rid(0), math.inf)
    assert {place(scheduler, 0.0).replica_id for _ in range(10)} == {rid(1)}
    scheduler.force_score(rid(1), math.inf)
    assert isinstance(scheduler.place(facts(), 0.0), Refusal)
    scheduler.force_score(rid(0), 0.0)
    scheduler.force_score(rid(1), 5.0)
    assert cost(scheduler.states()[rid(1)], facts(), 0, 0.0) == 5.0
    assert {place(scheduler, 0.0).replica_id for _ in range(10)} == {rid(0)}
    with pytest.raises(ValueError, match="score"):
        scheduler.force_score(rid(0), -1.0)
