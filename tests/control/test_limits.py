"""Limits: no minute ever holds more than its bound, all meters are charged or none, and what failed costs nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.control.limits import LimitBook, Reservation, Shortage
from exaserve.control.meters import Meter
from exaserve.control.records import Allowance, LimitRule, Price

NONE = Allowance()


def meters(
    limits: LimitBook, allowance: Allowance = NONE, tenant: Allowance | None = None, model: str = "m"
) -> tuple[Meter, ...]:
    return limits.meters_for("k", allowance, "t", tenant, model)


def admitted(
    limits: LimitBook, found: tuple[Meter, ...], now: float, prompt: int = 10, output: int = 10
) -> Reservation | None:
    charge = limits.charge(found, "m", prompt, output, now)
    return charge if isinstance(charge, Reservation) else None


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(0, 40)), max_size=120), st.integers(1, 200))
def test_no_minute_ever_holds_more_than_the_bound(events, limit):
    limits = LimitBook()
    found = meters(limits, Allowance(tokens_per_minute=limit))
    let_in = []
    for at, tokens in sorted(events):
        if admitted(limits, found, at, tokens, 0) is not None:
            let_in.append((at, tokens))
        limits.validate()
    for start, _ in let_in:
        assert sum(tokens for at, tokens in let_in if start <= at < start + 60) <= limit


def test_a_bound_of_requests_lets_a_burst_through_and_then_what_leaves_the_window():
    limits = LimitBook()
    found = meters(limits, Allowance(requests_per_minute=3))
    assert [admitted(limits, found, 0.5) is not None for _ in range(4)] == [True, True, True, False]
    short = limits.charge(found, "m", 1, 1, 20.0)
    assert isinstance(short, Shortage)
    assert (short.wait_s, short.never, short.asked) == (41.0, False, 1.0)
    assert admitted(limits, found, 60.4) is None, "59.9 seconds after the first"
    assert admitted(limits, found, 61.0) is not None


def test_all_meters_are_charged_or_none():
    limits = LimitBook([LimitRule(model="m", tokens_per_minute=30)])
    found = meters(limits, Allowance(requests_per_minute=10), Allowance(concurrent_requests=5))
    assert len(found) == 3
    assert admitted(limits, found, 0.0, 10, 15) is not None
    before = [meter.used for meter in found]
    assert admitted(limits, found, 0.0, 10, 15) is None
    assert [meter.used for meter in found] == before


def test_many_at_once_reserve_what_they_will_use():
    limits = LimitBook()
    found = meters(limits, Allowance(tokens_per_minute=100))
    got = [admitted(limits, found, 0.0, 30, 100) for _ in range(5)]
    assert got == [None] * 5, "one asks for more than the whole bound"
    got = [admitted(limits, found, 0.0, 10, 20) for _ in range(5)]
    assert sum(each is not None for each in got) == 3


def test_what_was_not_used_is_given_back_to_its_own_second():
    limits = LimitBook()
    found = meters(limits, Allowance(tokens_per_minute=100, requests_per_minute=5, concurrent_requests=1))
    charge = admitted(limits, found, 0.0, 50, 50)
    assert charge is not None
    assert admitted(limits, found, 1.0, 0, 0) is None, "one at a time"
    limits.settle(charge, 40, 10, 0, counts=True)
    assert {meter.name.rpartition(":")[2]: meter.used for meter in found} == {
        "tokens_per_minute": 50, "requests_per_minute": 1, "concurrent_requests": 0,
    }  # fmt: skip
    failed = admitted(limits, found, 2.0, 50, 0)
    assert failed is not None
    limits.settle(failed, 0, 0, 0, counts=False)
    assert sum(meter.used for meter in found) == 51
    late = admitted(limits, found, 3.0, 50, 0)
    assert late is not None
    for meter in found:
        meter.advance(200)
    limits.settle(late, 10, 0, 0, counts=True)
    assert sum(meter.used for meter in found) == 0, "its minute is over"
    limits.validate()


@given(st.integers(0, 2**32))
def test_whatever_happens_counters_end_at_what_is_under_way(seed):
    rng = random.Random(seed)
    limits = LimitBook()
    found = meters(limits, Allowance(tokens_per_minute=500, concurrent_requests=7, tokens_per_day=10_000))
    open_: list[Reservation] = []
    now = 0.0
    for _ in range(60):
        now += rng.random() * 20
        charge = admitted(limits, found, now, rng.randrange(60), rng.randrange(60))
        if charge is not None:
            open_.append(charge)
        if open_ and rng.random() < 0.6:
            gone = open_.pop(rng.randrange(len(open_)))
            limits.settle(gone, rng.randrange(80), rng.randrange(80), 0, counts=rng.random() < 0.5)
        by = {meter.name.rpartition(":")[2]: meter for meter in found}
        assert by["concurrent_requests"].used == len(open_)
        assert by["tokens_per_day"].pending == sum(c.input_tokens + c.output_tokens for c in open_)
        limits.validate()


def test_rules_share_what_they_leave_out_and_divide_by_what_is_a_pattern():
    limits = LimitBook(
        [
            LimitRule(tenant="*", requests_per_minute=5),
            LimitRule(requests_per_minute=9),
            LimitRule(key="other", requests_per_minute=1),
        ]
    )
    one = limits.meters_for("k1", NONE, "a", None, "m")
    two = limits.meters_for("k2", NONE, "b", None, "m")
    assert [meter.name for meter in one] == ["rule:tenant=a:requests_per_minute", "rule::requests_per_minute"]
    assert one[0] is not two[0]
    assert one[1] is two[1]


def test_a_changed_limit_keeps_what_was_used():
    limits = LimitBook()
    found = meters(limits, Allowance(requests_per_minute=2))
    admitted(limits, found, 0.0)
    again = meters(limits, Allowance(requests_per_minute=1))
    assert again[0] is found[0]
    assert admitted(limits, again, 1.0) is None


def test_money_is_counted_by_prices_and_cached_input_is_cheaper():
    limits = LimitBook(prices={"m*": Price(input=1.0, cached_input=0.1, output=2.0)})
    assert limits.cost("m", 1_000_000, 500_000, 400_000) == pytest.approx(0.6 + 0.04 + 1.0)
    assert limits.cost("other", 1, 1) is None
    found = meters(limits, Allowance(money_per_month=1.0))
    charge = admitted(limits, found, 0.0, 500_000, 100_000)
    assert charge is not None
    short = limits.charge(found, "m", 500_000, 0, 0.0)
    assert isinstance(short, Shortage)
    limits.settle(charge, 500_000, 0, 500_000, counts=True)
    assert found[0].used == pytest.approx(0.05)


def test_a_request_that_began_in_another_month_is_not_counted_in_this_one():
    limits = LimitBook()
    found = meters(limits, Allowance(tokens_per_month=100))
    charge = admitted(limits, found, 0.0, 50, 0)
    assert charge is not None
    limits.roll("month")
    limits.settle(charge, 50, 0, 0, counts=True)
    assert (found[0].used, found[0].pending) == (0.0, 0.0)


def test_near_the_bound_gateways_that_hear_each_other_in_turn_do_not_pass_it():
    shared = Shared(4, Allowance(requests_per_minute=50))
    let_in = 0
    for turn in range(400):
        let_in += admitted(shared.all[turn % 4], shared.found[turn % 4], 1.0) is not None
        if turn % 4 == 3:
            for who in range(4):
                shared.tell(who)
            while shared.waiting:
                shared.deliver(1)
    assert 50 <= let_in <= 53


class Shared:
    """Gateways that hear each other after a delay, as messages: each telling is confirmed when it is heard."""

    def __init__(self, count: int, allowance: Allowance) -> None:
        self.all = [LimitBook() for _ in range(count)]
        for limits in self.all:
            limits.share_with(count - 1, count - 1)
        self.found = [meters(limits, allowance) for limits in self.all]
        self.waiting: list[tuple[int, list[tuple[str, int, float]], Meter, float]] = []

    def tell(self, who: int) -> None:
        for meter in self.found[who]:
            if meter.changes:
                rows = [(meter.name, second, amount) for second, amount in meter.changes.items()]
                self.waiting.append((who, rows, meter, sum(meter.changes.values())))
                meter.changes = {}

    def deliver(self, now: int) -> None:
        who, rows, meter, amount = self.waiting.pop(0)
        for other, limits in enumerate(self.all):
            if other != who:
                for row in rows:
                    limits.hear(*row, now)
        meter.unheard -= amount


@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([3, 10, 40]))
def test_gateways_together_pass_a_bound_by_at_most_what_the_others_have_not_been_heard_of(seed, count, limit):
    rng = random.Random(seed)
    shared = Shared(count, Allowance(requests_per_minute=limit))
    let_in = 0
    unheard = [0.0] * count
    for _ in range(400):
        who = rng.randrange(count)
        what = rng.random()
        if what < 0.6:
            let_in += admitted(shared.all[who], shared.found[who], 1.0) is not None
            unheard[who] = max(unheard[who], shared.found[who][0].unheard)
        elif what < 0.8:
            shared.tell(who)
        elif shared.waiting:
            shared.deliver(1)
    assert let_in <= limit + sum(sorted(unheard)[1:])
    assert max(unheard) <= max(1, limit / count)
    for _ in range(limit * count):
        for who in range(count):
            shared.tell(who)
        while shared.waiting:
            shared.deliver(1)
        let_in += admitted(shared.all[0], shared.found[0], 1.0) is not None
    assert let_in >= limit, "nothing of the bound is lost"


def test_where_peers_are_lost_each_side_keeps_to_its_part():
    limits = LimitBook()
    limits.share_with(0, 3)
    found = meters(limits, Allowance(requests_per_minute=8))
    assert sum(admitted(limits, found, 0.0) is not None for _ in range(8)) == 2
    limits.share_with(3, 3)
    assert admitted(limits, found, 0.0) is not None
