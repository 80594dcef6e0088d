from __future__ import annotations

import dataclasses
import math

import pytest
from tests.simulate.small import SHORT, cluster, run, units
from tests.simulate.test_runs import fixed_service

from exaserve.domain.errors import ConfigError
from exaserve.simulate.demand import demand
from exaserve.simulate.objectives import Objective, find_capacity, parse_objective
from exaserve.simulate.record import RunStats
from exaserve.simulate.settings import SimSettings
from exaserve.simulate.simulation import Simulation
from exaserve.simulate.units import replica_capacity_per_s
from exaserve.workload import Mix, OutputLengths, Scenario

QUEUE = cluster(queue_depth_max=10**9, kv_watermark=1e6)


def test_objectives_are_read() -> None:
    assert parse_objective("A:p99_ttft_ms<=850", ["A"]) == Objective("A:p99_ttft_ms<=850", "A", "ttft_p99", 0.85)
    assert parse_objective("p50_e2e_ms <= 1500", ["A"]).figure == "e2e_p50"
    assert parse_objective("errors<=0.1%", ["A"]).limit == pytest.approx(0.001)


@pytest.mark.parametrize("text", ["p99<=1", "B:p99_ttft_ms<=1", "A:p99_ttft_ms<850", "p90_e2e_ms<=1", ""])
def test_a_wrong_objective_is_explained(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        parse_objective(text, ["A"])


def wait_beyond(load: float, services: float) -> float:
    """P(wait > ``services`` service times) in M/D/1 (Erlang 1909)."""
    terms = (
        (load * (j - services)) ** j / math.factorial(j) * math.exp(-load * (j - services))
        for j in range(math.floor(services) + 1)
    )
    return 1.0 - (1.0 - load) * sum(terms)


def test_the_capacity_of_a_known_queue_is_found() -> None:
    """One replica with a service of 10 ms is M/D/1: nine of ten are through within 30 ms up to a load that is known."""
    fixed = fixed_service(0.01)
    made = QUEUE
    known = max(load / 1000 for load in range(1, 1000) if wait_beyond(load / 1000, 2.0) <= 0.1)

    def one(rate: float, times: float) -> RunStats:
        wanted = demand(fixed["mix"], rate, 120.0 * times, 5)
        settings = SimSettings(probes=False, warmup_s=5.0)
        return Simulation(made, units(1, fixed["profile"]), wanted, settings, "round_robin").run()

    objective = Objective("", "all", "ttft_p90", 0.030)
    found = find_capacity(one, [objective], 40.0, step=0.04, confirm_times=1.0)
    assert found.stats is not None
    assert found.rate_per_s == pytest.approx(100.0 * known, rel=0.1)
    assert objective.kept(found.stats)


def test_no_rate_keeps_what_cannot_be_kept() -> None:
    found = find_capacity(
        lambda rate, _times: run(count=1, rate=rate, mix=SHORT)[1], [Objective("", "all", "ttft_p50", 1e-6)], 20.0
    )
    assert (found.rate_per_s, found.stats) == (0.0, None)
    assert found.tries < 20


def test_a_rate_must_hold_in_a_longer_run_without_a_growing_backlog() -> None:
    """A percentile of the short requests is kept far above what the replicas can do, while long ones pile up."""
    mix = Mix(
        (
            (Scenario("A", 60, OutputLengths("fixed", 2.0)), 0.9),
            (Scenario("B", 4_000, OutputLengths("fixed", 200.0)), 0.1),
        )
    )
    seen: list[tuple[float, float, bool]] = []

    def one(rate: float, times: float) -> RunStats:
        stats = run(count=2, rate=rate, seconds=20.0 * times, mix=mix, policy="entropy")[1]
        seen.append((rate, times, stats.backlog_grows))
        return stats

    objective = Objective("", "A", "ttft_p50", 0.5)
    found = find_capacity(one, [objective], 40.0, step=0.05, confirm_times=4.0)
    assert found.stats is not None
    assert not found.stats.backlog_grows
    assert objective.kept(found.stats)
    assert found.rate_per_s < found.short_run_per_s
    assert found.tries == len(seen)
    assert seen[-1] == (found.rate_per_s, 4.0, False)


def test_a_growing_backlog_is_told_from_a_steady_one() -> None:
    fixed = fixed_service(0.01)

    def growth(rate: float) -> RunStats:
        wanted = demand(fixed["mix"], rate, 60.0, 5)
        return Simulation(QUEUE, units(1, fixed["profile"]), wanted, SimSettings(probes=False), "round_robin").run()

    steady, over = growth(80.0), growth(130.0)
    assert not steady.backlog_grows
    assert abs(steady.backlog_growth) < 0.05
    assert over.backlog_grows
    # 30 of 130 that arrive each second stay.
    assert over.backlog_growth == pytest.approx(30.0 / 130.0, rel=0.25)


def test_a_replicas_capacity_is_where_its_queue_grows() -> None:
    fixed = fixed_service(0.01)
    assert replica_capacity_per_s(fixed["profile"], fixed["mix"]) == pytest.approx(100.0, rel=0.01)
    fast = replica_capacity_per_s(fixed["profile"], fixed["mix"], speed=2.0)
    assert fast == pytest.approx(200.0, rel=0.01)


def test_nothing_measured_is_not_kept() -> None:
    _, stats = run(mix=SHORT)
    empty = dataclasses.replace(stats.scenarios[0], name="X", requests=0, ttft_p99=float("nan"))
    assert not Objective("", "X", "ttft_p99", 1.0).kept(dataclasses.replace(stats, scenarios=(empty,)))
