"""Whole runs: the same to the byte, nothing lost, and as theory has it where there is one."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulate.small import PROFILE, SHORT, build, cluster, run, units, with_telemetry

from exaserve.gateway import app as live
from exaserve.gateway import core
from exaserve.gateway.http.exchange import Exchange
from exaserve.scheduling import POLICIES, Admission, Scheduler
from exaserve.serving.dispatcher import Dispatcher
from exaserve.serving.fleet import Fleet
from exaserve.serving.journey import Journey
from exaserve.simulate.call import Call
from exaserve.simulate.demand import demand, prefix_hashes
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import POLICY_NAMES, Simulation
from exaserve.workload import REFERENCE_MIX, Arrivals, Mix, OutputLengths, Scenario, make_plan


def raw(simulation: Simulation) -> bytes:
    recorder = simulation.recorder
    return b"".join(
        c.tobytes() for c in (recorder.first, recorder.last, recorder.queued_s, recorder.attempts, recorder.error)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gateways": 3, "told_s": 0.002, "report_loss": 0.2, "report_jitter_s": 0.05},
        {"gateways": 2, "hop_s": 0.001, "policy": "power_of_two"},
    ],
    ids=["plain", "told", "hops"],
)
def test_one_seed_one_result_to_the_byte(options) -> None:
    one, first = run(**options)
    two, second = run(**options)
    assert raw(one) == raw(two)
    assert json.dumps(first.as_dict()) == json.dumps(second.as_dict())
    other, _ = run(seed=2, **options)
    assert raw(other)[:800] != raw(one)[:800]


def test_the_objects_are_the_live_gateways_own() -> None:
    gateway = build().gateways[0]
    assert type(gateway.scheduler) is vars(live)["Scheduler"] is Scheduler
    assert type(gateway.admission) is vars(live)["Admission"] is Admission
    assert type(gateway.fleet) is vars(live)["Fleet"] is Fleet
    assert type(gateway.dispatcher) is vars(core)["Dispatcher"] is Dispatcher
    assert issubclass(Call, Journey)
    assert issubclass(Exchange, Journey)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_every_policy_serves_everything_and_leaves_nothing_behind(policy: str) -> None:
    simulation, stats = run(policy=policy)
    assert stats.all.requests == len(simulation.demand) > 100
    assert stats.errors == {}
    assert simulation.world.open == simulation.world.waiting == 0
    for state in simulation.gateways[0].scheduler.states().values():
        assert (state.inflight, state.told, state.pending_s, state.kv.own) == (0, 0, 0.0, 0)


def test_all_policies_but_oracle_are_the_gateways() -> None:
    assert set(POLICY_NAMES) - {"oracle"} == set(POLICIES)


def test_conservation_with_gateways_that_tell_each_other() -> None:
    simulation, stats = run(gateways=4, told_s=0.005, count=12, rate=60.0)
    assert stats.all.failed == 0
    # The last messages are still under way when the last answer ends.
    simulation.world.run_until(simulation.world.now + 1.0)
    for gateway in simulation.gateways:
        assert len(gateway.scheduler.peers) == 0
    assert sum(s.placed_total for g in simulation.gateways for s in g.scheduler.states().values()) == stats.all.requests


@settings(max_examples=15)
@given(
    count=st.integers(1, 6),
    rate=st.floats(1.0, 120.0),
    gateways=st.integers(1, 3),
    told=st.sampled_from([None, 0.0, 0.01]),
    hop=st.sampled_from([0.0, 0.002]),
    policy=st.sampled_from(["entropy", "round_robin", "least_tokens", "literal"]),
    seed=st.integers(0, 99),
)
def test_each_request_ends_exactly_once(count, rate, gateways, told, hop, policy, seed) -> None:
    simulation, stats = run(
        count=count,
        rate=rate,
        seconds=2.0,
        gateways=gateways,
        told_s=told,
        hop_s=hop,
        policy=policy,
        seed=seed,
        drain_s=20.0,
    )
    assert sum(stats.errors.values()) == stats.all.failed
    assert stats.all.requests == len(simulation.demand)
    assert stats.all.requests - stats.all.failed == list(simulation.recorder.error).count(0)
    placed = sum(state.placed_total for g in simulation.gateways for state in g.scheduler.states().values())
    attempts = [max(1, n) for n in simulation.recorder.attempts]
    assert placed <= sum(attempts), "no request is placed more often than it was tried"
    assert placed >= sum(n for n, code in zip(attempts, simulation.recorder.error, strict=True) if code == 0)
    first, last = np.array(simulation.recorder.first), np.array(simulation.recorder.last)
    good = np.array(simulation.recorder.error) == 0
    assert (first[good] >= simulation.demand.at[good]).all()
    assert (last[good] >= first[good]).all()


def test_a_hop_costs_the_request_and_its_answer_the_same() -> None:
    near, far = (run(count=1, rate=0.5, seconds=20.0, probes=False, hop_s=hop)[0].recorder for hop in (0.0, 0.004))
    assert len(near.first) > 3
    for mine, other in ((near.first, far.first), (near.last, far.last)):
        assert [b - a for a, b in zip(mine, other, strict=True)] == pytest.approx([0.008] * len(mine))


def test_an_answer_still_under_way_when_the_run_ends_is_unfinished() -> None:
    simulation, stats = run(count=2, rate=10.0, seconds=2.0, hop_s=2.0, drain_s=1.0, probes=False)
    assert stats.errors["unfinished"] == stats.all.failed > 5
    assert simulation.world.open == 0


def fixed_service(service_s: float) -> dict[str, Any]:
    """A replica that computes one prompt at a time in exactly ``service_s``, and a single output token."""
    profile = dataclasses.replace(
        PROFILE,
        prefill_tokens_per_s=1000 / service_s,
        decode_fixed_s=1e-9,
        overhead_s=0.0,
        token_budget=1000,
        max_num_seqs=1,
    )
    return {"profile": profile, "mix": Mix(((Scenario("S", 1000, OutputLengths("fixed", 1.0)), 1.0),))}


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_replica_waits_as_md1(load: float) -> None:
    """Mean wait of M/D/1: rho s / (2 (1 - rho)) (Pollaczek, Khinchine)."""
    service_s = 0.01
    fixed = fixed_service(service_s)
    wanted = demand(fixed["mix"], load / service_s, 240.0, 3)
    made = cluster(queue_depth_max=10**9, kv_watermark=1e6)
    simulation = Simulation(
        made,
        units(1, fixed["profile"]),
        wanted,
        SimSettings(probes=False, warmup_s=10.0),
        "round_robin",
    )
    simulation.run()
    ttft = np.array(simulation.recorder.first) - wanted.at
    waits = ttft[wanted.at > 10.0] - service_s
    assert waits.mean() == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.1)
    assert waits.min() == pytest.approx(0.0, abs=1e-9)


def test_a_central_queue_waits_less_than_blind_turns() -> None:
    """Random splitting makes four M/D/1 queues; going where the wait ends first makes one M/D/4."""
    fixed = fixed_service(0.01)
    wanted = demand(fixed["mix"], 320.0, 60.0, 3)
    made = cluster(queue_depth_max=10**9, kv_watermark=1e6)
    waits = {}
    for policy in ("random", "round_robin", "oracle"):
        four = units(4, fixed["profile"])
        simulation = Simulation(made, four, wanted, SimSettings(probes=False), policy)
        simulation.run()
        waits[policy] = float(np.mean(np.array(simulation.recorder.first) - wanted.at)) - 0.01
    assert waits["random"] == pytest.approx(0.02, rel=0.2), "M/D/1 at a load of 0.8"
    assert waits["oracle"] < 0.3 * waits["random"], "M/D/4 is about a fifth"
    assert waits["oracle"] == pytest.approx(waits["round_robin"]), "where all services are equal, turns are as good"


def test_the_demand_is_the_plan_that_bench_sends() -> None:
    plan = make_plan(REFERENCE_MIX, Arrivals(40.0, 5.0), 7)
    wanted = demand(REFERENCE_MIX, 40.0, 5.0, 7)
    assert wanted.at.tolist() == [r.scheduled_s for r in plan.requests]
    assert wanted.output.tolist() == [r.output_tokens for r in plan.requests]
    assert [wanted.scenarios[k] for k in wanted.scenario] == [r.scenario for r in plan.requests]


def test_drawn_columns_have_the_plans_distribution() -> None:
    big = demand(REFERENCE_MIX, 60_000.0, 4.0, 7)
    assert len(big) == pytest.approx(240_000, rel=0.01)
    assert np.bincount(big.scenario) / len(big) == pytest.approx([0.65, 0.30, 0.05], abs=0.005)
    small = demand(REFERENCE_MIX, 10_000.0, 5.0, 7)
    for index in range(3):
        assert big.output[big.scenario == index].mean() == pytest.approx(
            small.output[small.scenario == index].mean(), rel=0.02
        )
    assert np.diff(big.at).std() == pytest.approx(np.diff(big.at).mean(), rel=0.02), "exponential gaps"
    assert (demand(REFERENCE_MIX, 60_000.0, 4.0, 7).at == big.at).all()


def test_rates_follow_their_factors() -> None:
    wanted = demand(REFERENCE_MIX, 200.0, 30.0, 1, factors=((10.0, 3.0), (20.0, 0.0)))
    per_stretch = np.histogram(wanted.at, bins=[0, 10, 20, 30])[0]
    assert per_stretch[0] == pytest.approx(2_000, rel=0.1)
    assert per_stretch[1] == pytest.approx(6_000, rel=0.1)
    assert per_stretch[2] == 0


def test_fresher_reports_and_more_gateways_move_the_result_the_right_way() -> None:
    """With blind gateways, reports are all that shows the others' work."""
    load = {"count": 16, "rate": 100.0, "seconds": 20.0, "gateways": 4, "warmup_s": 2.0}
    stale = run(made=with_telemetry(cluster(), 1.0), **load)[1].scenario("A").ttft_p99
    told = run(made=with_telemetry(cluster(), 1.0), told_s=0.001, **load)[1].scenario("A").ttft_p99
    alone = run(made=with_telemetry(cluster(), 1.0), **{**load, "gateways": 1})[1].scenario("A").ttft_p99
    assert alone <= told * 1.1
    assert told < stale


def test_overload_queues_at_the_gateway_and_gives_up_in_time() -> None:
    made = cluster(queue_depth_max=2)
    import msgspec

    made = msgspec.structs.replace(made, admission=dataclasses.replace(made.admission, wait_max_s=1.0, queue_max=50))
    simulation, stats = run(count=2, rate=200.0, seconds=5.0, made=made)
    assert stats.queued > 0
    assert stats.errors["queue_timeout"] > 0
    assert stats.errors["queue_full"] > 0
    assert max(simulation.recorder.queued_s) <= 1.0 + 0.06
    assert not math.isnan(stats.all.ttft_p99)


def test_latencies_do_not_depend_on_who_looks() -> None:
    """Reports advance the engines' counters; that must move nothing."""
    seen = [
        run(policy="round_robin", made=with_telemetry(cluster(), interval), probes=False)[0].recorder.last.tolist()
        for interval in (0.05, 5.0)
    ]
    assert seen[0] == pytest.approx(seen[1], abs=1e-9)


def test_equal_beginnings_have_equal_blocks_and_no_others() -> None:
    whole = prefix_hashes(((1, 512), (2, 512)), 16)
    assert len(whole) == 64
    assert prefix_hashes(((1, 512), (3, 512)), 16)[:32] == whole[:32]
    assert not set(prefix_hashes(((1, 512), (3, 512)), 16)[32:]) & set(whole)
    assert not set(prefix_hashes(((2, 512), (1, 512)), 16)) & set(whole), "a block's place counts"
    ragged = prefix_hashes(((1, 20), (2, 20)), 16)
    assert len(ragged) == 2
    assert ragged[0] == whole[0]
    assert ragged[1] != prefix_hashes(((1, 20), (4, 20)), 16)[1]
    assert prefix_hashes((), 16) == ()


def test_the_floor_of_a_first_token_is_in_what_clients_see() -> None:
    late = dataclasses.replace(PROFILE, first_s=0.02)
    runs = []
    for profile in (PROFILE, late):
        simulation = Simulation(
            cluster(), units(2, profile), demand(SHORT, 40.0, 5.0, 1), SimSettings(probes=False), "round_robin"
        )
        simulation.run()
        runs.append(simulation.recorder)
    for column in ("first", "last"):
        without, with_floor = (np.array(getattr(recorder, column)) for recorder in runs)
        assert with_floor - without == pytest.approx(np.full(len(without), 0.02))
