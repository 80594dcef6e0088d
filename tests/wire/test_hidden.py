"""Secrets on a link: readable by its two sides, and by nobody else."""

from __future__ import annotations

from exaserve.wire import WireLink

SECRET = bytes(range(32))


def linked(token: bytes | None, nonce: int = 1) -> tuple[WireLink, WireLink]:
    one = WireLink("dialer", "one", bytes([nonce]) * 16, token)
    two = WireLink("listener", "two", bytes([nonce + 1]) * 16, token)
    for _ in range(2):
        list(two.receive(one.to_send()))
        list(one.receive(two.to_send()))
    assert one.established
    assert two.established
    return one, two


def test_the_other_side_reads_what_nobody_else_can():
    one, two = linked(b"t" * 16)
    told = one.hidden("name", SECRET)
    assert told != SECRET
    assert two.hidden("name", told) == SECRET
    assert two.hidden("other", told) != SECRET


def test_no_pad_is_used_twice():
    one, _ = linked(b"t" * 16)
    again, _ = linked(b"t" * 16, nonce=7)
    pads = {one.hidden(name, bytes(32)) for name in "abc"} | {again.hidden(name, bytes(32)) for name in "abc"}
    assert len(pads) == 6


def test_without_a_token_there_is_nothing_to_hide_under():
    one, _ = linked(None)
    assert one.hidden("name", SECRET) == SECRET
