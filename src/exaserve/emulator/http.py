"""HTTP/1.1 for the emulator: one connection, its requests in order, answers whole or streamed in chunks.

Raw protocol on httptools: a streamed token costs one ``transport.write`` of bytes that were put together when the
request began.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Protocol, cast

import httptools

__all__ = ["Connection", "HttpRequest", "Responder", "frame"]

PIPELINE_MAX = 16
"""Requests read ahead on one connection; reading pauses above it."""

WRITE_BUFFER_MAX_BYTES = 8 * 1024 * 1024
"""A client that lets this much pile up does not read: its connection is reset."""

HEADER_BYTES_MAX = 65_536
_REASONS = {
    200: b"OK", 400: b"Bad Request", 404: b"Not Found", 405: b"Method Not Allowed", 413: b"Content Too Large",
    422: b"Unprocessable Entity", 429: b"Too Many Requests", 431: b"Request Header Fields Too Large",
    500: b"Internal Server Error", 501: b"Not Implemented", 502: b"Bad Gateway", 503: b"Service Unavailable",
    504: b"Gateway Timeout",
}  # fmt: skip


def frame(payload: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class HttpRequest:
    """One request as far as the emulator cares."""

    __slots__ = ("body", "keep_alive", "method", "path", "request_id", "version")

    def __init__(self, method: str, path: str, body: bytes, request_id: str, version: str, keep_alive: bool) -> None:
        self.method = method
        self.path = path
        self.body = body
        self.request_id = request_id
        self.version = version
        self.keep_alive = keep_alive


class Responder(Protocol):
    """Who answers a connection's requests: a replica, or the control port."""

    body_bytes_max: int

    def connected(self, connection: Connection) -> None: ...

    def handle(self, connection: Connection, request: HttpRequest) -> None: ...

    def disconnected(self, connection: Connection) -> None: ...


class _Clock:
    """The ``date`` header, formatted once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._line = b"date: %b\r\nserver: uvicorn\r\n" % formatdate(now, usegmt=True).encode()
        return self._line


class Connection(asyncio.Protocol):
    """One client connection. Requests are answered one at a time, in order; those behind wait in a bounded queue."""

    __slots__ = (
        "_body",
        "_clock",
        "_header_bytes",
        "_method",
        "_paused",
        "_queue",
        "_request_id",
        "_responder",
        "_size",
        "_url",
        "active",
        "chunked",
        "on_gone",
        "parser",
        "transport",
        "write",
    )

    def __init__(self, responder: Responder, clock: _Clock) -> None:
        self._responder = responder
        self._clock = clock
        self._queue: deque[HttpRequest] = deque()
        self._paused = False
        self.active: HttpRequest | None = None
        """The request now being answered."""
        self.chunked = True
        """Whether the current stream is framed in chunks (HTTP/1.1) or ends with the connection (HTTP/1.0)."""
        self.on_gone: Callable[[], None] | None = None
        """Called once if the client goes away before the current answer is complete."""
        self._reset_message()

    @staticmethod
    def factory(responder: Responder) -> Callable[[], Connection]:
        """For ``loop.create_server``."""
        clock = _Clock()
        return lambda: Connection(responder, clock)

    def _reset_message(self) -> None:
        self._url = b""
        self._request_id = ""
        self._body: list[bytes] = []
        self._size = 0
        self._header_bytes = 0

    # -- asyncio ----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_MAX_BYTES)
        self.write = self.transport.write
        self.parser: Any = httptools.HttpRequestParser(self)
        self._responder.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._queue.clear()
        self._gone()
        self._responder.disconnected(self)

    def pause_writing(self) -> None:
        self.reset()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "Upgrade is not supported.")
        except httptools.HttpParserCallbackError as error:
            # A mistake in our own handlers: say so here, and to the client.
            context = {"message": "emulator handler failed", "exception": error.__context__ or error}
            asyncio.get_running_loop().call_exception_handler(context)
            if not self.transport.is_closing():
                self._refuse(500, "Internal Server Error")
        except httptools.HttpParserError as error:
            if not self.transport.is_closing():
                self._refuse(400, f"Invalid HTTP request received: {error}")

    def _gone(self) -> None:
        callback, self.on_gone, self.active = self.on_gone, None, None
        if callback is not None:
            callback()

    # -- httptools --------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._reset_message()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        lower = name.lower()
        if lower == b"x-request-id":
            self._request_id = value.decode("latin-1")
        elif lower == b"expect" and value.lower() == b"100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._responder.body_bytes_max:
            if not self.transport.is_closing():
                self._refuse(413, "Request body is too large.")
            return
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self.transport.is_closing():
            return
        parser = self.parser
        path = self._url.split(b"?", 1)[0].decode("latin-1")
        request = HttpRequest(
            parser.get_method().decode(),
            path,
            b"".join(self._body),
            self._request_id,
            parser.get_http_version(),
            parser.should_keep_alive(),
        )
        self._body = []
        if self.active is None:
            self._start(request)
        else:
            self._queue.append(request)
            if len(self._queue) >= PIPELINE_MAX and not self._paused:
                self._paused = True
                self.transport.pause_reading()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > HEADER_BYTES_MAX and not self.transport.is_closing():
            self._refuse(431, "Request headers are too large.")

    # -- answering --------------------------------------------------------------------------------------------------

    def _start(self, request: HttpRequest) -> None:
        self.active = request
        self._responder.handle(self, request)

    def _refuse(self, status: int, message: str) -> None:
        """Answers what is no usable request, and closes."""
        self.active = self.active or HttpRequest("", "", b"", "", "1.1", keep_alive=False)
        self.active.keep_alive = False
        self.respond(status, message.encode(), b"text/plain; charset=utf-8")

    def respond(self, status: int, body: bytes, content_type: bytes = b"application/json", extra: bytes = b"") -> None:
        """A whole answer to the active request. ``extra``: header lines, each ended by CRLF."""
        request = self.active
        if request is None or self.transport.is_closing():
            return
        reason = _REASONS.get(status, b"Error")
        kind = b"content-type: %b\r\n" % content_type if body else b""
        close = b"" if request.keep_alive else b"connection: close\r\n"
        head = b"HTTP/1.1 %d %b\r\n%bcontent-length: %d\r\n%b%b%b\r\n" % (
            status, reason, self._clock.line(), len(body), kind, extra, close,
        )  # fmt: skip
        self.write(head if request.method == "HEAD" else head + body)
        self._done(request)

    def respond_partly(self, body: bytes) -> None:
        """The head of a whole answer and half of its body; the rest never comes."""
        head = b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
        self.write(head % (self._clock.line(), len(body)) + body[: len(body) // 2])

    def begin_stream(self) -> None:
        """Sends the head of a streamed answer at once, as an engine's server does, before any token exists."""
        request = self.active
        assert request is not None
        self.chunked = request.version != "1.0"
        if not self.chunked:
            request.keep_alive = False
        framing = b"transfer-encoding: chunked\r\n" if self.chunked else b""
        close = b"" if request.keep_alive else b"connection: close\r\n"
        self.write(
            b"HTTP/1.1 200 OK\r\n%bcontent-type: text/event-stream; charset=utf-8\r\n%b%b\r\n"
            % (self._clock.line(), framing, close)
        )

    def send(self, payload: bytes) -> None:
        """One event of a stream."""
        self.write(frame(payload) if self.chunked else payload)

    def end_stream(self, payload: bytes = b"") -> None:
        """The last bytes of a stream."""
        request = self.active
        if request is None or self.transport.is_closing():
            return
        if self.chunked:
            self.write((frame(payload) if payload else b"") + b"0\r\n\r\n")
        elif payload:
            self.write(payload)
        self._done(request)

    def _done(self, request: HttpRequest) -> None:
        self.active = None
        self.on_gone = None
        if not request.keep_alive:
            self.transport.close()
        elif self._queue:
            # Not from here: a long pipeline of quick answers would recurse.
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self.active is None and self._queue and not self.transport.is_closing():
            request = self._queue.popleft()
            if self._paused and len(self._queue) < PIPELINE_MAX // 2:
                self._paused = False
                self.transport.resume_reading()
            self._start(request)

    @property
    def idle(self) -> bool:
        return self.active is None and not self._queue

    def reset(self) -> None:
        """Ends the connection with RST, as a crashed process or a cut route does."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):  # the peer has closed already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
