"""The peers' language: what is written is read whatever the cuts, and garbage ends in FrameError, in nothing else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.gateway.peers.frames import (
    Auth,
    Define,
    Done,
    Echo,
    First,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Placed,
    Reset,
    Time,
    Want,
    proof,
    write_auth,
    write_define,
    write_done,
    write_echo,
    write_first,
    write_hello,
    write_placed,
    write_reset,
    write_time,
    write_want,
)

_u32 = st.integers(0, 2**32 - 1)
_text = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
_frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Hello, st.binary(min_size=8, max_size=8), st.binary(min_size=16, max_size=16), _text),
    st.builds(Auth, st.binary(min_size=32, max_size=32)),
    st.builds(Time, st.floats(allow_nan=False, allow_infinity=False)),
    st.just(Reset()),
    st.builds(Define, st.integers(0, 131_071), _text),
    st.builds(Placed, _u32, _u32, _u32, _u32, st.integers(0, 3), st.floats(0, 86_400, width=32)),
    st.builds(First, _u32),
    st.builds(Done, _u32),
    st.builds(Echo, st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 86_400, width=32)),
    st.just(Want()),
)


def write(frame: Frame) -> bytes:
    match frame:
        case Hello():
            return write_hello(frame)
        case Auth():
            return write_auth(frame.proof)
        case Time():
            return write_time(frame.sent_at)
        case Reset():
            return write_reset()
        case Define():
            return write_define(*frame)
        case Placed():
            return write_placed(*frame)
        case First():
            return write_first(frame.ref)
        case Done():
            return write_done(frame.ref)
        case Echo():
            return write_echo(*frame)
        case Want():
            return write_want()


@given(st.lists(_frames, max_size=12), st.lists(st.integers(0, 600), max_size=8))
def test_what_is_written_is_read_whatever_the_cuts(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(map(write, frames))
    reader, read, at = FrameReader(), list[Frame](), 0
    for cut in [*sorted(cuts), len(data)]:
        read += reader.feed(data[at:cut])
        at = max(at, min(cut, len(data)))
    assert read == frames


@given(st.binary(max_size=300), st.lists(_frames, max_size=3))
def test_garbage_is_refused_or_held_back_but_never_anything_else(garbage: bytes, frames: list[Frame]) -> None:
    reader = FrameReader()
    with contextlib.suppress(FrameError):
        reader.feed(b"".join(map(write, frames)) + garbage)
        for byte in garbage:
            reader.feed(bytes([byte]))


@given(st.lists(_frames, min_size=1, max_size=5), st.data())
def test_a_flipped_byte_is_another_frame_or_an_error(frames: list[Frame], data: st.DataObject) -> None:
    whole = bytearray(b"".join(map(write, frames)))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FrameError):
        for frame in FrameReader().feed(bytes(whole)):
            assert isinstance(frame, tuple)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00",
        b"\x01HTTP" + bytes(26),
        write_hello(Hello(bytes(8), bytes(16), "g")).replace(b"EXSP\x02", b"EXSP\x09"),
        b"\x01EXSP\x02" + bytes(25),
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
    with pytest.raises(FrameError):
        FrameReader().feed(data)


def test_sizes_beyond_the_format_are_cut_to_it() -> None:
    read = FrameReader().feed(write_placed(1, 2, 2**40, 2**33, 1, 9.0))
    assert read == [Placed(1, 2, 2**32 - 1, 2**32 - 1, 1, 9.0)]


def test_a_proof_holds_for_one_side_of_one_connection_under_one_token() -> None:
    a, b = Hello(b"a" * 8, b"1" * 16, "a"), Hello(b"b" * 8, b"2" * 16, "b")
    good = proof(b"secret", "dialed", a, b)
    others = [
        proof(b"secret", "accepted", a, b),
        proof(b"secret", "dialed", b, a),
        proof(b"other", "dialed", a, b),
        proof(b"secret", "dialed", a._replace(nonce=b"3" * 16), b),
        proof(b"secret", "dialed", a, b._replace(name="c")),
    ]
    assert good not in others
    assert good == proof(b"secret", "dialed", a, b)
