"""The control document: what operators have decided, the same on every gateway, needed from none. Pure.

A map of entries (kind and id to a value). Each carries the hybrid logical time of its last change, and of two changes
of one entry the later wins, whatever the order in which they are heard: merging is associative, commutative and
idempotent, so gateways that have heard the same changes hold the same document. A hybrid time follows the wall clock
and never stands still or goes back: it is (milliseconds since 1970, a count within them, the writer's name).

What is taken out leaves a tombstone, or a gateway that was away would bring it back. A tombstone is forgotten after
:data:`TOMBSTONE_S`; a gateway that was away longer has to begin with an empty state folder. Keys are not taken out when
they are revoked: they stay, marked, so for them no time is too long.

Two gateways find what differs by 256 checksums, one for each bucket of entries, and tell each other those buckets only.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from exaserve.domain.errors import ConfigError

__all__ = ["BUCKETS", "DRIFT_MAX_MS", "TOMBSTONE_S", "VALUE_BYTES_MAX", "Document", "Entry", "Stamp"]

BUCKETS = 256
ENTRIES_MAX = 200_000
VALUE_BYTES_MAX = 16_384
_ID_CHARS_MAX = 512
TOMBSTONE_S = 90 * 86_400.0
DRIFT_MAX_MS = 600_000
"""A change that comes from further in the future than this is not taken: its writer's clock is wrong, and taken it
would win over everything that others write until that time has come."""


class Stamp(NamedTuple):
    """When an entry was written, as compared: milliseconds since 1970, a count within them, by whom."""

    wall_ms: int
    serial: int
    writer: str


class Entry(NamedTuple):
    """One entry. ``value`` is JSON; None is a tombstone."""

    kind: str
    id: str
    value: bytes | None
    stamp: Stamp

    @property
    def bucket(self) -> int:
        return zlib.crc32(f"{self.kind}\n{self.id}".encode()) % BUCKETS

    def checksum(self) -> int:
        text = f"{self.kind}\n{self.id}\n{self.stamp.wall_ms}\n{self.stamp.serial}\n{self.stamp.writer}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class Document:
    """See the module's text.

    Args:
        writer: who writes here: unique among gateways and commands.

    Attributes:
        refused: entries of others that were not taken, for what is wrong with them.
        version: counts its changes, so that what was made of it can be kept until the next one.
    """

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.refused = self.version = 0
        self._entries: dict[tuple[str, str], Entry] = {}
        self._sums = [0] * BUCKETS
        self._last = Stamp(0, 0, writer)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, kind: str, name: str) -> bytes | None:
        """The value of an entry, None where there is none."""
        entry = self._entries.get((kind, name))
        return None if entry is None else entry.value

    def of_kind(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Id and value of each living entry."""
        return ((e.id, e.value) for e in list(self._entries.values()) if e.kind == kind and e.value is not None)

    def put(self, kind: str, name: str, value: bytes | None, wall_ms: int) -> Entry:
        """Writes an entry here; ``value`` None takes it out. The entry is to be kept and told.

        Raises:
            ConfigError: it is too large, or there are too many.
        """
        last = self._last
        stamp = Stamp(wall_ms, 0, self.writer)
        if stamp <= last:
            stamp = Stamp(last.wall_ms, last.serial + 1, self.writer)
        entry = Entry(kind, name, value, stamp)
        if wrong := self._wrong(entry):
            raise ConfigError(f"{kind} {name[:80]!a}: {wrong}", param=kind)
        self._take(entry)
        return entry

    def merge(self, entries: Iterable[Entry], wall_ms: int) -> list[Entry]:
        """Takes what others wrote; returns what has changed here."""
        changed = []
        for entry in entries:
            if entry.stamp.wall_ms > wall_ms + DRIFT_MAX_MS or self._wrong(entry):
                self.refused += 1
                continue
            known = self._entries.get((entry.kind, entry.id))
            if known is None or entry.stamp > known.stamp:
                self._take(entry)
                changed.append(entry)
        return changed

    def sums(self) -> list[int]:
        """A checksum for each bucket."""
        return list(self._sums)

    def differing(self, sums: list[int]) -> list[Entry]:
        """The entries of all buckets in which another document with these checksums differs."""
        mine = self._sums
        return [e for e in self._entries.values() if (b := e.bucket) >= len(sums) or sums[b] != mine[b]]

    def purge(self, wall_ms: int) -> list[Entry]:
        """Forgets old tombstones, and returns them."""
        old = wall_ms - int(TOMBSTONE_S * 1000)
        gone = [e for e in self._entries.values() if e.value is None and e.stamp.wall_ms < old]
        for entry in gone:
            del self._entries[entry.kind, entry.id]
            self._sums[entry.bucket] ^= entry.checksum()
        return gone

    def _wrong(self, entry: Entry) -> str:
        if entry.value is not None and len(entry.value) > VALUE_BYTES_MAX:
            return f"has {len(entry.value)} bytes; at most {VALUE_BYTES_MAX} are kept"
        if not 0 < len(entry.kind) <= _ID_CHARS_MAX or len(entry.id) > _ID_CHARS_MAX:
            return f"has a name of more than {_ID_CHARS_MAX} characters"
        if len(self._entries) >= ENTRIES_MAX and (entry.kind, entry.id) not in self._entries:
            return f"there are {ENTRIES_MAX} entries already"
        return ""

    def _take(self, entry: Entry) -> None:
        self.version += 1
        key = entry.kind, entry.id
        known = self._entries.get(key)
        bucket = entry.bucket
        if known is not None:
            self._sums[bucket] ^= known.checksum()
        self._sums[bucket] ^= entry.checksum()
        self._entries[key] = entry
        self._last = max(self._last, entry.stamp)

    def validate(self) -> None:
        sums = [0] * BUCKETS
        for entry in self._entries.values():
            sums[entry.bucket] ^= entry.checksum()
            assert entry.stamp <= self._last
        assert sums == self._sums
