"""The control document among peers: what differs is told on greeting, and every change at once.

Frames are MessagePack pairs of a word and what it is about: ``sums``, checksums of the document's buckets, which the
other answers by its entries of those that differ; ``entries``; and ``secrets``. Peers have proved that they know the
shared token, or are on loopback: that is what these frames rest on. They can be read by who sees the network, but for
the secrets, which are hidden under the connection's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from exaserve.control.document import BUCKETS, Entry, Stamp
from exaserve.gateway.guard.state import ControlState
from exaserve.gateway.peers.link import PeerLink
from exaserve.wire import FrameKind, WireError

__all__ = ["ControlSync"]

_PIECE_BYTES = 1_048_576
_OVERHEAD_BYTES = 128
_Row = tuple[str, str, bytes | None, int, int, str]


class ControlSync:
    """Args:

    links: the peers that are connected.
    """

    def __init__(self, state: ControlState, links: Callable[[], Iterable[PeerLink]]) -> None:
        self._state = state
        self._links = links
        state.on_write.append(self._written)
        state.on_secrets.append(self._secrets)

    def greeted(self, link: PeerLink) -> None:
        """A peer has come (again): it learns what it missed, and says what we missed."""
        self._tell_secrets(link)
        self._send(link, "sums", self._state.document.sums())

    def took(self, link: PeerLink, payload: bytes) -> None:
        """A frame of a peer. WireError where it is not this language."""
        try:
            word, what = msgspec.msgpack.decode(payload, type=tuple[str, msgspec.Raw])
            if word == "sums":
                sums = msgspec.msgpack.decode(what, type=list[int])
                if len(sums) != BUCKETS:
                    raise WireError(f"a document with {len(sums)} buckets")
                self._tell(link, self._state.document.differing(sums))
            elif word == "entries":
                rows = msgspec.msgpack.decode(what, type=list[_Row])
                self._state.merge([Entry(row[0], row[1], row[2], Stamp(*row[3:])) for row in rows])
            elif word == "secrets":
                self._take_secrets(link, msgspec.msgpack.decode(what, type=dict[str, bytes]))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WireError(f"not a control frame: {error}") from None

    def _written(self, entries: Sequence[Entry]) -> None:
        for link in self._links():
            self._tell(link, entries)

    def _secrets(self) -> None:
        for link in self._links():
            self._tell_secrets(link)

    def _tell_secrets(self, link: PeerLink) -> None:
        if link.link is not None:
            hidden = link.link.hidden
            self._send(link, "secrets", {name: hidden(name, secret) for name, secret in self._state.secrets.items()})

    def _take_secrets(self, link: PeerLink, told: dict[str, bytes]) -> None:
        if link.link is None:
            return
        try:
            shown = {name: link.link.hidden(name, secret) for name, secret in told.items()}
        except ValueError:
            raise WireError("a secret of a wrong size") from None
        self._state.take_secrets(shown)

    def _tell(self, link: PeerLink, entries: Iterable[Entry]) -> None:
        rows: list[_Row] = []
        size = 0
        for entry in entries:
            rows.append((entry.kind, entry.id, entry.value, *entry.stamp))
            size += len(entry.value or b"") + len(entry.id) + _OVERHEAD_BYTES
            if size >= _PIECE_BYTES:
                self._send(link, "entries", rows)
                rows, size = [], 0
        if rows:
            self._send(link, "entries", rows)

    @staticmethod
    def _send(link: PeerLink, word: str, what: Any) -> None:
        link.send(FrameKind.CONTROL, msgspec.msgpack.encode((word, what)))
