# compiled
"""Heads of messages as bytes: taken apart in one call, with what is not the gateway's business left as it came.

Most messages arrive whole in one receive. For those a regular expression cuts the few header lines that the gateway
handles out of the head, and what lies between the cuts is forwarded as it is; llhttp reads every byte, without
callbacks, and has the last word on whether it is valid. And since a client sends the same head over and over but for
the length of its body, a head that has been read once is known by its bytes.

Made for speed: an official client sends some 17 headers, and a callback for each costs more than placing the request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Generic, TypeVar

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

__all__ = ["Heads", "cutter", "header", "hop_by_hop", "skeleton"]

_SEEN_MAX = 2048
_SEEN_BYTES_MAX = 4096
"""Heads remembered, and their size: 16 MB at most, and in practice one entry for each client's configuration."""
_PROTECTED = frozenset({b"content-type", b"content-encoding", b"authorization", b"x-request-id"})
"""``Connection`` cannot name these away: a hop-by-hop trick must not strip what the next one judges by."""
_STANDING_FOR = {"~": "[-_]", "*": r"[^:\r\n]*"}
_T = TypeVar("_T")


def cutter(names: Iterable[str]) -> re.Pattern[bytes]:
    r"""A pattern for ``split``: ``\r\nname: value`` of each of ``names``, in any case, with name and value captured.

    The names are merged into a prefix tree, so that a header which is none of them is left after a character or two. In
    a name ``~`` stands for a dash or an underscore, which many servers take for the same, and a last ``*`` for any end.
    """
    tree: dict[str, dict] = {}  # type: ignore[type-arg]  # recursive
    for name in names:
        node = tree
        for char in name:
            node = node.setdefault(char, {})
        node[""] = {}

    def render(node: dict[str, dict]) -> str:  # type: ignore[type-arg]  # recursive
        branches = [
            (f"[{char.upper()}{char}]" if char.isalpha() else _STANDING_FOR.get(char) or re.escape(char))
            + render(below)
            for char, below in sorted(node.items(), reverse=True)
        ]
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""

    return re.compile(rb"\r\n(" + render(tree).encode() + rb"):[ \t]*([^\r\n]*)")


def header(head: bytes, name: bytes) -> bytes:
    """Value of a header of ``head`` by its lower-case name, b"" where absent. For what is needed rarely."""
    found = re.search(rb"(?i)\r\n" + re.escape(name) + rb":[ \t]*([^\r\n]*)", head)
    return found[1].rstrip() if found is not None else b""


def hop_by_hop(connection: bytes) -> set[bytes]:
    """Lower-case names that a ``Connection`` value makes hop by hop (RFC 9110 7.6.1), without protected ones."""
    return {token.strip().lower() for token in connection.split(b",")} - _PROTECTED


def skeleton(data: bytes, end: int) -> tuple[bytes, int]:
    """The head of ``data``, which ends at ``end``, without the digits of its Content-Length, and that number.

    The number is 0 where there is none and -1 where it is no plain decimal. With equal skeletons two heads are equal in
    every byte but these digits, so what was found out about one holds for the other.
    """
    at = data.find(b"\r\nContent-Length: ", 0, end)
    if at < 0:
        at = data.find(b"\r\ncontent-length: ", 0, end)
        if at < 0:
            return data[:end], 0
    start = at + 18
    stop = data.find(b"\r\n", start, end + 2)
    digits = data[start:stop]
    if stop - start > 15 or not digits.isdigit():
        return b"", -1
    return data[:start] + data[stop:end], int(digits)


class Heads(Generic[_T]):
    """Says whether some bytes are exactly one valid message, and remembers heads. One serves all connections.

    Attributes:
        seen: skeleton → what it means. Only of heads that were valid in a whole message.
    """

    def __init__(self, kind: type[HttpRequestParser | HttpResponseParser]) -> None:
        self.seen: dict[bytes, _T] = {}
        self._kind = kind
        self._count = 0
        self._renew()

    def _renew(self) -> None:
        self._feed = self._kind(self).feed_data

    def on_message_complete(self) -> None:
        self._count += 1

    def whole(self, data: bytes) -> bool:
        """True if ``data`` is one whole message; it must be known to keep the connection alive if it is valid."""
        self._count = 0
        try:
            self._feed(data)
        except (HttpParserError, HttpParserUpgrade):
            self._renew()
            return False
        if self._count == 1:
            return True
        self._renew()
        return False

    def remember(self, key: bytes, meaning: _T) -> None:
        if len(key) <= _SEEN_BYTES_MAX:
            if len(self.seen) >= _SEEN_MAX:
                self.seen.clear()
            self.seen[key] = meaning
