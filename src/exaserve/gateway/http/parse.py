# compiled
"""Client requests off the wire: HTTP/1.1 framing, strict, without I/O.

llhttp (through httptools) does the lexing and refuses bare LF, obs-fold, space before a colon, control characters, both
framing headers at once, repeated or listed lengths and bad chunk sizes. What it leaves to the server is checked here:
the version, ``Host``, transfer codings other than ``chunked``, and every size.

A :class:`RequestReader` is fed bytes cut anywhere and puts whole :class:`Request` values into ``ready``, in order.
What is wrong becomes a last request that carries its error, since earlier ones are answered first.
"""

from __future__ import annotations

from collections import deque

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from exaserve.config.settings import ClientLimits
from exaserve.domain.errors import BadFraming, BodyTooLarge, ExaServeError, HeadersTooLarge, ReceivingTooMuch
from exaserve.gateway.http.header_kinds import (
    BEARER,
    CODING,
    CONNECTION,
    DEADLINE,
    DROP,
    EXPECT,
    HEADERS,
    HOST,
    KINDS,
    LENGTH,
    ORIGIN,
    PLAIN,
    PRIORITY,
    REQUEST_ID,
    SESSION,
    SPELLINGS,
    TENANT,
    UNPASSED,
    UPGRADE,
    WITHHELD,
)
from exaserve.gateway.http.message_head import Heads, hop_by_hop, skeleton

__all__ = ["BODY", "HEAD", "IDLE", "Receiving", "Request", "RequestReader"]

IDLE, HEAD, BODY = 0, 1, 2
"""Phases of a reader: between requests, inside a request's head, inside its body."""

_HTTP2 = b"PRI * HTTP/2.0"
"""What a client sends first that takes HTTP/2 for granted."""
_OVERHEAD_MAX = 1 << 20
"""Chunk framing beyond eight times the data and this many bytes is no honest sender's."""


class Request:
    """One request as read. Most attributes keep their class's value: setting few makes a request cheap.

    Attributes:
        head: request line and end-to-end header lines, as they go to the replica but for host and framing; no CRLF.
        error: set where the request is not to be served but answered with this.
        http11: False for HTTP/1.0: the answer is not chunked and the connection closes.
        keep_alive: the client wants to go on after this answer.
        expect: the client waits for ``100 Continue`` before its body.
        length: announced body length in bytes, -1 if none.
        noted: any of the following is set.
        session, request_id, origin, priority, deadline: values of headers that the gateway itself understands, b""
            where absent.
        credential: the API key or token, b"" where there is none.
        tenant: on whose behalf it says it comes.
        withheld: header lines that only an open endpoint passes on, each with its CRLF before it: credentials, and what
            only the gateway or a trusted peer may say to a replica. They are not in ``head``.
    """

    method: bytes = b""
    target: bytes = b""
    head: bytes = b""
    body: bytes = b""
    error: ExaServeError | None = None
    http11: bool = True
    keep_alive: bool = True
    expect: bool = False
    chunked: bool = False
    upgrade: bool = False
    length: int = -1
    hosts: int = 0
    noted: bool = False
    connection: bytes | None = None
    session: bytes = b""
    request_id: bytes = b""
    origin: bytes = b""
    priority: bytes = b""
    deadline: bytes = b""
    credential: bytes = b""
    tenant: bytes = b""
    withheld: bytes = b""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        """Header lines while they are being read one by one, flat: name, colon, value, CRLF."""


_cut = HEADERS.split
_LONG_WAY = frozenset({CODING, EXPECT, UPGRADE})
_SIMPLE_CONNECTION = frozenset({b"keep-alive", b"Keep-Alive"})


class Receiving:
    """Bytes of bodies that are being received, over all connections of one gateway, and how many may be."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0


class RequestReader:
    """Turns one connection's bytes into requests.

    Attributes:
        ready: whole requests in the order they came.
        phase: IDLE, HEAD or BODY of the request that is not whole yet.
        failed: nothing more will be read: the last of ``ready`` says why.
        waits_continue: the request being read waits for ``100 Continue``.
    """

    __slots__ = (
        "_began",
        "_fed",
        "_feed_size",
        "_heads",
        "_limits",
        "_parser",
        "_pieces",
        "_receiving",
        "_request",
        "_size",
        "_special_size",
        "failed",
        "phase",
        "ready",
    )  # fmt: skip

    def __init__(
        self, limits: ClientLimits, heads: Heads[Request] | None = None, receiving: Receiving | None = None
    ) -> None:
        self._limits = limits
        self._heads = heads or Heads(HttpRequestParser)
        self._parser: HttpRequestParser | None = None
        self.ready: deque[Request] = deque()
        self.phase = IDLE
        self.failed = False
        self._request = Request()
        self._pieces: list[bytes] | None = None
        self._receiving = receiving or Receiving(limits.receiving_bytes_max)
        self._size = 0
        """Of the body that is being received; ``_receiving`` holds as much for it."""
        self._special_size = 0
        self._fed = 0
        self._feed_size = 0
        self._began = False

    @property
    def waits_continue(self) -> bool:
        return self.phase == BODY and self._request.expect and not self._size and not self.failed

    @property
    def received(self) -> int:
        """Bytes that have come of the body that is being received."""
        return self._size

    def continued(self) -> None:
        """``100 Continue`` has been sent."""
        self._request.expect = False

    def close(self) -> None:
        """Breaks the cycle between this object and its parser, and forgets a half-read request."""
        self.failed = True
        self._pieces = None
        self._parser = None
        self._let_go()

    def _let_go(self) -> None:
        """The body being received is received, or given up."""
        self._receiving.held_bytes -= self._size
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Reads on; never raises. Bytes after a failure are ignored."""
        if self.failed:
            return
        if self.phase == IDLE:
            request = self._whole(data)
            if request is not None:
                self.ready.append(request)
                return
        self._feed_size = len(data)
        parser = self._parser
        if parser is None:
            parser = self._parser = HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._without_upgrade(data[upgrade.args[0] :])
        except HttpParserError as error:
            if not self.failed:
                why = (
                    "HTTP/2 is not spoken here"
                    if data.startswith(_HTTP2)
                    else f"the request is not valid HTTP/1.1: {error}"
                )
                self.fail(BadFraming(f"Send HTTP/1.1: {why}."))
        if self.phase != IDLE and not self.failed:
            self._check_growth(len(data))

    def _whole(self, data: bytes) -> Request | None:
        """``data`` as one request if it is exactly one, of the usual kind; None: the long way decides."""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        key, length = skeleton(data, end)
        if length < 0 or end + 4 + length != len(data) or length > self._limits.body_bytes_max:
            return None
        heads = self._heads
        like = heads.seen.get(key)
        if like is None:
            like = self._read_head(data, end)
            if like is None or not heads.whole(data):
                return None
            if not like.request_id:  # one with an id of its own will not come again
                heads.remember(key, like)
        request = Request()
        request.method = like.method
        request.target = like.target
        request.head = like.head
        if like.noted:
            request.session, request.request_id, request.origin = like.session, like.request_id, like.origin
            request.priority, request.deadline = like.priority, like.deadline
            request.credential, request.tenant, request.withheld = like.credential, like.tenant, like.withheld
        if length:
            request.length = length
            request.body = data[end + 4 :]
        return request

    def _read_head(self, data: bytes, end: int) -> Request | None:
        """The head of ``data`` if it is of the usual kind, except what llhttp has to say of it."""
        limits = self._limits
        if end > limits.header_bytes_max or data.count(b"\r\n", 0, end) > limits.header_count_max:
            return None
        parts = _cut(data[:end])
        request = Request()
        for at in range(1, len(parts), 3):
            name, value = parts[at], parts[at + 1].rstrip(b" \t")
            kind = SPELLINGS.get(name) or KINDS.get(name.lower(), WITHHELD)
            if kind == HOST:
                request.hosts += 1
            elif kind in _LONG_WAY or (kind == CONNECTION and value not in _SIMPLE_CONNECTION):
                return None
            elif kind >= SESSION:
                request.noted = True
                self._note(request, kind, name, value)
                if kind not in UNPASSED:
                    parts[at + 2] = b"\r\n%b: %b%b" % (name, value, parts[at + 2])
        request.head = b"".join(parts[::3])
        words = request.head.split(b"\r\n", 1)[0].split(b" ")
        if request.hosts != 1 or len(words) != 3 or not words[0].isalpha() or words[2] != b"HTTP/1.1":
            return None
        request.method, request.target, _ = words
        return request

    def fail(self, error: ExaServeError) -> None:
        """Ends the request being read, and reading, with ``error``."""
        self._let_go()
        request = self._request
        if self.phase == IDLE or (self.ready and self.ready[-1] is request):
            request = Request()
        request.error = error
        request.keep_alive = False
        self.failed = True
        self.phase = IDLE
        self._pieces = None
        self.ready.append(request)

    # ---- parser callbacks ---------------------------------------------------------------------------------------
    def on_message_begin(self) -> None:
        self._request = Request()
        self.phase = HEAD
        self._began = True
        self._fed = 0
        self._let_go()
        self._special_size = 0

    def on_url(self, url: bytes) -> None:
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        kind = SPELLINGS.get(name) or KINDS.get(name.lower(), PLAIN)
        if kind == PLAIN and HEADERS.match(b"\r\n%b:" % name) is not None:
            kind = WITHHELD
        if self.phase != HEAD:
            self._special_size += len(name) + len(value)  # a trailer: dropped
        elif kind == PLAIN:
            self._request.lines += (name, b": ", value, b"\r\n")
        else:
            self._special(kind, name, value)

    def on_headers_complete(self) -> None:
        if self.failed:
            return
        request = self._request
        parser = self._parser
        assert parser is not None
        request.method = parser.get_method()
        version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        if version != "1.1":
            request.http11 = request.keep_alive = False
            if version != "1.0" or request.chunked:
                self.fail(BadFraming(f"HTTP/{version} is not spoken here, or not with chunked bodies; use HTTP/1.1."))
                return
        if request.hosts != 1 and (request.http11 or request.hosts):
            self.fail(BadFraming("A request carries exactly one Host header."))
            return
        limits = self._limits
        if self._fed + self._feed_size > limits.header_bytes_max and self._head_size() > limits.header_bytes_max:
            self.fail(HeadersTooLarge(f"Request line and headers are limited to {limits.header_bytes_max} bytes."))
            return
        if len(request.lines) > 4 * limits.header_count_max:
            self.fail(HeadersTooLarge(f"A request is limited to {limits.header_count_max} header lines."))
            return
        if request.length > limits.body_bytes_max:
            self.fail(self._too_large())
            return
        if request.connection is not None:
            _drop_named(request)
        self.phase = BODY
        self._fed = 0

    def on_body(self, data: bytes) -> None:
        if self.failed:
            return
        size = self._size
        self._size = size = size + len(data)
        receiving = self._receiving
        receiving.held_bytes += len(data)
        if size > self._limits.body_bytes_max:
            self.fail(self._too_large())
        elif receiving.held_bytes > receiving.bytes_max:
            self.fail(ReceivingTooMuch("The gateway is receiving too many large requests; retry.", retry_after_s=1))
        elif size == len(data):
            self._request.body = data
        elif self._pieces is None:
            self._pieces = [self._request.body, data]
        else:
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if self.failed:
            return
        request = self._request
        if self._parser is not None and self._parser.should_upgrade():
            return  # the body, if any, comes through _without_upgrade
        self._complete(request)

    # ---- the rest -----------------------------------------------------------------------------------------------
    def _complete(self, request: Request) -> None:
        if self._pieces is not None:
            request.body = b"".join(self._pieces)
            self._pieces = None
        self._let_go()
        request.head = b"%b %b HTTP/1.1\r\n%b" % (request.method, request.target, b"".join(request.lines))
        request.head = request.head[:-2]
        self.phase = IDLE
        self.ready.append(request)

    def _special(self, kind: int, name: bytes, value: bytes) -> None:
        """A header that means something to the gateway."""
        request = self._request
        value = value.rstrip(b" \t")
        self._special_size += len(name) + len(value) + 4
        if kind == HOST:
            request.hosts += 1
        elif kind == LENGTH:
            request.length = int(value)
        elif kind == CONNECTION:
            request.connection = value if request.connection is None else request.connection + b"," + value
        elif kind == CODING:
            request.chunked = True
            if value.strip().lower() != b"chunked":
                self.fail(BadFraming("The only transfer coding understood is chunked."))
        elif kind == EXPECT:
            request.expect = value.strip().lower() == b"100-continue"
        elif kind == UPGRADE:
            request.upgrade = True
        elif kind != DROP:
            self._note(request, kind, name, value)
            if kind not in UNPASSED:
                request.lines += (name, b": ", value, b"\r\n")

    @staticmethod
    def _note(request: Request, kind: int, name: bytes, value: bytes) -> None:
        """A header that the gateway understands and that says nothing about framing."""
        if kind == REQUEST_ID:
            request.request_id = value
        elif kind == SESSION:
            request.session = value
        elif kind == ORIGIN:
            request.origin = value
        elif kind == DEADLINE:
            request.deadline = value
        else:
            request.withheld += b"\r\n%b: %b" % (name, value)
            if kind == PRIORITY:
                request.priority = value
            elif kind == TENANT:
                request.tenant = value
            elif kind != WITHHELD:
                if kind == BEARER:
                    value = value[7:].strip() if value[:7].lower() == b"bearer " else b""
                if value and (kind == BEARER or not request.credential):
                    request.credential = value

    def _head_size(self) -> int:
        request = self._request
        return len(request.target) + sum(map(len, request.lines)) + self._special_size

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"Request bodies are limited to {self._limits.body_bytes_max} bytes.")

    def _check_growth(self, size: int) -> None:
        """Bounds what is held or skipped for a request that is not whole yet: endless heads, chunk frames, trailers."""
        limits = self._limits
        if self._began:
            self._began = False  # this feed may begin with the end of an earlier request, so its size says nothing
        else:
            self._fed += size
        if self.phase == HEAD:
            if max(self._fed, self._head_size()) > limits.header_bytes_max:
                self.fail(HeadersTooLarge(f"Request line and headers are limited to {limits.header_bytes_max} bytes."))
        elif self._request.chunked and self._fed > 8 * self._size + _OVERHEAD_MAX:
            self.fail(BadFraming("More chunk framing than data."))

    def _without_upgrade(self, rest: bytes) -> None:
        """Serves a request that asked for an upgrade as if it had not (RFC 9110 7.8 lets a server ignore it).

        The parser ends such a message at its head; the body is read by a second parser that is given a plain head. The
        connection closes after the answer, so nothing behind the body is read.
        """
        request = self._request
        request.keep_alive = False
        if self.failed:
            return
        if not request.upgrade:
            self.fail(BadFraming("Tunnels are not offered here."))
            return
        framing = b"Transfer-Encoding: chunked\r\n" if request.chunked else b""
        if request.length >= 0:
            framing = b"Content-Length: %d\r\n" % request.length
        self._parser = parser = HttpRequestParser(_BodyOf(self))
        parser.feed_data(b"POST / HTTP/1.1\r\nHost: x\r\n" + framing + b"\r\n")
        self.feed(rest)


class _BodyOf:
    """Parser callbacks that hand on one message's body and ignore whatever follows it."""

    def __init__(self, reader: RequestReader) -> None:
        self._reader = reader
        self._done = False

    def on_body(self, data: bytes) -> None:
        if not self._done:
            self._reader.on_body(data)

    def on_message_complete(self) -> None:
        if not self._done and not self._reader.failed:
            self._done = True
            self._reader._complete(self._reader._request)  # noqa: SLF001 - one object in two parts
            self._reader.failed = True


def _drop_named(request: Request) -> None:
    """Removes the headers that ``Connection`` names as hop by hop."""
    assert request.connection is not None
    if request.connection in (b"keep-alive", b"Keep-Alive", b"close"):
        return
    named = hop_by_hop(request.connection)
    lines = request.lines
    for start in range(len(lines) - 4, -1, -4):
        if lines[start].lower() in named:
            del lines[start : start + 4]
