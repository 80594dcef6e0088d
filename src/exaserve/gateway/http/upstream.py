# compiled
"""Connections to replicas: a keep-alive pool per replica, and the protocol that relays one answer at a time.

The body of an answer is relayed as it came, chunk framing included: one receive is one send. The parser follows the
framing only to know where the answer ends; it makes no objects for bodies.

Events of a stream are passed on whole. What follows the last event's end is held until the rest arrives, so that a
replica that dies inside an event leaves the client at a clean edge, where an error event can stand. Usually events end
where chunks do; where they do not, the stream's chunks are made anew until the two agree again. Bodies that are encoded
(gzip) are only bytes here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from exaserve.domain.errors import ConnectFailed, ConnectionLost, InvalidResponse, ReplicaError
from exaserve.gateway.http.event_stream import DONE_MARK, EVENT_AND_CHUNK_END, EventHolder, first_error
from exaserve.gateway.http.local_answers import chunk, status_line, why_lost
from exaserve.gateway.http.message_head import Heads, header, skeleton
from exaserve.gateway.http.socket_write import DirectWriter
from exaserve.gateway.http.upstream_head import LAST_CHUNK, AnswerHead, ChunkDecoder, body_end, read_head
from exaserve.gateway.http.usage import TAIL_BYTES

__all__ = ["Endpoint", "Relay", "UpstreamConnection"]

IDLE, HEAD, FIRST, SSE, RAW, LENGTH, EOF, DECODE, CLOSED = range(9)
"""What a connection is doing: nothing; waiting for a head; waiting for an event stream's first event; relaying an event
stream in chunks, other chunks, counted bytes, bytes up to the end of the connection, or chunks to a client that knows
none. CLOSED is final."""
_HEAD_BYTES_MAX = 65_536
_INTERIM_MAX = 8

_EVENT_STREAM = b"text/event-stream"


class Relay(Protocol):
    """What a connection tells the request it carries."""

    def answered(self, upstream: UpstreamConnection, rest: bytes) -> None:
        """The head is whole; ``rest`` is what came behind it."""

    def first_byte_sent(self) -> None:
        """The head is about to go to the client, with the first body bytes."""

    def whole(self, last: bytes) -> bool:
        """Whether an event stream whose framing has ended says itself that it is whole; ``last`` is its end."""

    def passed_on(self, _upstream: UpstreamConnection, tail: bytes) -> None:
        """The answer has been passed on whole; ``tail`` is its end."""

    def lost(self, upstream: UpstreamConnection, error: ReplicaError) -> None:
        """The connection broke, or what came is not HTTP."""


class Endpoint:
    """Where one replica listens, and the connections to it that wait for work (the last used is used next)."""

    __slots__ = ("authority", "host", "host_line", "idle", "live", "port", "replica", "replica_line", "url")

    def __init__(self, replica: str, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConnectFailed(f"Replica {replica} has no usable address: {url!r} is not http://host:port.")
        self.replica = replica
        self.url = url
        self.host = parts.hostname
        self.port = parts.port or 80
        self.authority = parts.netloc.rpartition("@")[2].encode("latin-1")
        self.host_line = b"\r\nHost: " + self.authority + b"\r\n"
        self.replica_line = b"\r\nx-exaserve-replica: " + replica.encode("latin-1", "replace") + b"\r\nx-request-id: "
        self.live = True
        self.idle: list[UpstreamConnection] = []


class UpstreamConnection:
    """One connection to a replica. Carries one :class:`Relay` at a time.

    Attributes:
        status, head: of the answer whose head is whole; ``head`` is its status line and end-to-end headers, no CRLF.
        event_stream, length, chunked, reusable: as the answer's head says (``length`` -1 where it says nothing).
        reused: has carried an answer before, so it may be dead without our knowing.
        sent_at, idle_since: seconds, monotonic.
        silent: nothing has come back since the request was sent.
        last_events: the last bytes that were passed on with an event in them (a short comment is none).
        active: bytes have come since the tick last looked, which is cheaper than a clock for each.
        complete: the answer has come whole.
        clean: the client is at an event's and a chunk's end: an error event may follow.
    """

    __slots__ = (
        "_buffer", "_decoder", "_encoded", "_events", "_feed", "_heads", "_held_head", "_http11", "_interims", "_lines",
        "_odd", "_parser", "_remaining", "_surplus", "_tail", "_write", "_writer", "active", "chunked", "clean",
        "complete", "endpoint", "event_stream", "head", "idle_since", "last_events", "length", "mode", "on_closed",
        "paused", "relay", "reusable", "reused", "sent_at", "silent", "status", "transport",
    )  # fmt: skip

    def __init__(
        self, endpoint: Endpoint, on_closed: Callable[[UpstreamConnection], None], heads: Heads[tuple[int, bytes]]
    ) -> None:
        self.endpoint = endpoint
        self.on_closed = on_closed
        self._heads = heads
        self.mode = IDLE
        self.transport: asyncio.Transport | None = None
        self._writer: DirectWriter | None = None
        self.relay: Relay | None = None
        self.reused = self.paused = self.active = self.reusable = False
        self.silent = self._http11 = True
        self.idle_since = self.sent_at = 0.0
        self.head = b""
        self._parser: HttpResponseParser | None = None
        self._feed: Callable[[bytes], None] = _nowhere
        self._write: Callable[[bytes], None] = _nowhere
        self._reset()

    def _reset(self) -> None:
        """Forgets the last answer."""
        self._lines: list[bytes] = []
        self.length = -1
        self.status = self._interims = self._remaining = 0
        self.chunked = self.event_stream = self.clean = False
        self.complete = self._surplus = self._encoded = self._odd = False
        self._buffer = self._held_head = self._tail = self.last_events = b""
        self._decoder: ChunkDecoder | None = None
        self._events: EventHolder | None = None

    # ---- parser callbacks ---------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        if self.complete:
            self._surplus = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status < 200:  # later ones are trailers, which go with the body as they are
            self._lines += (b"\r\n", name, b": ", value)

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None
        if not self._surplus:
            self.status = parser.get_status_code()
            self.reusable = parser.should_keep_alive()

    def on_message_complete(self) -> None:
        if self.status < 200:  # an interim answer, such as 100 or 103: the real one follows
            self._lines = []
            self.status = 0
            self._interims += 1
        else:
            self.complete = self._odd = True

    # ---- asyncio.Protocol ---------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses
        self._writer = DirectWriter(self.transport)

    def data_received(self, data: bytes) -> None:
        mode = self.mode
        if mode == SSE:
            try:
                self._feed(data)
            except HttpParserError as error:
                if not self.complete:
                    self._invalid(error)
                    return
                self._surplus = True
            if self._odd or not data.endswith(EVENT_AND_CHUNK_END):
                self._uneven(data)
                return
            if b'"usage"' in data:
                self._tail = data
            self.active = True
            if len(data) > 96 or b"data:" in data:  # looking costs as much as the rest of this; comments are short
                self.last_events = data
            self._write(data)
        elif mode == HEAD:
            self._head_received(data)
        elif mode == IDLE:
            self.abort()  # an answer to no question
        elif mode != CLOSED:
            self._body(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """The rest of a large request is in memory already: nothing could be held back."""

    def resume_writing(self) -> None:
        """Nothing was."""

    def connection_lost(self, exc: Exception | None) -> None:
        mode, relay = self.mode, self.relay
        self.mode = CLOSED
        self._feed = _nowhere
        self._parser = None
        self.on_closed(self)
        if relay is None:
            return
        if mode == EOF and exc is None:
            self._finish(LAST_CHUNK if self._http11 else b"")
        elif self._at_its_end(mode):
            self._finish(LAST_CHUNK)
        else:
            self.relay = None
            relay.lost(self, ConnectionLost(f"The replica closed the connection: {why_lost(exc)}."))

    @property
    def ready(self) -> bool:
        """Can carry a request now."""
        return self.mode == IDLE

    # ---- for the exchange ---------------------------------------------------------------------------------------
    def send(self, relay: Relay, data: bytes, body: bytes | memoryview, now: float, end: bytes = b"") -> None:
        """Sends a request; ``relay`` hears of its answer. ``body`` is what was too large to join to ``data``."""
        writer = self._writer
        assert writer is not None and self.mode == IDLE  # noqa: PT018 - either is the caller's fault
        self.relay = relay
        self.mode = HEAD
        self.sent_at = now
        self.silent = True
        writer.write(data)
        if body:
            writer.write(body)
            writer.write(end)

    def pass_on(
        self, head: bytes, rest: bytes, write: Callable[[bytes], None], *, http11: bool, bodyless: bool
    ) -> None:
        """Relays the answer whose head has come: ``head`` (the client's) first, together with the first body bytes."""
        self._held_head = head
        self._write = write
        self._http11 = http11
        if bodyless:
            self._finish(b"")
            return
        if self.chunked:
            self.mode = (FIRST if self.event_stream and not self._encoded else RAW) if http11 else DECODE
            if not http11:
                self._decoder = ChunkDecoder()
        elif self.length >= 0:
            self.mode = LENGTH
            self._remaining = self.length
        else:
            self.mode = EOF
        if rest or self.complete:
            self._relay_body(rest)

    def pause(self) -> None:
        """The client reads too slowly."""
        if not self.paused and self.transport is not None and self.mode != CLOSED:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            if self.transport is not None and self.mode != CLOSED:
                self.transport.resume_reading()

    def abort(self) -> None:
        """Closes at once, whatever is under way; the replica sees it and drops the work."""
        self.relay = None
        if self.mode != CLOSED:
            self.mode = CLOSED
            if self.transport is not None:
                self.transport.abort()

    def recycle(self, now: float) -> bool:
        """Makes ready for another request; False (and closed) where the connection cannot carry one."""
        self.relay = None
        if self.mode == CLOSED:
            return False
        if not self.reusable or self._surplus or not self.complete:
            self.abort()
            return False
        self.resume()
        self.mode = IDLE
        self.reused = True
        self.idle_since = now
        if self._parser is not None or self._buffer:
            self._reset()
        else:
            self.complete = self._odd = False
        return True

    # ---- inside -------------------------------------------------------------------------------------------------
    def _head_received(self, data: bytes) -> None:
        if self.silent:
            self.silent = False
            if self._whole(data):
                return
        parser = self._parser
        if parser is None:
            parser = self._parser = HttpResponseParser(self)
            self._feed = parser.feed_data
            self._reset()
        try:
            self._feed(data)
        except HttpParserUpgrade:
            self._invalid("it switches protocols")
            return
        except HttpParserError as error:
            if not self.complete:
                self._invalid(error)
                return
            self._surplus = True
        if self._buffer:
            data = self._buffer + data
        if data[:1] != b"H":
            self._invalid("it does not begin with a status line")
        elif self._interims > _INTERIM_MAX:
            self._invalid("more came than one answer")
        elif self.status >= 200:
            self._buffer = b""
            self._answered(data)
        else:
            self._buffer = data
            if len(data) > _HEAD_BYTES_MAX:
                self._invalid("its head is too long")

    def _answered(self, data: bytes) -> None:
        """The head in ``data`` is whole, perhaps behind interim ones."""
        end = 0
        for _ in range(self._interims + 1):
            end = data.index(b"\r\n\r\n", end) + 4
        relay = self.relay
        assert relay is not None
        head = AnswerHead(b"".join(self._lines), self.endpoint.authority)
        if head.coded:
            self._invalid("its transfer coding is not understood")
            return
        self.length, self.chunked, self._encoded = head.length, head.chunked, head.encoded
        self.head = status_line(self.status)[:-2] + head.lines
        self.event_stream = header(self.head, b"content-type")[:17].lower() == _EVENT_STREAM
        relay.answered(self, data[end:])

    def _whole(self, data: bytes) -> bool:
        """Relays ``data`` if it is exactly one answer of the usual kind; False sends it the long way, which decides."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return False
        key, length = skeleton(data, end)
        if length < 0 or end + 4 + length != len(data):
            return False
        heads = self._heads
        like = heads.seen.get(key)
        if like is None:
            like = read_head(data, end)
            if like is None or not heads.whole(data):
                return False
            heads.remember(key, like)
        self.status, self.head = like
        self.length = length
        self.reusable = self.complete = self._odd = True
        self.chunked = self.event_stream = False
        assert self.relay is not None
        self.relay.answered(self, data[end + 4 :])
        return True

    def _body(self, data: bytes) -> None:
        """Bytes of a body, off the path of running event streams."""
        if self.mode != EOF:
            try:
                self._feed(data)
            except HttpParserError as error:
                if not self.complete:
                    self._invalid(error)
                    return
                self._surplus = True
        self.active = True
        self._relay_body(data)

    def _uneven(self, data: bytes) -> None:
        """Bytes of an event stream that begin or end inside an event, or end the stream."""
        self.active = True
        if self.complete:
            self._end(data) if self._events is None else self._last(self._events.end(data))
            return
        clean = True
        if self._odd or not data.endswith(EVENT_AND_CHUNK_END):
            events = self._events = self._events or EventHolder()
            try:
                data = events.feed(data)
            except HttpParserError as error:
                self._invalid(error)
                return
            self._odd = events.odd
            clean = events.clean
        if not data or (self._held_head and self._began_with_error(data)):
            return
        self.mode = SSE
        self.clean = clean
        if b'"usage"' in data:
            self._tail = data
        if b"data:" in data:
            self.last_events = data
        self._send(data)

    def _relay_body(self, data: bytes) -> None:
        mode = self.mode
        if mode == LENGTH:
            self._remaining -= len(data)
            if self._remaining < 0:
                data = data[: self._remaining]
                self._surplus = True
            if self._remaining <= 0:
                self._finish(data)
                return
        elif mode == DECODE:
            assert self._decoder is not None
            if self.complete:
                self._finish(self._decoder.last(data))
                return
            data = self._decoder.feed(data)
        elif mode == FIRST:
            self._uneven(data)
            return
        elif mode == RAW and self.complete:
            self._end(data)
            return
        self._tail = data if len(data) >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
        if mode == EOF and self._http11 and data:
            data = chunk(data)
        self._send(data)

    def _end(self, data: bytes) -> None:
        """The last bytes of a chunked body. What comes behind it is not passed on."""
        end = body_end(data, surplus=self._surplus)
        if end is None:
            self._invalid("more came than one answer")
            return
        self._surplus |= end != data
        self._last(end)

    def _last(self, data: bytes) -> None:
        """The end of a chunked body, as it goes to the client."""
        relay = self.relay
        if relay is not None and self.event_stream and not self._encoded:
            if self._held_head and self._began_with_error(data):
                return
            if not relay.whole(self.last_events + data):
                self._ended_early(data)
                return
        self._finish(data)

    def _began_with_error(self, data: bytes) -> bool:
        if (trouble := first_error(data)) is not None:
            self._give_up(InvalidResponse(f"The replica's stream began with an error: {trouble}"))
        return trouble is not None

    def _ended_early(self, data: bytes) -> None:
        """The framing is in order, but the stream is not at its end: the engine gave up and did not say so."""
        events = data.removesuffix(LAST_CHUNK)
        if events and events != data:
            self._send(events)
            self.clean = events.endswith(EVENT_AND_CHUNK_END)
        self._give_up(InvalidResponse("The replica ended its stream before the answer was whole."))

    def _give_up(self, error: ReplicaError) -> None:
        relay = self.relay
        self.abort()
        if relay is not None:
            relay.lost(self, error)

    def _at_its_end(self, mode: int) -> bool:
        """Whether an event stream has been passed on up to the event that ends it, so that only framing is missing."""
        return mode == SSE and self.clean and not self._held_head and bool(DONE_MARK.search(self.last_events))

    def _send(self, data: bytes) -> None:
        """To the client, with the head if that has not gone yet."""
        if self._held_head:
            if self.relay is not None:
                self.relay.first_byte_sent()
            data = self._held_head + data
            self._held_head = b""
        if data:
            self._write(data)

    def _finish(self, data: bytes) -> None:
        self._send(data)
        relay = self.relay
        self.relay = None
        if relay is not None:
            relay.passed_on(self, data if len(data) >= TAIL_BYTES or not self._tail else self._tail + data)

    def _invalid(self, why: object) -> None:
        if self._at_its_end(self.mode):
            self._finish(LAST_CHUNK)
        else:
            self._give_up(InvalidResponse(f"The replica's answer is not valid HTTP: {why}."))


def _nowhere(_data: bytes) -> None:
    """Where bytes go that nobody waits for any more."""
