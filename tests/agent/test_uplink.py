"""An agent's connection to a gateway that takes it and then says nothing."""

from __future__ import annotations

import asyncio
import secrets
from random import Random
from typing import NamedTuple

import pytest
from tests.agent.test_mutual_tls import Source
from tests.ports import free_port

from exaserve.agent.uplink import Uplink, UplinkTimes
from exaserve.observe import EventLog, null_log
from exaserve.wire import WireLink, encode_batch

pytestmark = pytest.mark.may_block
QUIET_S = 0.15


class Life(NamedTuple):
    """Of one connection, seconds: how long it was kept, and the silence that was allowed on it."""

    kept_s: float
    allowed_s: float


class Mute(asyncio.Protocol):
    """Proves itself, and nothing more."""

    def __init__(self, lives: list[Life], uplink: Uplink) -> None:
        self.lives = lives
        self.allowed_s = uplink._silence_s
        self.link = WireLink("gateway", "mute", secrets.token_bytes(16), None)
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.began = asyncio.get_running_loop().time()
        transport.write(self.link.to_send())  # type: ignore[attr-defined]

    def connection_lost(self, _exc: Exception | None) -> None:
        self.lives.append(Life(asyncio.get_running_loop().time() - self.began, self.allowed_s))


def uplink_to(port: int, log: EventLog, times: UplinkTimes) -> Uplink:
    clock = asyncio.get_running_loop().time
    return Uplink(Source(), "127.0.0.1", port, token=None, tls=None, log=log, rng=Random(0), clock=clock, times=times)


async def lives_at(count: int, settled_s: float) -> list[Life]:
    """The first ``count`` connections."""
    times = UplinkTimes(silence_s=QUIET_S, silence_max_s=4 * QUIET_S, settled_s=settled_s, backoff_max_s=0.05)
    loop = asyncio.get_running_loop()
    lives: list[Life] = []
    port = free_port()
    uplink = uplink_to(port, null_log(), times)
    server = await loop.create_server(lambda: Mute(lives, uplink), "127.0.0.1", port)
    uplink.start()
    try:
        async with asyncio.timeout(60):
            while len(lives) < count:
                uplink.push(lambda seq: encode_batch(seq, 0, (), (), 0.0))
                await asyncio.sleep(0.01)
    finally:
        await uplink.close()
        server.close()
    return lives[:count]


async def test_a_gateway_that_is_silent_again_and_again_is_given_more_time() -> None:
    lives = await lives_at(4, settled_s=60.0)
    allowed = [round(life.allowed_s / QUIET_S) for life in lives]
    assert allowed == [1, 2, 4, 4], "a cut is noticed as soon as ever, and no later than the bound"
    assert all(life.kept_s >= life.allowed_s for life in lives)


async def said_of(seconds_s: float, times: UplinkTimes) -> list[str]:
    """What an uplink logs of a gateway that is not there."""
    lines: list[str] = []
    log = EventLog(lines.append, burst_max=1000)
    uplink = uplink_to(free_port(), log, times)
    uplink.start()
    await asyncio.sleep(seconds_s)
    await uplink.close()
    return lines


async def test_a_gateway_that_starts_later_is_no_warning_and_one_that_is_not_there_is_one() -> None:
    assert await said_of(0.5, UplinkTimes()) == []
    (line,) = await said_of(1.0, UplinkTimes(tell_after_s=0.1))
    assert "event=gateway_lost" in line and 'why="cannot connect: Connection refused"' in line


async def test_silence_after_a_long_time_is_a_first_silence() -> None:
    lives = await lives_at(5, settled_s=0.0)
    assert {life.allowed_s for life in lives} == {QUIET_S}
    assert min(life.kept_s for life in lives) >= QUIET_S
