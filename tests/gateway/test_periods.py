"""Bounds of days and months: the calendar turns in UTC, sums outlive the process, and old ones go."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from exaserve.control.limits import LimitBook, Reservation
from exaserve.control.records import Allowance
from exaserve.gateway.guard.periods import PeriodKeeper
from exaserve.gateway.guard.state import ControlState
from exaserve.observe import EventLog

pytestmark = pytest.mark.may_block
DAY = 86_400.0
NOVEMBER_30 = 1795996800.0
"""2026-11-30 00:00:00 UTC."""
ALLOWANCE = Allowance(tokens_per_day=1_000, tokens_per_month=5_000)


class Kept:
    """A limit book with a calendar, over a folder."""

    def __init__(self, folder: Path, at: float, node: str = "g1") -> None:
        self.at = at
        self.state = ControlState(folder, "w", EventLog(lambda _: None), lambda: self.at)
        self.limits = LimitBook()
        self.periods = PeriodKeeper(self.limits, self.state, node, lambda: self.at)
        self.meters = self.limits.meters_for("k", ALLOWANCE, "t", None, "m")

    def use(self, tokens: int) -> None:
        charge = self.limits.charge(self.meters, "m", tokens, 0, self.at)
        assert isinstance(charge, Reservation)
        self.limits.settle(charge, tokens, 0, 0, counts=True)

    def used(self) -> list[float]:
        return [meter.used + meter.heard for meter in self.meters]

    async def close(self) -> None:
        self.periods.tick()
        await self.state.stop()


async def test_sums_outlive_the_process_until_their_period_is_over(tmp_path: Path) -> None:
    one = Kept(tmp_path, NOVEMBER_30 - DAY)
    one.use(100)
    await one.close()
    again = Kept(tmp_path, NOVEMBER_30 - 1)
    assert again.used() == [100, 100]
    again.at = NOVEMBER_30
    again.periods.tick()
    assert again.used() == [0, 100], "a day later in the same month"
    again.use(50)
    again.periods.tick()
    again.at = NOVEMBER_30 + DAY
    again.periods.tick()
    assert again.used() == [0, 0]
    again.use(7)
    await again.close()
    late = Kept(tmp_path, NOVEMBER_30 + DAY)
    assert late.used() == [7, 7]
    assert {row[1] for row in late.state.counters()} == {"2026-12-01", "2026-12"}
    await late.close()


async def test_what_another_gateway_used_counts_and_is_not_counted_twice(tmp_path: Path) -> None:
    one, two = Kept(tmp_path, NOVEMBER_30, "g1"), Kept(tmp_path, NOVEMBER_30, "g2")
    one.use(100)
    for _ in range(2):
        two.periods.hear(one.periods.told())
    assert two.used() == [100, 100]
    two.use(30)
    await one.close()
    await two.close()
    three = Kept(tmp_path, NOVEMBER_30, "g3")
    assert three.used() == [130, 130]
    day = "key=k:tokens_per_day"
    three.periods.hear([(day, "2026-11-30", "g1", 100.0), (day, "2026-11-29", "g1", 9e9)])
    assert three.used() == [130, 130]
    await three.close()


async def test_nothing_is_written_before_there_is_something_to_keep(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    kept = Kept(folder, NOVEMBER_30)
    kept.state.start()
    kept.periods.tick()
    await asyncio.sleep(0)
    assert not folder.exists()
    kept.use(1)
    await kept.close()
    assert (folder / "control.sqlite").exists()


async def test_what_a_gateway_used_that_is_gone_is_known_by_those_that_heard_it(tmp_path: Path) -> None:
    one, two = Kept(tmp_path / "1", NOVEMBER_30, "g1"), Kept(tmp_path / "2", NOVEMBER_30, "g2")
    one.use(100)
    two.periods.hear(one.periods.told())
    await one.close()
    await two.close()
    again, three = Kept(tmp_path / "2", NOVEMBER_30, "g2"), Kept(tmp_path / "3", NOVEMBER_30, "g3")
    assert again.used() == [100, 100]
    three.periods.hear(again.periods.told())
    assert three.used() == [100, 100]
    empty = Kept(tmp_path / "4", NOVEMBER_30, "g1")
    empty.periods.hear(three.periods.told())
    assert [meter.used for meter in empty.meters] == [100, 100], "its own, from its peers"
    for kept in (again, three, empty):
        await kept.close()
