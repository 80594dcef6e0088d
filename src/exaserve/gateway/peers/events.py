"""What gateways tell each other, in compact binary: in bytes out and events in. No I/O.

Each event is one type byte and a body, little-endian; they travel one after the other in events of
:mod:`exaserve.wire.link`, which proves and authenticates both sides:

======  =======  ==========================================================================================
type    name     body
======  =======  ==========================================================================================
3       TIME     sender's monotonic clock, seconds (f64): begins each write, and alone is the heartbeat
4       RESET    forget all I told: the snapshot follows
5       DEFINE   number (u32) that stands for a replica id (length u16, UTF-8) from now on
6       PLACED   ref, replica number, uncached prompt tokens, KV tokens (u32 each), flags, age in seconds (f32)
7       FIRST    ref: its first token came
8       DONE     ref: it ended, however it ended
9       ECHO     the other's clock in its last TIME (f64), and how long that was held, seconds (f32)
10      WANT     send me your snapshot
======  =======  ==========================================================================================

A reader takes bytes cut anywhere. Whatever is not this language raises :class:`WireError`, and the connection ends.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from exaserve.wire.link import WireError

__all__ = [
    "AGE_MAX_S",
    "DECODING",
    "STREAM",
    "Define",
    "Done",
    "Echo",
    "First",
    "PeerEvent",
    "PeerEventReader",
    "Placed",
    "Reset",
    "Time",
    "Want",
    "write_define",
    "write_done",
    "write_echo",
    "write_first",
    "write_placed",
    "write_reset",
    "write_time",
    "write_want",
]

STREAM = 1
"""Flag of PLACED: the answer is streamed, so a first token will be told."""
DECODING = 2
"""Flag of PLACED in a snapshot: the first token has come already."""
ID_BYTES_MAX = 1024
DEFINED_MAX = 131_072
"""Replica numbers that one sender may use; senders start again well below."""
U32_MAX = 0xFFFF_FFFF

_TIME = struct.Struct("<Bd")
_DEFINE = struct.Struct("<BIH")
_PLACED = struct.Struct("<BIIIIBf")
_REF = struct.Struct("<BI")
_ECHO = struct.Struct("<Bdf")
AGE_MAX_S = 86_400.0


class Time(NamedTuple):
    sent_at: float


class Reset(NamedTuple):
    pass


class Define(NamedTuple):
    number: int
    replica: str


class Placed(NamedTuple):
    ref: int
    number: int
    tokens: int
    kv_tokens: int
    flags: int
    age_s: float


class First(NamedTuple):
    ref: int


class Done(NamedTuple):
    ref: int


class Echo(NamedTuple):
    sent_at: float
    held_s: float


class Want(NamedTuple):
    pass


PeerEvent = Time | Reset | Define | Placed | First | Done | Echo | Want


def write_time(sent_at: float) -> bytes:
    return _TIME.pack(3, sent_at)


def write_reset() -> bytes:
    return b"\x04"


def write_define(number: int, replica: str) -> bytes:
    text = replica.encode()[:ID_BYTES_MAX]
    return _DEFINE.pack(5, number, len(text)) + text


def write_placed(ref: int, number: int, tokens: int, kv_tokens: int, flags: int, age_s: float = 0.0) -> bytes:
    """Figures beyond their field's range are cut to it; ``age_s`` must be from 0 to :data:`AGE_MAX_S`."""
    try:
        return _PLACED.pack(6, ref, number, tokens, kv_tokens, flags, age_s)
    except struct.error:
        return _PLACED.pack(6, ref, number, min(tokens, U32_MAX), min(kv_tokens, U32_MAX), flags, age_s)


def write_first(ref: int) -> bytes:
    return _REF.pack(7, ref)


def write_done(ref: int) -> bytes:
    return _REF.pack(8, ref)


def write_echo(sent_at: float, held_s: float) -> bytes:
    return _ECHO.pack(9, sent_at, min(max(held_s, 0.0), AGE_MAX_S))


def write_want() -> bytes:
    return b"\x0a"


class PeerEventReader:
    """Bytes into events. What is held back of an unfinished one is at most about a kilobyte."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[PeerEvent]:
        """The events that ``data`` completes. WireError for anything else; the reader is then of no further use."""
        if self._rest:
            data = self._rest + data
        events: list[PeerEvent] = []
        at, end = 0, len(data)
        while at < end:
            read = _READ.get(data[at])
            if read is None:
                raise WireError(f"event type {data[at]} is not known")
            least, take = read
            if end - at < least:
                break
            event, size = take(data, at)
            if event is None:
                break
            events.append(event)
            at += size
        self._rest = data[at:]
        return events


_Taken = tuple[PeerEvent | None, int]


def _define(data: bytes, at: int) -> _Taken:
    _, number, length = _DEFINE.unpack_from(data, at)
    if length > ID_BYTES_MAX or number >= DEFINED_MAX:
        raise WireError("a replica's number or name is out of range")
    size = _DEFINE.size + length
    if len(data) - at < size:
        return None, 0
    return Define(number, _text(data[at + _DEFINE.size : at + size])), size


def _placed(data: bytes, at: int) -> _Taken:
    _, ref, number, tokens, kv_tokens, flags, age_s = _PLACED.unpack_from(data, at)
    if flags > STREAM | DECODING or not 0.0 <= age_s <= AGE_MAX_S:
        raise WireError("a placement is out of range")
    return Placed(ref, number, tokens, kv_tokens, flags, age_s), _PLACED.size


def _time(data: bytes, at: int) -> _Taken:
    sent_at = _TIME.unpack_from(data, at)[1]
    if not math.isfinite(sent_at):
        raise WireError("the peer's clock is no number")
    return Time(sent_at), _TIME.size


def _echo(data: bytes, at: int) -> _Taken:
    _, sent_at, held_s = _ECHO.unpack_from(data, at)
    if not math.isfinite(sent_at) or not 0.0 <= held_s <= AGE_MAX_S:
        raise WireError("an echo is out of range")
    return Echo(sent_at, held_s), _ECHO.size


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise WireError("a name is not UTF-8") from None
    if not text.isprintable():
        raise WireError("a name holds control characters")
    return text


_READ = {
    3: (_TIME.size, _time),
    4: (1, lambda _data, _at: (Reset(), 1)),
    5: (_DEFINE.size, _define),
    6: (_PLACED.size, _placed),
    7: (_REF.size, lambda data, at: (First(_REF.unpack_from(data, at)[1]), _REF.size)),
    8: (_REF.size, lambda data, at: (Done(_REF.unpack_from(data, at)[1]), _REF.size)),
    9: (_ECHO.size, _echo),
    10: (1, lambda _data, _at: (Want(), 1)),
}
