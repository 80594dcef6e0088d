"""A report that still holds must count as one that was sent again."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduling.conftest import Build, facts, report, rid

from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.domain.request import Outcome
from exaserve.scheduling import Placement, Scheduler, SchedulerConfig
from exaserve.scheduling.kv import KvAccount
from exaserve.scheduling.ledger import ReplicaLedger
from exaserve.scheduling.seen import Seen
from exaserve.scheduling.standing import Standing
from exaserve.scheduling.turf import Turf

FIGURES = {"running": 4, "waiting": 1, "kv_use": 0.2, "kv_tokens_max": 100_000}
# The age of a report and its number are what a confirmation moves; of speed, only what its next reading would give.
AGE = {"report", "speed", "idle_set", "prices", "_rate_version", "__dict__"}

PARTS = (KvAccount, Seen, Standing, Turf)

steps = st.lists(st.sampled_from(["place", "first", "end", "hold", "pass"]), max_size=30)


def derived(scheduler: Scheduler) -> list[dict[str, object]]:
    return [figures(ledger) for ledger in scheduler.states().values()]


def figures(of: object) -> dict[str, object]:
    """Every attribute of a ledger and of its parts."""
    names: tuple[str, ...] = getattr(type(of), "__mypyc_attrs__", None) or type(of).__slots__  # type: ignore[attr-defined]
    values = {name: getattr(of, name) for name in names if name not in AGE}
    parts = {name: figures(value) for name, value in values.items() if isinstance(value, PARTS)}
    return values | parts | ({"pending": len(of.pending)} if isinstance(of, ReplicaLedger) else {})


@given(steps)
def test_a_confirmed_report_leaves_what_the_same_report_sent_again_leaves(events: list[str]) -> None:
    config = SchedulerConfig(lean_share=0.0)  # which way it leans follows what reports say in the mean, not this one

    def make() -> Scheduler:
        scheduler = Scheduler(config, Random(1))
        for k in range(3):
            scheduler.add(ReplicaSpec(rid(k), f"http://127.0.0.1:{9000 + k}", models=("m",)), 0.0)
            scheduler.set_health(rid(k), True, "test")
            scheduler.report(report(k, 1, 0.0, **FIGURES), 0.0)
        return scheduler

    confirmed, repeated = make(), make()
    placed: list[tuple[Placement, Placement]] = []
    now, seq = 0.0, 1
    for event in events:
        now += 0.05
        if event == "place":
            pair = [each.place(facts(prompt=512), now) for each in (confirmed, repeated)]
            assert type(pair[0]) is Placement is type(pair[1])
            placed.append((pair[0], pair[1]))
        elif event == "first" and placed:
            for each, placement in zip((confirmed, repeated), placed[-1], strict=True):
                each.first_token(placement, now)
        elif event == "end" and placed:
            for each, placement in zip((confirmed, repeated), placed.pop(0), strict=True):
                each.release(placement, now, Outcome.COMPLETED)
        elif event == "hold":
            seq += 1
            confirmed.confirm([rid(0), rid(1), rid(2), ReplicaId("nobody")], seq, now - 0.01, now)
            for k in range(3):
                repeated.report(report(k, seq, now - 0.01, **FIGURES), now)
        assert derived(confirmed) == derived(repeated)
        confirmed.validate()
        repeated.validate()


def test_a_confirmation_that_is_too_old_or_of_nothing_says_nothing(build: Build) -> None:
    scheduler = build(2)
    scheduler.report(report(0, 1, 1.0, **FIGURES), 1.0)
    scheduler.confirm([rid(0), rid(1)], 2, 1.5, 100.0)
    state = scheduler.states()[rid(0)]
    assert state.seen.at == 1.0
    assert scheduler.states()[rid(1)].seen.report is None
    scheduler.tick(100.0)
    assert not state.seen.fresh
    scheduler.confirm([rid(0), rid(1)], 3, 100.0, 100.0)
    assert state.seen.fresh
    assert state.seen.at == 100.0
    assert state.running == 4


def test_a_replica_follows_what_its_peers_learn_of_their_speed(build: Build) -> None:
    """The model of a kind of replicas is shared; one that serves nothing itself hears of it by its reports."""
    scheduler = build(2, spec={"prefill_tokens_per_s": 10_000.0})
    for k in range(2):
        scheduler.report(report(k, 1, 0.0, **FIGURES), 0.0)
    before = scheduler.states()[rid(1)].per_token_s
    now = 0.0
    for _ in range(32):
        placement = scheduler.place(facts(prompt=1000), now, exclude=[rid(1)])
        assert type(placement) is Placement
        now += 0.5
        scheduler.first_token(placement, now)
        scheduler.release(placement, now, Outcome.COMPLETED)
    assert scheduler.states()[rid(1)].per_token_s == before
    scheduler.confirm([rid(1)], 2, now, now)
    assert scheduler.states()[rid(1)].per_token_s > 2.0 * before
