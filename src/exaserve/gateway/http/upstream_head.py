# compiled
"""What a replica's answer says: headers the gateway handles itself, heads of the usual kind, chunks. Pure."""

from __future__ import annotations

from httptools import HttpResponseParser

from exaserve.gateway.http.message_head import cutter

__all__ = ["CODING_HEADER", "LENGTH_HEADER", "ChunkDecoder", "kind_of", "read_head"]

_DROP, LENGTH_HEADER, CODING_HEADER, _CONNECTION = 1, 2, 3, 4
_KINDS = {
    b"content-length": LENGTH_HEADER,
    b"transfer-encoding": CODING_HEADER,
    b"connection": _CONNECTION,
    b"upgrade": _CONNECTION,
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
_SPELLINGS = _KINDS | {name.title(): kind for name, kind in _KINDS.items()}
_cut = cutter(name.decode() for name in _KINDS).split
_BODYLESS = frozenset({b"204", b"304"})


def kind_of(name: bytes) -> int:
    """What a header is to the gateway; 0 for one that is passed on as it is."""
    return _SPELLINGS.get(name) or _KINDS.get(name.lower(), 0)


def read_head(data: bytes, end: int) -> tuple[int, bytes] | None:
    """Status and forwarded head of an answer of the usual kind, except what llhttp has to say of it."""
    parts = _cut(data[:end])
    lengths = 0
    for at in range(1, len(parts), 3):
        kind = _SPELLINGS.get(parts[at]) or _KINDS[parts[at].lower()]
        if kind == LENGTH_HEADER:
            lengths += 1
        elif kind != _DROP:
            return None
    status = data[9:12]
    if lengths != 1 or data[:9] != b"HTTP/1.1 " or not b"200" <= status <= b"599" or status in _BODYLESS:
        return None
    return int(status), b"".join(parts[::3])


class ChunkDecoder:
    """Takes chunk framing off a body, for clients that know none."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._parser = HttpResponseParser(self)
        self._parser.feed_data(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._pieces.append(data)

    def feed(self, data: bytes) -> bytes:
        """Payload in ``data``, which another parser has found valid."""
        self._parser.feed_data(data)
        payload = b"".join(self._pieces)
        self._pieces.clear()
        return payload
