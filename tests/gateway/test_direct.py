"""Bytes written past the event loop arrive in order, whatever the socket takes, and never on somebody else's socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
import uvloop

from exaserve.gateway.http.socket_write import DirectWriter

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=sorted(LOOPS))
def run(request: pytest.FixtureRequest) -> Any:
    def runner(coroutine: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as one:
            one.run(asyncio.wait_for(coroutine, 60))

    return runner


async def connected() -> tuple[asyncio.Transport, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.settimeout(20)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    return transport, theirs


def test_what_the_socket_takes_is_there_at_once(run: Any) -> None:
    async def case() -> None:
        transport, peer = await connected()
        DirectWriter(transport).write(b"hello")
        assert peer.recv(100) == b"hello"  # before the loop has had a turn
        transport.close()
        peer.close()

    run(case())


def test_order_holds_when_the_socket_is_full(run: Any) -> None:
    async def case() -> None:
        transport, peer = await connected()
        writer = DirectWriter(transport)
        pieces = [bytes([65 + k % 26]) * (1 + 7919 * k % 60_000) for k in range(120)]
        for piece in pieces:
            writer.write(piece)
        assert transport.get_write_buffer_size() > 0, "the socket has taken everything: the case shows nothing"
        wanted = b"".join(pieces)
        received = bytearray()
        loop = asyncio.get_running_loop()
        peer.setblocking(False)
        while len(received) < len(wanted):
            received += await loop.sock_recv(peer, 1 << 20)
            if len(received) > len(wanted) // 2 and pieces:
                writer.write(b"last")  # some of it while bytes wait, some of it perhaps not
                wanted += b"last"
                pieces = []
        assert bytes(received) == wanted
        transport.close()
        peer.close()

    run(case())


def test_a_closing_transport_is_not_written_past(run: Any) -> None:
    async def case() -> None:
        transport, peer = await connected()
        writer = DirectWriter(transport)
        fd = transport.get_extra_info("socket").fileno()
        transport.abort()
        await asyncio.sleep(0.01)
        peer.close()
        pairs = [socket.socketpair() for _ in range(8)]
        other = next((two for one, two in pairs if one.fileno() == fd), None)
        other = other or next((one for one, two in pairs if two.fileno() == fd), None)
        assert other is not None, "nobody has the number now: the case shows nothing"
        with contextlib.suppress(RuntimeError):  # uvloop's word for a transport that is closed
            writer.write(b"stray")
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(100)
        for each in pairs:
            each[0].close()
            each[1].close()

    run(case())


def test_a_peer_that_has_gone_is_the_transports_business(run: Any) -> None:
    async def case() -> None:
        lost = asyncio.get_running_loop().create_future()

        class Watch(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                lost.set_result(exc)

        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(Watch, sock=ours)
        theirs.close()
        writer = DirectWriter(transport)
        writer.write(b"x")  # does not raise
        error = await lost
        assert error is None or isinstance(error, ConnectionError), "the transport met it, as any other loss"
        assert transport.is_closing()

    run(case())
