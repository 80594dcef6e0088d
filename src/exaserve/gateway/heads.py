"""Heads of messages as bytes: taken apart in one call, with everything that is not the gateway's business left as it came.

Most messages arrive whole in one receive. For those a regular expression cuts the few header lines that the gateway handles
out of the head, and what lies between the cuts is forwarded as it is; llhttp still reads every byte, without callbacks, and
has the last word on whether it is valid. Made for speed: an official client sends some 17 headers, and a callback for each
costs more than placing the request does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, HttpResponseParser

__all__ = ["WholeCheck", "cutter", "header"]


def cutter(names: Iterable[str]) -> re.Pattern[bytes]:
    r"""A pattern for ``split``: ``\r\nname: value`` of each of ``names``, in any case, with name and value captured.

    The names are merged into a prefix tree, so that a header which is none of them is left after a character or two.
    """
    tree: dict[str, dict] = {}  # type: ignore[type-arg]  # recursive
    for name in names:
        node = tree
        for char in name:
            node = node.setdefault(char, {})
        node[""] = {}

    def render(node: dict[str, dict]) -> str:  # type: ignore[type-arg]  # recursive
        branches = [
            (f"[{char.upper()}{char}]" if char.isalpha() else re.escape(char)) + render(below)
            for char, below in sorted(node.items(), reverse=True)
        ]
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""

    return re.compile(rb"\r\n(" + render(tree).encode() + rb"):[ \t]*([^\r\n]*)")


def header(head: bytes, name: bytes) -> bytes:
    """Value of a header of ``head`` by its lower-case name, b"" where absent. For what is needed rarely."""
    found = re.search(rb"(?i)\r\n" + re.escape(name) + rb":[ \t]*([^\r\n]*)", head)
    return found[1].rstrip() if found is not None else b""


class WholeCheck:
    """llhttp without callbacks: says whether some bytes are exactly one valid message. One serves all connections."""

    def __init__(self, kind: type[HttpRequestParser | HttpResponseParser]) -> None:
        self._kind = kind
        self._count = 0
        self._renew()

    def _renew(self) -> None:
        self._feed = self._kind(self).feed_data

    def on_message_complete(self) -> None:
        self._count += 1

    def __call__(self, data: bytes) -> bool:
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
