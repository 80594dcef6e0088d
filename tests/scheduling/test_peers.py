"""Several gateways: told placements are charged like own ones, homes divide the replicas, lost peers leave nothing."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, facts, report, rid

from exaserve.domain.replica import ReplicaSpec
from exaserve.domain.request import Outcome
from exaserve.scheduling import Placement, Scheduler, SchedulerConfig
from exaserve.scheduling.peers import home_of


def test_a_told_placement_is_charged_and_ends(build: Build) -> None:
    scheduler = build(2)
    scheduler.peers.placed("g2", 7, rid(0), 12_842, 13_000, True, 0.0)
    state = scheduler.states()[rid(0)]
    assert (state.inflight, state.told, state.depth) == (0, 1, 1)
    assert state.backlog_s(0.0) > 1.0
    assert scheduler.place(facts(), 0.0).replica_id == rid(1)  # type: ignore[union-attr]
    scheduler.peers.first_token("g2", 7, 1.5)
    assert state.backlog_s(1.5) == 0
    assert state.running == 1
    scheduler.peers.done("g2", 7, 3.0)
    scheduler.peers.done("g2", 7, 3.0)
    assert (state.told, state.kv.own, state.running) == (0, 0, 0)
    scheduler.validate()


def test_what_was_told_is_not_foreign_in_a_report_again(build: Build) -> None:
    scheduler = build(1)
    scheduler.peers.placed("g2", 1, rid(0), 1000, 1100, True, 0.0)
    scheduler.report(report(0, 1, 0.1, running=1, waiting=0, kv_use=0.01), 0.1)
    state = scheduler.states()[rid(0)]
    assert (state.seen.foreign_running, state.seen.foreign_waiting) == (0, 0)


def test_a_lost_peer_takes_its_placements_with_it(build: Build) -> None:
    scheduler = build(3)
    for ref in range(30):
        scheduler.peers.placed("g2", ref, rid(ref % 3), 100, 200, True, 0.0)
    scheduler.peers.placed("g3", 1, rid(0), 100, 200, True, 0.0)
    scheduler.peers.lost("g2", 1.0)
    assert len(scheduler.peers) == 1
    assert [scheduler.states()[rid(k)].told for k in range(3)] == [1, 0, 0]
    scheduler.validate()


def test_unknown_replicas_and_references_are_ignored(build: Build) -> None:
    scheduler = build(1)
    scheduler.peers.placed("g2", 1, rid(9), 100, 200, True, 0.0)
    scheduler.peers.first_token("g2", 5, 0.0)
    scheduler.peers.done("g2", 5, 0.0)
    assert len(scheduler.peers) == 0


def test_a_reference_used_again_replaces_the_old_one(build: Build) -> None:
    scheduler = build(2)
    scheduler.peers.placed("g2", 1, rid(0), 100, 200, True, 0.0)
    scheduler.peers.placed("g2", 1, rid(1), 100, 200, True, 0.0)
    assert [scheduler.states()[rid(k)].told for k in range(2)] == [0, 1]


def test_homes_are_agreed_even_and_stable() -> None:
    gateways = [f"g{k}" for k in range(8)]
    homes = {k: home_of(rid(k), gateways) for k in range(800)}
    assert min(Counter(homes.values()).values()) > 60
    fewer = {k: home_of(rid(k), gateways[:-1]) for k in range(800)}
    assert all(fewer[k] == home for k, home in homes.items() if home != "g7")


def test_each_place_in_line_is_one_gateways(build: Build) -> None:
    names = [f"g{k}" for k in range(5)]
    schedulers = [build(40) for _ in names]
    for name, scheduler in zip(names, schedulers, strict=True):
        scheduler.peers.set_gateways(name, names)
    for k in range(40):
        tolls = sorted(scheduler.states()[rid(k)].turf.toll for scheduler in schedulers)
        assert tolls == [0.0, 0.75, 1.0, 1.25, 1.5]


def test_gateways_with_the_same_snapshot_choose_their_own_homes(build: Build) -> None:
    names = [f"g{k}" for k in range(4)]
    chosen = []
    for name in names:
        scheduler = build(32)
        scheduler.peers.set_gateways(name, names)
        held = [scheduler.place(facts(2000), 0.0, [rid(j) for j in range(32) if j != k]) for k in range(32)]
        for k, p in enumerate(held):
            assert isinstance(p, Placement)
            scheduler.first_token(p, 0.25)
            scheduler.release(p, 0.5, Outcome.COMPLETED)
            scheduler.report(report(k, 1, 0.6, running=0, waiting=0, kv_use=0.0), 0.6)
        p2 = scheduler.place(facts(2000), 0.6)
        assert isinstance(p2, Placement)
        assert home_of(p2.replica_id, names) == name
        chosen.append(p2.replica_id)
    assert len(set(chosen)) == 4


def test_a_full_home_overflows_to_others(build: Build) -> None:
    scheduler = build(8)
    scheduler.peers.set_gateways("a", ["a", "b"])
    placed = {scheduler.place(facts(4000), 0.0).replica_id for _ in range(8)}  # type: ignore[union-attr]
    assert len(placed) == 8


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["placed", "first", "done", "lost", "own"]),
            st.sampled_from(["p", "q"]),
            st.integers(0, 4),
            st.integers(0, 2),
        ),
        max_size=60,
    )
)
def test_any_order_of_messages_leaves_nothing_behind(events: list[tuple[str, str, int, int]]) -> None:
    scheduler = Scheduler(SchedulerConfig(), Random(0))
    for k in range(3):
        scheduler.add(ReplicaSpec(rid(k), f"http://r{k}", ("m",)), 0.0)
        scheduler.set_health(rid(k), True, "up")
    own: list[Placement] = []
    for now, (kind, peer, ref, k) in enumerate(events):
        if kind == "placed":
            scheduler.peers.placed(peer, ref, rid(k), 100, 150, bool(ref % 2), float(now))
        elif kind == "first":
            scheduler.peers.first_token(peer, ref, float(now))
        elif kind == "done":
            scheduler.peers.done(peer, ref, float(now))
        elif kind == "lost":
            scheduler.peers.lost(peer, float(now))
        else:
            p = scheduler.place(facts(), float(now))
            assert isinstance(p, Placement)
            own.append(p)
        scheduler.validate()
    for p in own:
        scheduler.release(p, 1e3, Outcome.COMPLETED)
    for peer in ("p", "q"):
        scheduler.peers.lost(peer, 1e3)
    for state in scheduler.states().values():
        state.validate()
        assert (state.inflight, state.told, state.decoding, state.pending_s, state.kv.own) == (0, 0, 0, 0, 0)


def test_homes_are_dealt_in_pieces_while_work_goes_on(build: Build) -> None:
    names = [f"g{k}" for k in range(8)]
    scheduler, whole = build(100), build(100)
    whole.peers.set_gateways("g1", names)
    pieces = 0
    for _ in scheduler.peers.dealing("g1", names):
        pieces += 1
        placement = scheduler.place(facts(), 0.0)
        assert type(placement) is Placement
        if pieces == 1:
            scheduler.remove(rid(99))
        scheduler.validate()
    assert pieces > 2
    ranks = {state.id: (state.turf.home, state.turf.toll) for state in whole.states().values() if state.id != rid(99)}
    assert {state.id: (state.turf.home, state.turf.toll) for state in scheduler.states().values()} == ranks


def test_with_untold_work_a_gateway_leans_as_one_without_peers_does(build: Build) -> None:
    def tolls(*, untold: bool) -> set[float]:
        scheduler = build(8)
        scheduler.peers.set_gateways("a", ["a"], untold=untold)
        for seq in range(1, 100):
            for k in range(8):
                placement = scheduler.place(facts(), seq * 0.2)
                assert type(placement) is Placement
                scheduler.report(report(k, seq, seq * 0.2, running=20, waiting=0), seq * 0.2)
                scheduler.release(placement, seq * 0.2, Outcome.COMPLETED)
        return {state.turf.away_s for state in scheduler.states().values()}

    assert tolls(untold=False) == {0.0}
    assert len(tolls(untold=True)) == 8
