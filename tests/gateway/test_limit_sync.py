"""What gateways tell each other of limits: once for what changed, nothing while nothing does, gone with the peer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from exaserve.control.limits import LimitBook, Reservation
from exaserve.control.records import Allowance
from exaserve.gateway.peers.limit_sync import FLUSH_S, LimitSync
from exaserve.observe import EventLog
from exaserve.wire import FrameKind

ALLOWANCE = Allowance(requests_per_minute=100, concurrent_requests=10)
NOW = 1_000.5


class Link:
    """The other end of a link: takes what is sent."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send(self, kind: FrameKind, payload: bytes) -> None:
        assert kind is FrameKind.LIMITS
        self.sent.append(msgspec.msgpack.decode(payload))


class Periods:
    """Bounds of days and months, of which there are none here."""

    def told(self) -> list[Any]:
        return []


class Side:
    def __init__(self) -> None:
        self.links: list[Any] = []
        self.lines: list[str] = []
        self.limits = LimitBook()
        self.meters = self.limits.meters_for("k", ALLOWANCE, "t", None, "m")
        log = EventLog(self.lines.append)
        periods: Any = Periods()
        self.sync = LimitSync(self.limits, lambda: self.links, lambda: 1, periods, lambda: NOW, log)

    def use(self) -> Reservation:
        charge = self.limits.charge(self.meters, "m", 1, 1, NOW)
        assert isinstance(charge, Reservation)
        return charge

    def peer(self) -> Any:
        link: Any = Link()
        self.links.append(link)
        self.sync.greeted(link)
        return link


def used(told: list[Any]) -> dict[str, float]:
    """Amounts by kind of bound."""
    return {name.rpartition(":")[2]: amount for name, _, amount in told[2]}


def frame(*what: object) -> bytes:
    return msgspec.msgpack.encode(what)


async def test_one_telling_for_all_that_changed_and_none_where_nothing_does() -> None:
    side = Side()
    side.sync.start()
    before = side.use()
    link = side.peer()
    assert sorted(row[0].rpartition(":")[2] for row in link.sent[0][2]) == [
        "concurrent_requests",
        "requests_per_minute",
    ]
    link.sent.clear()
    side.limits.settle(before, 1, 1, 0, counts=True)
    for _ in range(3):
        side.use()
    while not link.sent:
        await asyncio.sleep(FLUSH_S)
    await asyncio.sleep(4 * FLUSH_S)
    (told,) = link.sent
    assert {row[0].rpartition(":")[2]: row[2] for row in told[2]} == {
        "concurrent_requests": 2,
        "requests_per_minute": 3,
    }
    assert [meter.unheard for meter in side.meters] == [3, 2]
    side.sync.took(link, frame("heard", told[1]))
    assert [meter.unheard for meter in side.meters] == [0, 0]
    await side.sync.stop()


async def test_what_a_peer_told_goes_with_it_and_each_side_keeps_to_its_part() -> None:
    side = Side()
    side.sync.start()
    assert side.limits.share == 0.5
    link = side.peer()
    assert side.limits.share == 1.0
    name = side.meters[0].name
    side.sync.took(link, frame("used", 1, [(name, 1_000, 7.0), (name, 990, 2.0)]))
    assert side.meters[0].heard == 9
    assert link.sent[-1] == ["heard", 1]
    side.use()
    side.links.clear()
    side.sync.lost(link)
    assert (side.meters[0].heard, side.meters[0].unheard, side.limits.share) == (0, 0, 0.5)
    side.use()
    again = side.peer()
    assert {row[0]: row[2] for row in again.sent[0][2]}[name] == 2
    side.limits.validate()
    await side.sync.stop()
    events = [line.split("event=")[1].split()[0] for line in side.lines]
    assert events == ["limits_in_part", "limits_whole"] * 2
