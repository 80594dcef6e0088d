"""What runs of observations do to a replica, in virtual time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exaserve.domain.replica import ReplicaId
from exaserve.health import FailureKind, HealthBook, HealthChange, HealthConfig, judge_probe

R = ReplicaId("r")
CONFIG = HealthConfig()


class Noted:
    """A book, and the changes it has returned. Not a subclass: compiled classes are no bases of others."""

    def __init__(self, config: HealthConfig = CONFIG) -> None:
        self._book = HealthBook(config)
        self.changes: list[HealthChange] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._book, name)

    def failed(self, replica, kind, now):
        return self._note(self._book.failed(replica, kind, now))

    def renewed(self, replica, reason, now):
        return self._note(self._book.renewed(replica, reason, now))

    def probed(self, replica, ok, detail, now, latency_s):
        return self._note(self._book.probed(replica, ok, detail, now, latency_s))

    def probe_finished(self, replica, now, **result):
        return self._note(self._book.probe_finished(replica, now, **result))

    def tick(self, now):
        changes = self._book.tick(now)
        self.changes += changes
        return changes

    def _note(self, change):
        if change is not None:
            self.changes.append(change)
        return change


class Bench:
    """A book with one replica and what it changed."""

    def __init__(self, config: HealthConfig = CONFIG) -> None:
        self.book = Noted(config)
        self.now = 100.0
        self.book.add(R, self.now)

    def healthy(self) -> Bench:
        self.book.probed(R, True, "ok", self.now, 0.01)
        assert self.up
        return self

    def ejected(self) -> Bench:
        self.healthy()
        for _ in range(CONFIG.failures_max):
            self.book.failed(R, FailureKind.RESET, self.now)
        assert self.state == "ejected"
        return self

    def half_open(self) -> Bench:
        self.ejected()
        self.pass_(CONFIG.open_s)
        assert self.state == "half_open"
        return self

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self.book.tick(self.now)

    @property
    def changes(self) -> list[tuple[bool, str, float]]:
        return [(each.available, each.reason, each.share) for each in self.book.changes]

    @property
    def up(self) -> bool:
        return bool(self.changes) and self.changes[-1][0]

    @property
    def state(self) -> str:
        return str(self.book.view(R, self.now).state)


def test_never_probed_is_not_available():
    bench = Bench()
    assert not bench.book.view(R).available
    assert bench.changes == []
    assert bench.book.due(bench.now) == [R]


def test_one_good_probe_is_enough_for_a_replica_without_a_past():
    bench = Bench().healthy()
    assert bench.changes[-1] == (True, "probed", 1.0)
    assert bench.book.due(bench.now + CONFIG.probe_interval_s - 0.01) == []
    assert bench.book.due(bench.now + CONFIG.probe_interval_s) == [R]


def test_unknown_replicas_are_probed_quickly_and_then_less_often():
    bench = Bench()
    waits = []
    for _ in range(12):
        bench.book.probe_started(R)
        bench.book.probe_finished(R, bench.now, status=None, latency_s=0.001, error="refused")
        began = bench.now
        while not bench.book.due(bench.now):
            bench.now += 0.01
        waits.append(bench.now - began)
    assert waits[0] == pytest.approx(CONFIG.probe_fast_s, abs=0.02)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(CONFIG.probe_interval_s, abs=0.02)
    assert not bench.up


def test_two_failures_do_not_eject_and_a_success_forgets_them():
    bench = Bench().healthy()
    for _ in range(10):
        bench.book.failed(R, FailureKind.CONNECT, bench.now)
        bench.book.failed(R, FailureKind.CONNECT, bench.now)
        for _ in range(5):
            bench.book.succeeded(R, bench.now)
    assert bench.state == "healthy"


def test_failures_in_a_row_eject_at_once():
    bench = Bench().ejected()
    assert bench.changes[-1][0] is False
    assert "3 failures in a row, last: reset" in bench.changes[-1][1]


def test_a_failure_rate_ejects_although_answers_lie_between():
    bench = Bench().healthy()
    for _ in range(6):
        bench.book.failed(R, FailureKind.STATUS_5XX, bench.now)
        bench.book.succeeded(R, bench.now)
    assert bench.state == "ejected"


def test_failures_that_left_the_window_do_not_count():
    bench = Bench().healthy()
    for _ in range(30):
        bench.book.failed(R, FailureKind.STATUS_5XX, bench.now)
        for _ in range(2):
            bench.book.succeeded(R, bench.now)
        bench.pass_(CONFIG.window_s / 3)
    assert bench.state == "healthy"


def test_what_fails_a_part_of_the_time_gets_less_and_then_its_share_back():
    bench = Bench().healthy()
    for _ in range(8):
        bench.book.succeeded(R, bench.now)
        bench.book.succeeded(R, bench.now)
        bench.book.failed(R, FailureKind.STATUS_5XX, bench.now)
    bench.pass_(0.0)
    assert bench.changes[-1][2] == pytest.approx(0.7)
    bench.pass_(CONFIG.window_s + 1)
    assert bench.changes[-1] == (True, "probed", 1.0)


def test_suspicion_brings_the_next_probe_forward():
    bench = Bench().healthy()
    bench.book.failed(R, FailureKind.RESET, bench.now)
    assert bench.book.due(bench.now + CONFIG.probe_fast_s) == [R]


def test_ejected_is_left_alone_longer_each_time_but_never_for_long():
    bench = Bench().ejected()
    opens = []
    for _ in range(8):
        began = bench.now
        while bench.state == "ejected":
            assert bench.book.due(bench.now) == []
            bench.pass_(0.05)
        opens.append(bench.now - began)
        assert bench.book.due(bench.now) == [R]
        bench.book.probe_started(R)
        bench.book.probe_finished(R, bench.now, status=503, latency_s=0.01)
        assert bench.state == "ejected"
    assert opens[0] == pytest.approx(CONFIG.open_s, abs=0.06)
    assert opens[1] == pytest.approx(2 * CONFIG.open_s, abs=0.06)
    assert opens[-1] == pytest.approx(CONFIG.open_max_s, abs=0.06)


def test_half_open_takes_nothing_until_probes_went_well_in_a_row():
    bench = Bench().half_open()
    bench.book.probed(R, True, "ok", bench.now, 0.01)
    assert not bench.up
    assert bench.book.due(bench.now + CONFIG.probe_fast_s) == [R]
    bench.book.probed(R, True, "ok", bench.now, 0.01)
    assert bench.changes[-1] == (True, "2 probes well", 0.1)


def test_a_bad_probe_between_good_ones_starts_over():
    bench = Bench().half_open()
    bench.book.probed(R, True, "ok", bench.now, 0.01)
    bench.book.probed(R, False, "no", bench.now, 0.01)
    assert bench.state == "ejected"
    bench.pass_(10)
    bench.book.probed(R, True, "ok", bench.now, 0.01)
    assert bench.state == "half_open"


def test_slow_start_grows_to_the_full_share():
    bench = Bench().half_open()
    for _ in range(CONFIG.recoveries_min):
        bench.book.probed(R, True, "ok", bench.now, 0.01)
    before = len(bench.changes)
    for _ in range(int(CONFIG.slow_start_s / 0.1) + 1):
        bench.pass_(0.1)
    shares = [share for _, _, share in bench.changes[before - 1 :]]
    assert shares == sorted(shares)
    assert shares[0] == 0.1
    assert shares[-1] == 1.0
    assert len(shares) <= 12, "shares are told in steps"
    assert bench.state == "healthy"


def test_a_frozen_replica_is_out_once_a_second_probe_has_missed_the_limit():
    bench = Bench().healthy()
    began = bench.now
    bench.now += CONFIG.probe_interval_s
    assert bench.book.due(bench.now) == [R]
    assert bench.book.probe_started(R) == CONFIG.probe_timeout_s
    bench.now += CONFIG.probe_timeout_s
    bench.book.probe_finished(R, bench.now, status=None, latency_s=CONFIG.probe_timeout_s, error="no answer")
    assert bench.state == "healthy", "one probe is not enough"
    bench.now += CONFIG.probe_fast_s
    assert bench.book.due(bench.now) == [R]
    assert bench.book.probe_started(R) == CONFIG.probe_limit_s
    bench.now += CONFIG.probe_limit_s
    bench.book.probe_finished(R, bench.now, status=None, latency_s=CONFIG.probe_limit_s, error="no answer")
    assert bench.state == "ejected"
    assert bench.now - began == CONFIG.probe_interval_s + CONFIG.probe_timeout_s + CONFIG.probe_fast_s + 2.0


def test_another_process_takes_nothing_until_one_probe_has_gone_well():
    bench = Bench().healthy()
    bench.book.renewed(R, "restarted", bench.now)
    assert bench.state == "half_open"
    assert bench.book.due(bench.now) == [R]
    bench.book.probe_started(R)
    bench.book.probe_finished(R, bench.now, status=200, latency_s=0.01)
    assert bench.state == "ramping"


def test_a_probe_that_the_process_before_may_have_answered_does_not_count():
    bench = Bench().healthy()
    bench.book.probe_started(R)
    bench.book.renewed(R, "restarted", bench.now)
    bench.book.probe_finished(R, bench.now, status=200, latency_s=0.01)
    assert bench.state == "half_open"
    bench.book.probe_started(R)
    bench.book.probe_finished(R, bench.now, status=200, latency_s=0.01)
    assert bench.state == "ramping"


@pytest.mark.parametrize("sign", ["succeeded", "progressed"])
def test_a_full_replica_that_works_is_not_frozen(sign):
    bench = Bench().healthy()
    for _ in range(5):
        bench.book.probe_started(R)
        bench.now += 2.5
        getattr(bench.book, sign)(R, bench.now)
        bench.now += 2.5
        bench.book.probe_finished(R, bench.now, status=None, latency_s=5.0, error="no answer")
        assert bench.state == "healthy"
    for wait_s in (5.1, 2.1):
        limit_s = bench.book.probe_started(R)
        bench.now += wait_s
        bench.book.probe_finished(R, bench.now, status=None, latency_s=limit_s, error="no answer")
    assert bench.state == "ejected"


@pytest.mark.parametrize(
    ("status", "latency_s", "progressed", "strikes"),
    [
        (200, 0.1, False, 0),
        (200, 2.0, False, 0),
        (200, 2.1, False, 1),
        (200, 4.0, True, 0),
        (429, 0.1, False, 0),
        (404, 0.1, False, 1),
        (401, 0.1, False, 1),
        (500, 0.1, True, 1),
        (None, 0.01, True, 1),
        (None, 5.0, False, 2),
        (None, 4.999, False, 2),
        (None, 5.0, True, 0),
    ],
)
def test_verdicts(status, latency_s, progressed, strikes):
    verdict = judge_probe(CONFIG, status=status, latency_s=latency_s, progressed=progressed)
    assert verdict.strikes == strikes
    assert verdict.ok == (strikes == 0)


def test_one_bad_probe_is_no_ejection_but_the_next_comes_soon():
    bench = Bench().healthy()
    for _ in range(CONFIG.strikes_max - 1):
        bench.book.probed(R, False, "slow", bench.now, 3.0)
        assert bench.state == "healthy"
        assert bench.book.due(bench.now + CONFIG.probe_fast_s) == [R]
    bench.book.probed(R, False, "slow", bench.now, 3.0)
    assert bench.state == "ejected"


def test_stragglers_of_an_ejected_or_removed_replica_say_nothing():
    bench = Bench().ejected()
    changes = list(bench.changes)
    bench.book.succeeded(R, bench.now)
    bench.book.failed(R, FailureKind.TIMEOUT, bench.now)
    bench.book.remove(R)
    for _ in range(5):
        bench.book.succeeded(R, bench.now)
        bench.book.failed(R, FailureKind.TIMEOUT, bench.now)
        bench.book.progressed(R, bench.now)
        bench.book.probe_finished(R, bench.now, status=200, latency_s=0.1)
        bench.pass_(10)
    assert bench.changes == changes
    with pytest.raises(KeyError):
        bench.book.view(R)


def test_an_id_twice_is_refused():
    bench = Bench()
    with pytest.raises(ValueError, match="already known"):
        bench.book.add(R, 0.0)


@pytest.mark.parametrize(
    "bad",
    [
        {"probe_interval_s": 0.0},
        {"strikes_max": 0},
        {"slow_start_share": 0.0},
        {"failure_rate_max": 1.5},
        {"probe_limit_s": 6.0},
        {"open_s": 10.0},
        {"probe_backoff": 0.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        HealthConfig(**bad)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 1.0)), max_size=200))
def test_noise_within_the_hysteresis_never_moves_a_healthy_replica(steps):
    """At most two failures between successes, under half of the answers, and one bad probe at a time: no change."""
    bench = Bench().healthy()
    for failures, wait_s in steps:
        for _ in range(2 * failures + 1):
            bench.book.succeeded(R, bench.now)
        for _ in range(failures):
            bench.book.failed(R, FailureKind.STATUS_5XX, bench.now)
        bench.book.probed(R, False, "slow", bench.now, 3.0)
        bench.book.probed(R, True, "ok", bench.now, 0.1)
        bench.pass_(wait_s)
        assert bench.state == "healthy"
    assert all(up for up, _, _ in bench.changes)


class BookMachine(RuleBasedStateMachine):
    """Any order of events: no illegal transition, the invariants hold, ejections never follow each other closely."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.available: dict[ReplicaId, bool] = {}
        self.flips: dict[ReplicaId, list[float]] = {}
        self.book = Noted(HealthConfig())
        for index in range(3):
            self.book.add(ReplicaId(f"r{index}"), self.now)

    def look(self) -> None:
        """What has changed since."""
        for change in self.book.changes:
            replica, up = change.replica, change.available
            assert (change.share > 0) == up
            if up and not self.available.get(replica, False):
                self.flips.setdefault(replica, []).append(self.now)
            self.available[replica] = up
        self.book.changes.clear()

    replicas = st.sampled_from([ReplicaId(f"r{index}") for index in range(4)])

    @rule(replica=replicas, kind=st.sampled_from(list(FailureKind)))
    def fail(self, replica, kind):
        self.book.failed(replica, kind, self.now)

    @rule(replica=replicas)
    def succeed(self, replica):
        self.book.succeeded(replica, self.now)

    @rule(replica=replicas)
    def progress(self, replica):
        self.book.progressed(replica, self.now)

    @rule(replica=replicas, status=st.sampled_from([200, 429, 500, None]), latency_s=st.floats(0, 6))
    def probe(self, replica, status, latency_s):
        if replica in self.book.due(self.now):
            self.book.probe_started(replica)
            self.book.probe_finished(replica, self.now, status=status, latency_s=latency_s)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds):
        self.now += seconds
        self.book.tick(self.now)

    @rule(replica=replicas)
    def leave_and_return(self, replica):
        self.look()
        self.book.remove(replica)
        self.available.pop(replica, None)
        self.flips.pop(replica, None)
        self.book.add(replica, self.now)

    @invariant()
    def holds(self):
        if hasattr(self, "book"):
            self.look()
            self.book.validate()
            for times in self.flips.values():
                gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
                assert all(gap >= HealthConfig().open_s for gap in gaps)


TestBook = BookMachine.TestCase
