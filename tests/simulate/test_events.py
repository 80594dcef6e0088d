"""Scripted trouble: what clients feel, and that health and retries deal with it as in the live gateway."""

from __future__ import annotations

import pytest
from tests.simulate.small import SHORT, run

from exaserve.domain.errors import ConfigError
from exaserve.simulate.replica import Mode
from exaserve.simulate.script import ScriptEvent, parse_script, rate_factors, select


def script(*lines: str) -> tuple[ScriptEvent, ...]:
    return parse_script("\n".join(f"- {line}" for line in lines))


def test_a_crash_is_retried_and_answers_that_had_begun_are_cut() -> None:
    simulation, stats = run(count=8, rate=25.0, seconds=10.0, events=script("{at: 4s, fail: node0/*}"))
    assert stats.retried > 0
    assert set(stats.errors) == {"cut"}, "what had no token yet was tried again elsewhere"
    assert stats.errors["cut"] < 0.15 * stats.all.requests
    health = simulation.gateways[0].fleet
    assert {health.view(r.id).available for r in simulation.world.replicas.values() if r.mode is Mode.DOWN} == {False}
    after = [p for p in simulation.recorder.error[-100:] if p]
    assert after == [], "nothing fails once the breaker is open"


def test_a_recovered_replica_takes_requests_again() -> None:
    events = script("{at: 2s, fail: node0/r0}", "{at: 4s, recover: node0/r0}")
    simulation, _ = run(count=4, rate=40.0, seconds=25.0, mix=SHORT, events=events)
    back = simulation.world.replicas["node0/r0"]  # type: ignore[index]
    assert simulation.gateways[0].fleet.view(back.id).state in ("healthy", "ramping")
    assert back.engine.prompt_tokens_total > 0, "a new engine, and it has worked"


def test_a_frozen_replica_is_taken_out_and_its_requests_move() -> None:
    simulation, stats = run(count=8, rate=40.0, seconds=30.0, events=script("{at: 5s, freeze: node0/r1}"))
    view = simulation.gateways[0].fleet.view("node0/r1")  # type: ignore[arg-type]
    assert not view.available
    assert stats.retried > 0, "those without a token were moved away"
    assert set(stats.errors) <= {"cut", "timeout"}
    assert stats.all.failed < 40


def test_a_thawed_replica_finishes_what_it_had() -> None:
    events = script("{at: 5s, freeze: node0/r1}", "{at: 6s, thaw: node0/r1}")
    _, stats = run(count=8, rate=40.0, seconds=12.0, events=events)
    assert stats.errors == {}
    assert stats.all.ttft_max >= 0.5


def test_unplugged_replicas_time_out_by_connecting() -> None:
    _, stats = run(count=8, rate=40.0, seconds=12.0, events=script("{at: 3s, unplug: 1}"))
    assert stats.retried > 0
    assert 2.0 <= stats.all.ttft_max < 10.0, "each of at most four connection attempts takes two seconds to fail"
    assert set(stats.errors) == {"cut"}, "answers that had begun there are given up after a minute of silence"


def test_a_slow_replica_gets_less() -> None:
    load = {"count": 8, "rate": 40.0, "seconds": 30.0, "probes": False}
    simulation, _ = run(events=script("{at: 0, slow: node0/r0, factor: 6}"), **load)
    placed = {i: s.placed_total for i, s in simulation.gateways[0].scheduler.states().items()}
    others = [n for i, n in placed.items() if i != "node0/r0"]
    assert placed["node0/r0"] < 0.8 * sum(others) / len(others)  # type: ignore[index]


def test_errors_attract_nothing() -> None:
    simulation, stats = run(count=8, rate=40.0, seconds=12.0, events=script("{at: 3s, errors: node1/r0, share: 1}"))
    assert not simulation.gateways[0].fleet.view("node1/r0").available  # type: ignore[arg-type]
    assert stats.all.failed == 0
    assert 3 <= stats.retried < 60


def test_drained_and_weightless_replicas_get_nothing_new() -> None:
    events = script("{at: 0, drain: node0/*}", "{at: 0, weight: node1/r0, share: 0}", "{at: 9s, undrain: node0/r0}")
    simulation, stats = run(count=8, rate=30.0, seconds=12.0, mix=SHORT, events=events)
    placed = {i: s.placed_total for i, s in simulation.gateways[0].scheduler.states().items()}
    assert placed["node0/r1"] == placed["node1/r0"] == 0  # type: ignore[index]
    assert placed["node0/r0"] > 0  # type: ignore[index]
    assert stats.errors == {}


def test_scaling_adds_what_becomes_ready_and_removes_in_peace() -> None:
    events = script("{at: 2s, add: 3, ready: 2s, version: v2}", "{at: 8s, remove: node0/*}")
    simulation, stats = run(count=4, rate=40.0, seconds=14.0, mix=SHORT, events=events)
    assert sorted(simulation.world.replicas) == ["added/r1", "added/r2", "added/r3"]
    assert {s.spec.version for s in simulation.gateways[0].scheduler.states().values()} == {"v2"}
    assert all(s.placed_total for s in simulation.gateways[0].scheduler.states().values())
    assert stats.errors == {}


def test_a_rollout_replaces_every_replica_without_an_error() -> None:
    events = script("{at: 2s, rollout: v2, batch: 2, ready: 1s}")
    simulation, stats = run(count=6, rate=30.0, seconds=30.0, mix=SHORT, events=events)
    assert {r.spec.version for r in simulation.world.replicas.values()} == {"v2"}
    assert stats.errors == {}


def test_all_replicas_down_is_said_so() -> None:
    _, stats = run(count=2, rate=20.0, seconds=45.0, mix=SHORT, events=script("{at: 1s, fail: all}"))
    assert stats.errors["no_replica_ready"] > 0
    assert stats.all.failed > 0.9 * stats.all.requests


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{at: 1s}", "exactly one of"),
        ("{fail: all}", "needs at"),
        ("{at: 1s, fail: all, drain: all}", "exactly one"),
        ("{at: soon, fail: all}", "'soon'"),
        ("{at: 1s, fail: all, factor: 2}", "factor is no option"),
        ("{at: 1s, slow: all}", "needs factor"),
        ("{at: 1s, slow: all, factor: 0}", "above 0"),
        ("{at: 1s, errors: all, share: 2}", "from 0 to 1"),
        ("{at: 1s, rate: -1}", "'-1'"),
        ("[1]", "must be a mapping"),
    ],
)
def test_a_wrong_script_is_explained(line: str, what: str) -> None:
    with pytest.raises(ConfigError, match="events") as error:
        script(line)
    assert what in error.value.message


def test_scripts_are_read_in_order_of_time_with_units() -> None:
    events = parse_script("events:\n- {at: 1m, fail: all}\n- {at: 250ms, rate: 1.5}\n- {at: 2, rate: 2}\n")
    assert [(e.at_s, e.action) for e in events] == [(0.25, "rate"), (2.0, "rate"), (60.0, "fail")]
    assert rate_factors(events) == ((0.25, 1.5), (2.0, 2.0))


def test_replicas_are_selected_in_four_ways() -> None:
    import random

    pairs = [(f"node{k // 2}/r{k % 2}", "v2" if k > 5 else "v1") for k in range(8)]
    rng = random.Random(1)
    assert select("node1/*", pairs, rng) == ["node1/r0", "node1/r1"]
    assert select("version:v2", pairs, rng) == ["node3/r0", "node3/r1"]
    assert len(set(select("3", pairs, rng))) == 3
    assert len(set(select("50%", pairs, rng))) == 4
    assert len(select("all", pairs, rng)) == 8
    with pytest.raises(ConfigError, match="names no replica"):
        select("node9/*", pairs, rng)
