"""One connection of the load client: what is sent, and what an answer's bytes mean for its record."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from exaserve.bench.events import EventReader, UsageSeen, is_answer, usage_seen
from exaserve.bench.record import Record
from exaserve.workload import BodyRenderer, PlannedRequest

__all__ = ["Client", "LoadConnection", "Target", "target"]

_JSON_MAX_BYTES = 16 << 20
"""Of an answer that is not streamed; a longer body is no usable answer."""


class Client(Protocol):
    """What a connection needs of the client it works for."""

    renderer: BodyRenderer
    targets: Sequence[Target]
    events: int

    def now(self) -> float:
        """Seconds from the start of the run."""

    def free(self, connection: LoadConnection) -> None:
        """The connection may carry the next request."""

    def forget(self, connection: LoadConnection) -> None:
        """The connection is closed."""

    def retry(self, request: PlannedRequest, record: Record, connection: LoadConnection) -> None:
        """A reused connection was closed before any byte of the answer."""

    def first_token(self, record: Record) -> None:
        """The first token of an answer has come."""

    def finished(self, record: Record) -> None:
        """A request is over."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. ``head`` is every request's, but for its length."""

    host: str
    port: int
    tls: bool
    head: bytes


def target(url: str, path: str, headers: Sequence[tuple[str, str]]) -> Target:
    """Where a URL's requests go. A path in the URL stands before ``path``; a ``/v1`` at its end is not said twice.

    Raises:
        ValueError: the URL is not ``http://host:port`` or ``https://host``, or a header would break the request.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} must look like http://host:port or https://host")
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1") + path
    named = host if port == (443 if tls else 80) else f"{host}:{port}"
    lines = [f"POST {path} HTTP/1.1", f"host: {named}", "content-type: application/json"]
    for name, value in headers:
        if any(c in name + value for c in "\r\n\0"):
            raise ValueError(f"header {name!r} must not have line breaks")
        lines.append(f"{name}: {value}")
    return Target(parts.hostname, port, tls, ("\r\n".join(lines) + "\r\n").encode("latin-1"))


class LoadConnection(asyncio.Protocol):
    """One connection to one target; carries one request at a time."""

    __slots__ = (
        "body",
        "client",
        "framed",
        "parser",
        "read_s",
        "reader",
        "record",
        "request",
        "reused",
        "sse",
        "target",
        "transport",
    )

    def __init__(self, client: Client, target: int) -> None:
        self.client = client
        self.target = target
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.record: Record | None = None
        self.request: PlannedRequest | None = None
        self.reader: EventReader | None = None
        self.sse = False
        self.reused = False
        self.framed = False
        """The answer's head says where it ends; else the end of the connection is its end."""
        self.body: list[bytes] = []
        self.read_s = 0.0
        """When the bytes now looked at were read, seconds from the start of the run."""

    def send(self, request: PlannedRequest, record: Record) -> None:
        assert self.transport is not None
        assert self.record is None
        client = self.client
        self.record, self.request = record, request
        self.reader, self.sse, self.framed = None, False, False
        self.body = []
        body = client.renderer.body(request)
        head = client.targets[self.target].head
        if request.session is not None:
            head += b"x-session-id: s%d\r\n" % request.session
        if record.connected_s is None:
            record.connected_s = client.now()
        self.transport.write(b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body))
        record.sent_s = client.now()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one, without inheriting

    def data_received(self, data: bytes) -> None:
        record = self.record
        if record is None:  # nothing was asked: a server that talks out of turn, or says goodbye
            self.close()
            return
        self.read_s = self.client.now()
        if record.first_byte_s is None:
            record.first_byte_s = self.read_s
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a fault of this client, which must show
        except httptools.HttpParserError:
            if self.record is not None:
                self._fail("protocol")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        record, request = self.record, self.request
        if record is not None and request is not None:
            if record.first_byte_s is None and self.reused and not record.retries:
                # The server closed an idle connection while the request was on its way; every HTTP client tries again.
                record.retries += 1
                self.record = self.request = None
                self.client.retry(request, record, self)
                return
            if exc is None and record.status >= 200 and not self.framed:
                self.read_s = self.client.now()
                self.on_message_complete()
            else:
                self._fail("lost")
        self.client.forget(self)

    # httptools callbacks
    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        if size == 18 and name.lower() == b"x-exaserve-replica":
            if self.record is not None:
                self.record.replica = value.decode("latin-1")
        elif size == 12 and name.lower() == b"content-type":
            self.sse = value.lstrip().lower().startswith(b"text/event-stream")
        elif (size == 14 and name.lower() == b"content-length") or (
            size == 17 and name.lower() == b"transfer-encoding"
        ):
            self.framed = True

    def on_headers_complete(self) -> None:
        if self.record is not None:
            self.record.status = self.parser.get_status_code()
            if self.sse:
                self.reader = EventReader()

    def on_body(self, body: bytes) -> None:
        reader = self.reader
        if reader is None:
            self.body.append(body)
            return
        before = reader.events
        first = reader.feed(body)
        new = reader.events - before
        self.client.events += new
        record = self.record
        if record is None:
            return
        if first:
            record.first_token_s = self.read_s
            self.client.first_token(record)
            new = reader.token_events
        if reader.has_answer and record.first_answer_s is None:
            record.first_answer_s = self.read_s
        if reader.has_token:
            if new == 1:
                record.token_s.append(self.read_s)
            else:
                record.token_s.extend([self.read_s] * new)

    def on_message_complete(self) -> None:
        record = self.record
        if record is None or record.status < 200:
            return
        record.complete = True
        if record.status >= 300:
            self._settle("status", self.read_s)
        elif self.reader is not None:
            self._settle("", self.read_s)
        else:
            self._whole_answer(record)
        if self.parser.should_keep_alive() and self.transport is not None:
            self.reused = True
            self.client.free(self)
        else:
            self.close()

    def _whole_answer(self, record: Record) -> None:
        """An answer that is no event stream: its last byte is its first token, where it is one at all."""
        body = b"".join(self.body)
        self.body = []
        if len(body) > _JSON_MAX_BYTES or not is_answer(body):
            self._settle("no_answer", self.read_s)
            return
        record.first_token_s = record.first_answer_s = self.read_s
        self.client.first_token(record)
        _count(record, usage_seen(body), 0, 0)
        self._settle("", self.read_s)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self, error: str) -> None:
        """End the request in flight as a failure and drop the connection."""
        if self.record is not None:
            self._fail(error)
        if self.transport is not None:
            self.transport.abort()

    def _fail(self, error: str) -> None:
        self._settle(error, self.client.now())

    def _settle(self, error: str, at: float) -> None:
        """The request is over; ``error`` says why where the framing does not."""
        record, reader = self.record, self.reader
        assert record is not None
        if reader is not None:
            record.events = reader.events
            record.done, record.error_event, _ = reader.finish()
            content = reader.content_events()
            del record.token_s[content:]
            usage = reader.usage()
            _count(record, usage, content, reader.reasoning_events)
            if not error and record.error_event:
                error = "error_event"
            elif not error and not reader.has_token and not usage.output:
                error = "no_answer"
            elif not error and not record.done:
                error = "no_done"
        record.error = error
        record.last_s = at
        self.record = self.request = self.reader = None
        self.client.finished(record)


def _count(record: Record, usage: UsageSeen, events: int, reasoning_events: int) -> None:
    """Tokens by the server's usage, else by events."""
    record.reasoning_tokens = reasoning_events if usage.reasoning is None else usage.reasoning
    record.tokens = events if usage.output is None else usage.output
    record.tokens_known = usage.output is not None
    record.prompt_seen, record.cached_seen = usage.prompt, usage.cached
