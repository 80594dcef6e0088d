"""The peers' language: what is written is read whatever the cuts, and garbage ends in WireError, in nothing else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.gateway.peers.events import (
    Define,
    Done,
    Echo,
    First,
    PeerEvent,
    PeerEventReader,
    Placed,
    Reset,
    Time,
    Want,
    write_define,
    write_done,
    write_echo,
    write_first,
    write_placed,
    write_reset,
    write_time,
    write_want,
)
from exaserve.wire import WireError

_u32 = st.integers(0, 2**32 - 1)
_text = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
_events: st.SearchStrategy[PeerEvent] = st.one_of(
    st.builds(Time, st.floats(allow_nan=False, allow_infinity=False)),
    st.just(Reset()),
    st.builds(Define, st.integers(0, 131_071), _text),
    st.builds(Placed, _u32, _u32, _u32, _u32, st.integers(0, 3), st.floats(0, 86_400, width=32)),
    st.builds(First, _u32),
    st.builds(Done, _u32),
    st.builds(Echo, st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 86_400, width=32)),
    st.just(Want()),
)


def write(event: PeerEvent) -> bytes:
    match event:
        case Time():
            return write_time(event.sent_at)
        case Reset():
            return write_reset()
        case Define():
            return write_define(*event)
        case Placed():
            return write_placed(*event)
        case First():
            return write_first(event.ref)
        case Done():
            return write_done(event.ref)
        case Echo():
            return write_echo(*event)
        case Want():
            return write_want()


@given(st.lists(_events, max_size=12), st.lists(st.integers(0, 600), max_size=8))
def test_what_is_written_is_read_whatever_the_cuts(events: list[PeerEvent], cuts: list[int]) -> None:
    data = b"".join(map(write, events))
    reader, read, at = PeerEventReader(), list[PeerEvent](), 0
    for cut in [*sorted(cuts), len(data)]:
        read += reader.feed(data[at:cut])
        at = max(at, min(cut, len(data)))
    assert read == events


@given(st.binary(max_size=300), st.lists(_events, max_size=3))
def test_garbage_is_refused_or_held_back_but_never_anything_else(garbage: bytes, events: list[PeerEvent]) -> None:
    reader = PeerEventReader()
    with contextlib.suppress(WireError):
        reader.feed(b"".join(map(write, events)) + garbage)
        for byte in garbage:
            reader.feed(bytes([byte]))


@given(st.lists(_events, min_size=1, max_size=5), st.data())
def test_a_flipped_byte_is_another_event_or_an_error(events: list[PeerEvent], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(write, events)))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WireError):
        for event in PeerEventReader().feed(bytes(whole)):
            assert isinstance(event, tuple)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00",
        write_time(float("nan")),
        write_time(float("inf")),
        b"\x05" + (131_072).to_bytes(4, "little") + b"\x01\x00a",
        b"\x05" + bytes(4) + b"\xff\xff",
        write_define(0, "a\x00b"),
        b"\x05" + bytes(4) + b"\x01\x00\xff",
        b"\x06" + bytes(16) + b"\x04" + bytes(4),
        b"\x06" + bytes(16) + b"\x00" + b"\x00\x00\x80\xbf",
    ],
)
def test_what_is_out_of_range_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        PeerEventReader().feed(data)


def test_sizes_beyond_the_format_are_cut_to_it() -> None:
    read = PeerEventReader().feed(write_placed(1, 2, 2**40, 2**33, 1, 9.0))
    assert read == [Placed(1, 2, 2**32 - 1, 2**32 - 1, 1, 9.0)]
