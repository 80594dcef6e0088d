"""The data plane on real sockets, in front of replicas that misbehave in every way a real one can."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.gateway.dataplane import (
    EVENTS,
    MODEL,
    STREAM,
    STREAM_HEAD,
    UNMOVED,
    Told,
    body,
    chunk,
    plain,
    post,
    read_answers,
)
from tests.gateway.running import until
from tests.ports import free_port

from exaserve.config.settings import ClientLimits, GatewaySettings, RetrySettings, Timeouts
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.core import Core
from exaserve.gateway.data_plane import DataPlane
from exaserve.observe.metrics import GatewayMetrics
from exaserve.scheduling import Admission, AdmissionConfig, Scheduler, SchedulerConfig
from exaserve.serving.fleet import Fleet

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
    return head + await reader.readexactly(length)


class Replica:
    """A replica that does to each connection what ``handler`` says; ``gone`` is when its peer closed."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.gone: list[float] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.server: asyncio.Server
        self.url = ""

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.handler(reader, writer)
        writer.close()

    async def until_gone(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        self.gone.append(time.monotonic())


async def good(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        request = await read_request(reader)
        writer.write(STREAM if b'"stream": true' in request else plain(b'{"ok":true}'))


async def reset(writer: asyncio.StreamWriter) -> None:
    """Ends with RST."""
    await writer.drain()
    await asyncio.sleep(0.02)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()


class Plane:
    """A core that listens, in front of some replicas."""

    def __init__(self, settings: GatewaySettings, admission: AdmissionConfig) -> None:
        self.metrics = GatewayMetrics(process=False)
        self.scheduler = Scheduler(SchedulerConfig(policy="round_robin"), random.Random(1))
        self.fleet = Fleet(self.scheduler, UNMOVED, lambda: None)
        self.core = Core(settings, self.fleet, Admission(admission), self.metrics)
        self.plane = DataPlane(self.core)
        self.health = Told(self.core.dispatcher)
        self.replicas: list[Replica] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def add(self, handler: Handler) -> Replica:
        replica = Replica(handler)
        await replica.start()
        self.replicas.append(replica)
        self.register(replica.url, f"r{len(self.replicas)}")
        return replica

    def register(self, url: str, name: str) -> None:
        now = time.monotonic()
        self.fleet.add(ReplicaSpec(id=ReplicaId(name), url=url, models=(MODEL,)), now)
        self.fleet.probed(ReplicaId(name), ok=True, detail="ready", now=now, latency_s=0.0)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """Everything until the gateway closes; the request asks for that."""
        reader, writer = await self.open()
        writer.write(data)
        got = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return got

    async def settled(self) -> None:
        await until(lambda: not self.core.dispatcher.open)
        self.plane.validate()
        assert not self.core.dispatcher.open
        assert self.metrics.in_flight == 0
        assert self.metrics.streams_open == 0
        assert all(state.inflight == 0 for state in self.scheduler.states().values())


PATIENT = Timeouts(connect_s=60.0, first_byte_s=60.0, between_bytes_s=60.0, client_header_s=60.0, client_body_s=60.0)
"""No time-out plays a part, however busy the machine is."""
HASTY = Timeouts(connect_s=1.0, first_byte_s=1.0, between_bytes_s=1.0, client_header_s=0.5, client_body_s=0.5)
hasty = pytest.mark.parametrize("plane", [HASTY], indirect=True, ids=["hasty"])


@pytest.fixture
async def plane(request: pytest.FixtureRequest) -> AsyncIterator[Plane]:
    settings = GatewaySettings(
        timeouts=getattr(request, "param", PATIENT),
        retry=RetrySettings(attempts_max=3, budget_min_per_s=100.0),
        limits=ClientLimits(body_bytes_max=1_000_000),
    )
    plane = Plane(settings, AdmissionConfig(wait_max_s=60.0))
    server = await asyncio.get_running_loop().create_server(plane.plane.client_protocol, "127.0.0.1", 0)
    plane.plane.start()
    plane.port = server.sockets[0].getsockname()[1]
    yield plane
    await plane.settled()
    server.close()
    await plane.plane.close()
    assert len(plane.core.pool) == 0
    assert len(plane.plane.clients) == 0
    for replica in plane.replicas:
        replica.server.close()
        plane.writers += replica.writers
    for writer in plane.writers:
        writer.transport.abort()
    await asyncio.sleep(0.05)


CLOSE = "Connection: close"


async def test_plain_and_streamed(plane: Plane) -> None:
    replica = await plane.add(good)
    for _ in range(3):
        (answer,) = read_answers(await plane.ask(post(body(), "/v1/completions", CLOSE)))
        assert answer.body == b'{"ok":true}'
        (answer,) = read_answers(await plane.ask(post(body(stream=True), "/v1/completions", CLOSE)))
        assert answer.body == b"".join(EVENTS)
    assert replica.connections == 1, "kept alive"


@pytest.mark.parametrize("size", [200_000, 900_000])
async def test_large_bodies_both_ways(plane: Plane, size: int) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_request(reader)
        writer.write(plain(request.partition(b"\r\n\r\n")[2]))
        await writer.drain()

    await plane.add(echo)
    data = body(pad="x" * size)
    (answer,) = read_answers(await plane.ask(post(data, "/v1/completions", CLOSE)))
    assert answer.body == data
    pieces = b"".join(chunk(data[i : i + 50_000]) for i in range(0, len(data), 50_000)) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    (answer,) = read_answers(await plane.ask(head + pieces))
    assert answer.body == data


async def test_oversized_body_is_refused_without_reading_it_all(plane: Plane) -> None:
    await plane.add(good)
    reader, writer = await plane.open()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 100_000_000 and not reader.at_eof() and not writer.transport.is_closing():
            writer.write(b"x" * 1_000_000)
            sent += 1_000_000
            await asyncio.sleep(0)
            if reader._buffer:  # type: ignore[attr-defined]
                break
    (answer,) = read_answers(await asyncio.wait_for(reader.read(), 30))
    assert answer.status == 413
    assert sent < 100_000_000
    writer.close()


async def bad_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    await reset(writer)


async def bad_head_then_reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(STREAM_HEAD)
    await reset(writer)


async def bad_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"SSH-2.0-nonsense\r\n\r\n")
    await writer.drain()
    await asyncio.sleep(1)


async def bad_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    await reader.read()


async def bad_503(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(plain(b'{"error":{}}', "503 Service Unavailable"))


@hasty
@pytest.mark.parametrize("handler", [bad_reset, bad_head_then_reset, bad_garbage, bad_silent, bad_503])
async def test_nothing_is_lost_before_the_first_byte(plane: Plane, handler: Handler) -> None:
    bad = await plane.add(handler)
    await plane.add(good)
    answers = await asyncio.gather(*(plane.ask(post(body(stream=True), "/v1/completions", CLOSE)) for _ in range(6)))
    for data in answers:
        (answer,) = read_answers(data)
        assert (answer.status, answer.body) == (200, b"".join(EVENTS))
    assert bad.connections > 0
    assert plane.health.bad


async def test_a_refusing_replica(plane: Plane) -> None:
    plane.register(f"http://127.0.0.1:{free_port()}", "gone")
    await plane.add(good)
    for _ in range(4):
        (answer,) = read_answers(await plane.ask(post(body(), "/v1/completions", CLOSE)))
        assert answer.status == 200
    assert {replica for replica, _ in plane.health.bad} == {"gone"}


async def test_only_replicas_that_refuse(plane: Plane) -> None:
    plane.register(f"http://127.0.0.1:{free_port()}", "gone")
    (answer,) = read_answers(await plane.ask(post(body(), "/v1/completions", CLOSE)))
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "replica_unreachable"


async def test_reset_in_mid_stream(plane: Plane) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + chunk(EVENTS[0]) + chunk(EVENTS[1])[:9])
        await reset(writer)

    await plane.add(handler)
    (answer,) = read_answers(await plane.ask(post(body(stream=True), "/v1/completions", CLOSE)))
    assert answer.whole
    assert answer.body.startswith(EVENTS[0])
    assert answer.body.count(b'"error"') == 1
    assert b"[DONE]" not in answer.body


async def test_truncated_plain_answer(plane: Plane) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(plain(b"x" * 5000)[:-2500])
        await writer.drain()

    await plane.add(handler)
    (answer,) = read_answers(await plane.ask(post()))
    assert not answer.whole


async def test_a_connection_closed_while_idle_costs_nobody_anything(plane: Plane) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(plain())
        await writer.drain()
        await reader.read(1)  # the next request finds the connection closing under it
        await reset(writer)

    replica = await plane.add(once)
    for _ in range(4):
        (answer,) = read_answers(await plane.ask(post(body(), "/v1/completions", CLOSE)))
        assert answer.status == 200
    assert replica.connections == 4
    assert plane.health.bad == []


@hasty
async def test_a_frozen_stream_ends_with_an_error(plane: Plane) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM_HEAD + chunk(EVENTS[0]))
        await replica.until_gone(reader)

    replica = await plane.add(handler)
    (answer,) = read_answers(await plane.ask(post(body(stream=True), "/v1/completions", CLOSE)))
    assert b'"replica_timeout"' in answer.body
    await until(lambda: replica.gone)  # the replica was let go


@pytest.mark.parametrize("phase", ["waiting", "head", "streaming", "stalled"])
async def test_a_client_that_leaves_frees_its_replica(plane: Plane, phase: str) -> None:
    """Because it leaves: every time-out is a minute away. In the same turn of the loop, say the byte-level tests."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        if phase != "waiting":
            writer.write(STREAM_HEAD)
        if phase in ("streaming", "stalled"):
            writer.write(chunk(EVENTS[0]) * (1 if phase == "streaming" else 200_000))
        await replica.until_gone(reader)

    replica = await plane.add(handler)
    _, writer = await plane.open()
    writer.write(post(body(stream=True)))
    await until(lambda: plane.plane.inflight() == 1 and replica.connections)
    await asyncio.sleep(0.3)
    assert plane.plane.inflight() == 1
    assert not replica.gone
    writer.transport.abort()
    await until(lambda: replica.gone)
    await plane.settled()


async def test_a_client_that_leaves_the_queue(plane: Plane) -> None:
    await plane.add(good)
    plane.scheduler.set_health(ReplicaId("r1"), False, "down")
    _, writer = await plane.open()
    writer.write(post())
    await until(lambda: plane.core.dispatcher.waiting() == 1)
    writer.close()
    await until(lambda: plane.core.dispatcher.waiting() == 0)


async def test_requests_wait_for_a_replica_that_restarts(plane: Plane) -> None:
    await plane.add(good)
    plane.scheduler.set_health(ReplicaId("r1"), False, "down")
    asking = [asyncio.ensure_future(plane.ask(post(body(), "/v1/completions", CLOSE))) for _ in range(5)]
    await until(lambda: plane.core.dispatcher.waiting() == 5)
    plane.scheduler.set_health(ReplicaId("r1"), True, "back")
    plane.plane.wake()
    for data in await asyncio.gather(*asking):
        assert read_answers(data)[0].status == 200


@hasty
async def test_slow_clients_are_timed_out(plane: Plane) -> None:
    await plane.add(good)
    head, partial = await asyncio.gather(plane.ask(b"POST /v1/x HTTP/1.1\r\nHo"), plane.ask(post()[:-5]))
    assert read_answers(head)[0].status == 408
    assert read_answers(partial)[0].status == 408


async def test_a_slow_reader_bounds_what_is_buffered(plane: Plane) -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(STREAM_HEAD)
        big = chunk(b"data: " + b"x" * 60_000 + b"\n\n")
        while True:
            writer.write(big)
            await writer.drain()
            sent += len(big)

    await plane.add(handler)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", plane.port))
    await loop.sock_sendall(sock, post(body(stream=True)))
    await until(lambda: sent)
    before = -1
    while sent != before:  # until the replica is paused; one that never is ends this test by its size
        before = sent
        await asyncio.sleep(0.5)
        assert sent < 60_000_000
    got = 0
    while got < before + 1_000_000:
        got += len(await loop.sock_recv(sock, 1_000_000))
    await until(lambda: sent > before)  # and resumed
    sock.close()


async def test_graceful_stop(plane: Plane) -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await go_on.wait()
        writer.write(plain())

    await plane.add(slow)
    idle_reader, _ = await plane.open()
    asking = asyncio.ensure_future(plane.ask(post()))
    await until(lambda: plane.plane.inflight() == 1 and len(plane.plane.clients) == 2)
    draining = asyncio.ensure_future(plane.plane.drain(60))
    await asyncio.sleep(0.1)
    assert not draining.done()
    go_on.set()
    await asyncio.wait_for(draining, 20)
    (answer,) = read_answers(await asking)
    assert answer.status == 200
    assert answer.headers["connection"] == "close"
    assert await asyncio.wait_for(idle_reader.read(), 20) == b""


async def test_chaos_leaves_nothing_behind(plane: Plane) -> None:
    rng = random.Random(7)

    async def unsteady(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            what = rng.random()
            if what < 0.15:
                return
            if what < 0.25:
                await reset(writer)
                return
            if what < 0.35:
                writer.write(STREAM[: rng.randrange(len(STREAM))])
                return
            if what < 0.4:
                writer.write(plain(b"{}", "500 Internal Server Error"))
            elif what < 0.45:
                writer.write(b"\x00\x01")
            else:
                writer.write(STREAM)

    for _ in range(3):
        await plane.add(unsteady)
    statuses: list[int] = []

    async def client() -> None:
        for _ in range(20):
            reader, writer = await plane.open()
            writer.write(post(body(stream=True), "/v1/completions", CLOSE))
            if rng.random() < 0.2:
                await asyncio.sleep(rng.random() * 0.02)
                writer.transport.abort()
                continue
            with contextlib.suppress(ConnectionError):
                data = await asyncio.wait_for(reader.read(), 30)
                statuses.extend(answer.status for answer in read_answers(data))
            writer.close()

    await asyncio.gather(*(client() for _ in range(10)))
    await plane.settled()
    assert statuses.count(200) > len(statuses) * 0.8
    assert set(statuses) <= {200, 500, 502, 503, 504}
