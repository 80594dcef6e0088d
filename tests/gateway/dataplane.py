"""Parts for byte-level tests of the data plane: transports that record, a clock that is told, the real scheduler."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from exaserve.config.settings import ClientLimits, GatewaySettings, Timeouts
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway import core as core_module
from exaserve.gateway.core import Core
from exaserve.gateway.data_plane import DataPlane
from exaserve.gateway.http.pool import Connecting
from exaserve.health import FailureKind, HealthConfig
from exaserve.observe.metrics import GatewayMetrics
from exaserve.scheduling import Admission, AdmissionConfig, Scheduler, SchedulerConfig
from exaserve.serving.config import RetrySettings
from exaserve.serving.dispatcher import Dispatcher
from exaserve.serving.fleet import Fleet

MODEL = "tiny"
COMPILED = not str(core_module.__file__).endswith(".py")
"""Methods of compiled classes cannot be replaced; tests that do are skipped then (`make test-compiled`)."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


UNMOVED = HealthConfig(failures_max=1_000_000, window_min=1_000_000)
"""No replica is ejected: what is told of it is looked at in the trace."""
_KINDS = {kind.value: kind for kind in FailureKind}


class Told:
    """What the request path said of replicas, from the dispatcher's trace."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.trace: list[tuple[float, Any, str, str]] = []
        dispatcher.trace = self.trace

    @property
    def bad(self) -> list[tuple[str, FailureKind]]:
        return [(replica, _KINDS[what]) for _, _, what, replica in self.trace if what in _KINDS]


class MockTransport:
    """Records what is written. ``lose`` plays the peer's end of the connection."""

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self.written = bytearray()
        self.writes = 0
        self.closed = False
        self.aborted = False
        self.eof = False
        self.reading = True
        self.buffered = 0
        protocol.connection_made(self)

    def write(self, data: bytes | memoryview) -> None:
        assert not self.closed, "written after close"
        assert isinstance(data, (bytes, memoryview))
        self.written += data
        self.writes += 1

    def get_extra_info(self, name: str) -> None:
        """There is no socket behind it."""

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def write_eof(self) -> None:
        self.eof = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def lose(self, error: Exception | None = None) -> None:
        self.closed = True
        self.protocol.connection_lost(error)


class Bench:
    """A core with ``replicas`` mock replicas, each with ``idle`` connections ready."""

    def __init__(
        self,
        replicas: int = 2,
        *,
        idle: int = 1,
        limits: dict[str, Any] | None = None,
        timeouts: dict[str, Any] | None = None,
        retry: dict[str, Any] | None = None,
        admission: AdmissionConfig | None = None,
        scheduler: dict[str, Any] | None = None,
        cors: tuple[str, ...] = ("*",),
    ) -> None:
        settings = GatewaySettings(
            limits=ClientLimits(**(limits or {})),
            timeouts=Timeouts(**(timeouts or {})),
            retry=RetrySettings(**(retry or {})),
            cors_origins=cors,
        )
        self.clock = Clock()
        self.metrics = GatewayMetrics(process=False)
        self.scheduler = Scheduler(SchedulerConfig(**({"policy": "round_robin"} | (scheduler or {}))), random.Random(1))
        self.fleet = Fleet(self.scheduler, UNMOVED, lambda: None)
        self.admission = Admission(admission or AdmissionConfig())
        self.core = Core(settings, self.fleet, self.admission, self.metrics, self.clock)
        self.plane = DataPlane(self.core)  # no event loop here: tests call the tick themselves
        self.health = Told(self.core.dispatcher)
        self.upstreams: list[MockTransport] = []
        for index in range(replicas):
            self.add(index, idle)

    def add(self, index: int, idle: int) -> None:
        name, url = ReplicaId(f"r{index}"), f"http://127.0.0.1:{9000 + index}"
        self.fleet.add(ReplicaSpec(id=name, url=url, models=(MODEL,)), self.clock.now)
        self.fleet.probed(name, ok=True, detail="ready", now=self.clock.now, latency_s=0.0)
        for _ in range(idle):
            self.open(name)

    def open(self, replica: str, waiter: Connecting | None = None) -> MockTransport:
        """One more connection to a replica, for ``waiter`` or idle."""
        pool = self.core.pool
        upstream = pool.protocol(pool.endpoint(replica, f"http://127.0.0.1:{9000 + int(replica[1:])}"))
        transport = MockTransport(upstream)
        self.upstreams.append(transport)
        pool.adopt(upstream, waiter)
        return transport

    def client(self) -> MockTransport:
        return MockTransport(self.plane.client_protocol())

    def busy(self) -> MockTransport:
        """The upstream connection that carries a request."""
        found = [t for t in self.upstreams if t.protocol.relay is not None]
        assert len(found) == 1, found
        return found[0]

    def answer(self, data: bytes) -> None:
        self.busy().protocol.data_received(data)

    def settled(self) -> None:
        """Asserts that nothing is held any more, anywhere."""
        self.plane.validate()
        self.metrics.validate()
        assert not self.core.dispatcher.open
        assert len(self.admission) == 0
        assert self.metrics.in_flight == 0
        assert self.metrics.streams_open == 0
        assert all(state.inflight == 0 for state in self.scheduler.states().values())


def body(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields).encode()


def post(data: bytes | None = None, path: str = "/v1/chat/completions", *headers: str, version: str = "1.1") -> bytes:
    data = body() if data is None else data
    lines = [f"POST {path} HTTP/{version}", "Host: gateway", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: gateway", *headers]).encode() + b"\r\n\r\n"


def plain(data: bytes = b'{"ok":true}', status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(data)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode() + b"\n\n"


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = [event("a"), event("b"), b'data: {"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n', b"data: [DONE]\n\n"]
STREAM = STREAM_HEAD + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"


class Answer(msgspec.Struct):
    """An answer as a client reads it."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool


def read_answers(data: bytes, *, bodyless: bool = False) -> list[Answer]:
    """Reads what a client got, by the book: one framing header each, nothing left over unless cut off."""
    answers: list[Answer] = []
    while data:
        head, found, data = data.partition(b"\r\n\r\n")
        assert found, head
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [(line.partition(":")[0].lower(), line.partition(":")[2].strip()) for line in lines]
        headers = dict(pairs)
        for name in (
            "content-length",
            "transfer-encoding",
            "connection",
            "x-request-id",
            "access-control-allow-origin",
        ):
            assert sum(pair[0] == name for pair in pairs) <= 1, (name, pairs)
        assert not ("content-length" in headers and "transfer-encoding" in headers)
        whole, content = True, b""
        if int(status) < 200 or int(status) in (204, 304) or bodyless:
            pass
        elif "content-length" in headers:
            length = int(headers["content-length"])
            content, data = data[:length], data[length:]
            whole = len(content) == length
        elif "transfer-encoding" in headers:
            content, data, whole = read_chunks(data)
        else:
            content, data = data, b""
        answers.append(Answer(int(status), headers, content, whole))
    return answers


def read_chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    content = b""
    while True:
        size, found, rest = data.partition(b"\r\n")
        if not found:
            return content, b"", False
        length = int(size.split(b";")[0], 16)
        if length == 0:
            if not rest.startswith(b"\r\n"):  # trailers
                trailers, _, rest = rest.partition(b"\r\n\r\n")
                assert trailers.count(b":") == trailers.count(b"\r\n") + 1, trailers
                return content, rest, True
            return content, rest[2:], True
        if len(rest) < length + 2:
            return content + rest[:length], b"", False
        assert rest[length : length + 2] == b"\r\n"
        content += rest[:length]
        data = rest[length + 2 :]
