"""Small HTTP/1.1 requests to replicas for the control plane: telemetry and probes.

One :class:`Fetcher` is one keep-alive connection with one request at a time. A poll costs no task and no future: the
caller gives a callback, which is always called exactly once, within the time limit.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

__all__ = ["REFUSED", "Fetched", "Fetcher", "fetch"]

REFUSED = "cannot connect: refused"
"""The error where nobody listens at the address: no process, or one that does not serve yet."""

BODY_BYTES_MAX = 16 * 1024 * 1024
"""An exposition is 50 kB, a list of 1,000 adapters 300 kB. What is larger is not an answer to our question."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """How a request ended.

    Attributes:
        status: HTTP status, None where no whole answer came.
        body: of the answer.
        error: what went wrong, "" where an answer came.
        sent_at: when the request was written (or given up before), monotonic seconds.
        latency_s: from the call to the end, connecting included.
    """

    status: int | None
    body: bytes
    error: str
    sent_at: float
    latency_s: float


class Fetcher:
    """A connection to one replica, opened when needed and again when the other side closed it.

    Args:
        url: ``http://host:port``.
        clock: monotonic seconds.
        keep_alive: whether the connection is kept after an answer.
        api_key: sent as bearer token, "" for none.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        keep_alive: bool = True,
        api_key: str = "",
    ) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._authority = parts.netloc.encode("ascii")
        self._bearer = f"Authorization: Bearer {api_key}\r\n".encode("ascii") if api_key else b""
        self._clock = clock
        self._keep_alive = keep_alive
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done: Callable[[Fetched], None] | None = None
        self._request = b""
        self._started_at = 0.0
        self._sent_at = 0.0
        self._reused = False

    @property
    def busy(self) -> bool:
        return self._done is not None

    def start(
        self, method: str, path: str, done: Callable[[Fetched], None], *, timeout_s: float, body: bytes = b""
    ) -> None:
        """Sends a request; ``done`` is called once with its end. AssertionError while another one is under way."""
        assert self._done is None, "one request at a time"
        loop = asyncio.get_running_loop()
        head = f"{method} {path} HTTP/1.1\r\nHost: ".encode() + self._authority + b"\r\nAccept: */*\r\n"
        head += self._bearer
        if body:
            head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        if not self._keep_alive:
            head += b"Connection: close\r\n"
        self._request = head + b"\r\n" + body
        self._done = done
        self._started_at = self._sent_at = self._clock()
        self._timer = loop.call_later(timeout_s, self._timed_out, timeout_s)
        if self._connection is not None:
            self._send(self._connection, reused=True)
        else:
            self._connecting = loop.create_task(self._connect())

    def close(self) -> None:
        """Closes the connection. A request under way ends with an error."""
        self._finish(None, b"", "closed", drop=True)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(lambda: _Connection(self), self._host, self._port)
        except (OSError, UnicodeError) as error:
            self._connecting = None
            self._finish(None, b"", _connect_error(error), drop=True)
            return
        self._connecting = None
        self._send(connection, reused=False)

    def _send(self, connection: _Connection, *, reused: bool) -> None:
        self._connection = connection
        self._reused = reused
        self._sent_at = self._clock()
        connection.send(self._request)

    def _timed_out(self, timeout_s: float) -> None:
        self._finish(None, b"", f"no answer within {timeout_s:g} s", drop=True)

    def answered(self, connection: _Connection, status: int, body: bytes, *, keep: bool) -> None:
        """Called by the connection with a whole answer."""
        if connection is self._connection:
            self._finish(status, body, "", drop=not (keep and self._keep_alive))

    def lost(self, connection: _Connection, why: str, *, silent: bool) -> None:
        """Called by the connection when it ends; ``silent`` where no byte of an answer had come."""
        if connection is not self._connection:
            return
        self._connection = None
        if self._done is None:
            return
        if silent and self._reused:
            # The replica closed an idle connection as we wrote to it: no fault, and not heard by the replica.
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self._finish(None, b"", why, drop=True)

    def _finish(self, status: int | None, body: bytes, error: str, *, drop: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if drop and self._connection is not None:
            connection, self._connection = self._connection, None
            connection.abort()
        done, self._done = self._done, None
        if done is not None:
            done(Fetched(status, body, error, self._sent_at, self._clock() - self._started_at))


class _Connection(asyncio.Protocol):
    def __init__(self, owner: Fetcher) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._heard = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from asyncio's

    def send(self, request: bytes) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts = []
        self._size = 0
        self._heard = False
        assert self._transport is not None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._parser is None:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)
        if self._size > BODY_BYTES_MAX:
            self._fail(f"answer above {BODY_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        parser, self._parser = self._parser, None
        if parser is not None and parser.get_status_code() >= 200:
            self._owner.answered(self, parser.get_status_code(), b"".join(self._parts), keep=parser.should_keep_alive())
        elif parser is not None:
            self._parser = parser

    def connection_lost(self, exc: Exception | None) -> None:
        parser, self._parser = self._parser, None
        if parser is not None and self._heard and self._ends_at_close(parser):
            self._owner.answered(self, parser.get_status_code(), b"".join(self._parts), keep=False)
        self._owner.lost(self, f"connection lost: {exc or 'closed'}", silent=not self._heard)

    def _ends_at_close(self, parser: httptools.HttpResponseParser) -> bool:
        """Whether the answer had no framing of its own, so that closing is how it ends."""
        return self._until_close and parser.get_status_code() >= 200

    _until_close = False

    def on_message_begin(self) -> None:
        self._until_close = True

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in {b"content-length", b"transfer-encoding"}:
            self._until_close = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, why: str) -> None:
        self._parser = None
        self._owner.lost(self, why, silent=False)
        self.abort()


def _connect_error(error: Exception) -> str:
    """Short, and the same for each address of a name, so that a repeated failure reads as one."""
    if isinstance(error, OSError) and error.errno in _CONNECT_ERRORS:
        return f"cannot connect: {_CONNECT_ERRORS[error.errno]}"
    return f"cannot connect: {error}"


_CONNECT_ERRORS = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no route to the host",
    errno.ENETUNREACH: "network unreachable",
}


async def fetch(
    url: str,
    method: str,
    path: str,
    *,
    timeout_s: float,
    body: bytes = b"",
    api_key: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> Fetched:
    """One request on a connection of its own. Never raises for what the other side does."""
    fetcher = Fetcher(url, clock=clock, keep_alive=False, api_key=api_key)
    future: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()

    def done(result: Fetched) -> None:
        if not future.done():
            future.set_result(result)

    try:
        fetcher.start(method, path, done, timeout_s=timeout_s, body=body)
        return await future
    finally:
        fetcher.close()
