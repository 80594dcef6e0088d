# compiled
"""What a replica's answer says: headers the gateway handles itself, heads of the usual kind, chunks. Pure."""

from __future__ import annotations

import re
from contextlib import suppress

from httptools import HttpParserError, HttpResponseParser

from exaserve.gateway.http.message_head import cutter, hop_by_hop

__all__ = ["LAST_CHUNK", "AnswerHead", "ChunkDecoder", "body_end", "read_head"]

LAST_CHUNK = b"0\r\n\r\n"

_DROP, _LENGTH, _CODING, _CONNECTION, _ADDRESS, _ENCODING = 1, 2, 3, 4, 5, 6
_KINDS = {
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"connection": _CONNECTION,
    b"upgrade": _CONNECTION,
    b"content-encoding": _ENCODING,
}
_KINDS |= dict.fromkeys(
    (
        b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"te", b"trailer", b"x-request-id",
        b"x-exaserve-replica",
        b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers",
    ),
    _DROP,
)  # fmt: skip
"""Hop-by-hop headers, and those that the gateway sets itself."""
_KINDS |= dict.fromkeys((b"location", b"content-location", b"refresh", b"link"), _ADDRESS)
"""Headers that may name a replica's own address, which is not the client's business and often not reachable."""
_SPELLINGS = _KINDS | {name.title(): kind for name, kind in _KINDS.items()}
_cut = cutter(name.decode() for name in _KINDS).split
_BODYLESS = frozenset({b"204", b"304"})
_AUTHORITY = re.compile(rb"(?i)(?<![^\s<=,;\"'])(?:https?:)?//([^/?#\s<>;,\"']*)")


class AnswerHead:
    """What the head of an answer says.

    Attributes:
        lines: the header lines that are passed on, each with its CRLF before it.
        length: announced length in bytes, -1 where it says none; lengths: how often it says so.
        chunked: its transfer coding is ``chunked``; coded: it names another one.
        encoded: its body is compressed or otherwise not what it looks like.
        usual: nothing in it but the length concerns the gateway.
    """

    __slots__ = ("chunked", "coded", "encoded", "length", "lengths", "lines", "usual")

    def __init__(self, head: bytes, host: bytes) -> None:
        """Reads ``head``, its first line and header lines; ``host`` is the replica's address as it was asked."""
        parts = _cut(head)
        self.length = -1
        self.lengths = 0
        self.chunked = self.coded = self.encoded = False
        self.usual = True
        named = b""
        for at in range(1, len(parts), 3):
            name, value = parts[at], parts[at + 1].rstrip(b" \t")
            kind = _SPELLINGS.get(name) or _KINDS[name.lower()]
            if kind == _LENGTH:
                self.lengths += 1
                self.length = int(value) if value.isdigit() and len(value) < 20 else -1
                continue
            if kind == _DROP:
                continue
            self.usual = False
            if kind == _CODING:
                self.chunked = value.lower() == b"chunked"
                self.coded = not self.chunked
            elif kind == _CONNECTION:
                named += b"," + value if name.lower() == b"connection" else b""
            elif kind == _ENCODING:
                self.encoded = value.lower() != b"identity"
                parts[at + 2] = b"\r\n%b: %b%b" % (name, value, parts[at + 2])
            else:
                value = _without_address(value, host)
                if value:
                    parts[at + 2] = b"\r\n%b: %b%b" % (name, value, parts[at + 2])
        self.lines = b"".join(parts[::3])
        if named:
            dropped = hop_by_hop(named)
            first, *lines = self.lines.split(b"\r\n")
            kept = (line for line in lines if line.partition(b":")[0].lower() not in dropped)
            self.lines = b"\r\n".join([first, *kept])


def _without_address(value: bytes, host: bytes) -> bytes:
    """``value`` without the replica's own address; b"" where it names another one, which may be inner as well."""
    value = _AUTHORITY.sub(lambda found: b"" if found[1].lower() == host.lower() else found[0], value)
    return b"" if _AUTHORITY.search(value) else value


def read_head(data: bytes, end: int) -> tuple[int, bytes] | None:
    """Status and forwarded head of an answer of the usual kind, except what llhttp has to say of it."""
    head = AnswerHead(data[:end], b"")
    status = data[9:12]
    if not head.usual or head.lengths != 1 or data[:9] != b"HTTP/1.1 ":
        return None
    if not b"200" <= status <= b"599" or status in _BODYLESS:
        return None
    return int(status), head.lines


class ChunkDecoder:
    """Takes chunk framing off a body.

    Attributes:
        at_edge: the next byte begins a chunk.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.at_edge = True
        self._parser = HttpResponseParser(self)
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_chunk_header(self) -> None:
        self.at_edge = False

    def on_chunk_complete(self) -> None:
        self.at_edge = True

    def feed(self, data: bytes) -> bytes:
        """Payload in ``data``."""
        self._parser.feed_data(data)
        self.at_edge = self.at_edge and data[-2:] == b"\r\n"  # the next one's size may have begun
        return self._taken()

    def last(self, data: bytes) -> bytes:
        """Payload in ``data``, which holds the body's end and perhaps something else behind it."""
        with suppress(HttpParserError):
            self._parser.feed_data(data)
        return self._taken()

    def _taken(self) -> bytes:
        payload = b"".join(self._pieces)
        self._pieces.clear()
        return payload


def body_end(data: bytes, *, surplus: bool) -> bytes | None:
    """``data``, the end of a chunked body, without what lies behind it; None where the end is not to be found.

    Args:
        surplus: there is more than line ends, which parsers forgive.
    """
    if surplus:
        if data.startswith(LAST_CHUNK):
            return LAST_CHUNK
        at = data.find(b"\r\n" + LAST_CHUNK)
        return data[: at + 2 + len(LAST_CHUNK)] if at >= 0 else None
    core = data.rstrip(b"\r\n")
    return core + b"\r\n\r\n" if core and len(data) > len(core) + 4 else data
