"""One request, one callback, whatever the other side does."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.running import until

from exaserve.engines.fetch import Fetched, Fetcher, fetch


async def ask(fetcher: Fetcher, path: str, timeout_s: float = 20.0) -> Fetched:
    future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
    fetcher.start("GET", path, future.set_result, timeout_s=timeout_s)
    return await future


async def test_keep_alive_uses_one_connection():
    async with FakeEngine() as engine:
        fetcher = Fetcher(engine.url)
        for _ in range(5):
            result = await ask(fetcher, "/health")
            assert (result.status, result.error) == (200, "")
        assert engine.connections == 1
        fetcher.close()


async def test_a_connection_closed_while_idle_is_opened_again():
    async with FakeEngine() as engine:
        engine.close_after_answer = True
        fetcher = Fetcher(engine.url)
        for _ in range(3):
            assert (await ask(fetcher, "/health")).status == 200
            await asyncio.sleep(0.02)
        assert engine.connections == 3
        fetcher.close()


async def test_body_and_host_are_sent():
    async with FakeEngine() as engine:
        assert (await fetch(engine.url, "POST", "/v1/completions", timeout_s=20.0, body=b'{"a":1}')).status == 200
        assert engine.bodies == [("/v1/completions", b'{"a":1}')]


@pytest.mark.parametrize("what", ["close", "garbage"])
async def test_a_broken_answer_is_an_error(what):
    async with FakeEngine() as engine:
        engine.answers["/health"] = what
        result = await fetch(engine.url, "GET", "/health", timeout_s=20.0)
        assert result.status is None
        assert result.error


async def test_a_hung_answer_ends_in_time_and_closes_the_connection():
    async with FakeEngine() as engine:
        engine.answers["/health"] = "hang"
        result = await asyncio.wait_for(fetch(engine.url, "GET", "/health", timeout_s=0.3), 20)
        assert (result.status, result.error) == (None, "no answer within 0.3 s")
        await until(lambda: engine.open == 0)


async def test_refused():
    engine = FakeEngine()
    await engine.start()
    await engine.stop()
    result = await fetch(engine.url, "GET", "/health", timeout_s=20.0)
    assert (result.status, result.error) == (None, "cannot connect: refused")


async def test_closing_ends_a_request_under_way():
    async with FakeEngine() as engine:
        engine.answers["/health"] = "hang"
        fetcher = Fetcher(engine.url)
        ends: list[Fetched] = []
        fetcher.start("GET", "/health", ends.append, timeout_s=60.0)
        await until(lambda: engine.asked["/health"])
        fetcher.close()
        fetcher.close()
        assert [end.error for end in ends] == ["closed"]


async def _raw(answer: bytes, *, close: bool) -> Fetched:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for index in range(len(answer)):
            writer.write(answer[index : index + 1])
            await asyncio.sleep(0)
        if close:
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        return await fetch(f"http://127.0.0.1:{port}", "GET", "/", timeout_s=20.0)
    finally:
        server.close()


async def test_framings_cut_at_every_byte():
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert (await _raw(chunked, close=False)).body == b"abcde"
    assert (
        await _raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", close=False)
    ).body == b"ok"
    until_close = await _raw(b"HTTP/1.0 200 OK\r\n\r\nall of it", close=True)
    assert (until_close.status, until_close.body) == (200, b"all of it")


async def test_a_body_cut_short_is_no_answer():
    result = await _raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", close=True)
    assert result.status is None
    assert "connection lost" in result.error
