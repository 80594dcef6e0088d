"""A peer whose placements come too late is not decided by, and is again once it is near."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.gateway.running import until
from tests.gateway.test_peering import Node, nodes
from tests.ports import free_ports

from exaserve.gateway.peers.bounds import PeeringBounds
from exaserve.gateway.peers.events import Echo, PeerEventReader, Want, write_echo, write_want
from exaserve.gateway.peers.lag import Lag
from exaserve.wire import WireError

pytestmark = pytest.mark.may_block
MAX_S = 0.05


# ---- the measure ---------------------------------------------------------------------------------------------------
def test_a_long_way_is_lag_although_every_message_is_in_time() -> None:
    lag = Lag()
    for k in range(10):
        lag.heard(1000.0 + k, 5.08 + k)  # another clock, 80 ms away
        lag.echoed(4.9 + k, 0.02, 5.08 + k)
    assert lag.way_s == pytest.approx(0.08)
    assert lag.lag_s == pytest.approx(0.08)
    assert lag.judge(MAX_S)
    assert lag.slow
    lag.echoed(20.0, 0.0, 20.004)
    assert lag.judge(MAX_S)
    assert not lag.slow


def test_late_messages_are_lag_and_one_pause_is_not() -> None:
    lag = Lag()
    for k in range(100):
        late_s = 0.2 if k == 50 else 0.0
        lag.heard(k * 0.1, k * 0.1 + late_s)
        assert not lag.judge(MAX_S), k
    for k in range(100, 150):
        lag.heard(k * 0.1, k * 0.1 + 0.2)
    assert lag.lag_s == pytest.approx(0.2, rel=0.15)
    assert lag.judge(MAX_S)


def test_between_half_the_bound_and_the_bound_it_stays_as_it_is() -> None:
    lag = Lag()
    lag.echoed(0.0, 0.0, 0.08)
    assert not lag.judge(MAX_S)
    assert not lag.slow
    lag.echoed(30.0, 0.0, 30.12)
    lag.echoed(60.0, 0.0, 60.12)
    assert lag.judge(MAX_S)
    lag.echoed(90.0, 0.0, 90.08)
    assert not lag.judge(MAX_S)
    assert lag.slow
    lag.echoed(91.0, 0.0, 91.04)
    assert lag.judge(MAX_S)


def test_messages_that_piled_up_count_for_the_time_they_were_written_in() -> None:
    lag = Lag()
    lag.heard(0.0, 0.0)
    for k in range(1, 101):
        lag.heard(k * 0.01, 1.0)  # one second's messages, all read at once
    assert 0.1 < lag.lag_s < 0.4


def test_frames_of_the_lag() -> None:
    reader = PeerEventReader()
    data = write_echo(12.5, 0.25) + write_want()
    assert reader.feed(data[:7]) == []
    assert reader.feed(data[7:]) == [Echo(12.5, 0.25), Want()]
    with pytest.raises(WireError, match="echo"):
        PeerEventReader().feed(write_echo(float("nan"), 0.0))


FAR_S = 0.5
"""Of the gateways below: a busy machine is not late by so much."""
PATIENT = PeeringBounds(handshake_s=60.0, silence_max_s=60.0)


# ---- two gateways, far apart -----------------------------------------------------------------------------------------
class Wire:
    """A way between two gateways that takes ``delay_s`` in each direction."""

    def __init__(self, target: int, delay_s: float) -> None:
        self.target = target
        self.delay_s = delay_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        self._writers += [writer, back]
        for ends in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(*ends))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                due = max(due, loop.time() + self.delay_s)  # in order, also when the delay falls
                loop.call_at(due, writer.write, data)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def far_apart(delay_s: float) -> AsyncIterator[tuple[Node, Node, Wire]]:
    port, between = free_ports(2)
    one = Node("one", [], port, lag_max_s=FAR_S, bounds=PATIENT)
    two = Node("two", [between], None, lag_max_s=FAR_S, bounds=PATIENT)
    wire = Wire(port, delay_s)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", between)
    async with nodes(one, two):
        try:
            await until(lambda: one.peering.peers() == ("two",) and two.peering.peers() == ("one",))
            yield one, two, wire
        finally:
            server.close()
            await wire.close()


async def test_a_peer_too_far_away_is_not_decided_by_until_it_is_near() -> None:
    async with far_apart(0.8) as (one, two, wire):
        await until(lambda: one.peering.views()[0].slow and two.peering.views()[0].slow)
        kept = one.place()
        await asyncio.sleep(1.2)
        assert len(two.scheduler.peers) == 0, "what comes too late is not charged"
        await until(lambda: two.scheduler.peers.gateways == ("two",))
        assert two.scheduler.peers.untold, "but it is known that others place work here"
        text = {family.name: family for family in two.peering.families()}
        assert text["exaserve_peer_slow"].samples[0][2] == 1
        assert text["exaserve_peer_lag_seconds"].samples[0][2] > FAR_S
        assert any("peer_slow" in line for line in two.lines)

        wire.delay_s = 0.0
        await until(lambda: len(two.scheduler.peers) == 1)
        await until(lambda: two.scheduler.peers.gateways == ("one", "two"))
        assert not two.scheduler.peers.untold
        assert any("peer_in_time" in line for line in two.lines)
        one.release(kept)
        await until(lambda: len(two.scheduler.peers) == 0)


async def test_near_peers_stay_in_time() -> None:
    async with far_apart(0.001) as (one, two, _wire):
        placement = one.place()
        await until(lambda: len(two.scheduler.peers) == 1)
        one.release(placement)
        assert not two.peering.views()[0].slow
