"""Both sides of a connection, without I/O: handshake, proof, and every way to break them."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaserve.wire import FrameKind, WireError, WireLink
from exaserve.wire.link import FRAME_BYTES_MAX

TOKEN = b"a shared secret!"


def pair(agent_token: bytes | None = TOKEN, gateway_token: bytes | None = TOKEN) -> tuple[WireLink, WireLink]:
    return WireLink("agent", "node1", b"a" * 16, agent_token), WireLink("gateway", "gw", b"g" * 16, gateway_token)


def shake(agent: WireLink, gateway: WireLink) -> None:
    for _ in range(3):
        assert list(gateway.receive(agent.to_send())) == []
        assert list(agent.receive(gateway.to_send())) == []


@pytest.mark.parametrize("token", [TOKEN, None])
def test_both_sides_are_established_and_frames_flow_both_ways(token) -> None:
    agent, gateway = pair(token, token)
    shake(agent, gateway)
    assert agent.established and gateway.established
    assert gateway.peer is not None and gateway.peer.name == "node1"
    data = agent.frame(FrameKind.BATCH, b"one") + agent.frame(FrameKind.BYE, b"")
    assert list(gateway.receive(data)) == [(FrameKind.BATCH, b"one"), (FrameKind.BYE, b"")]
    assert list(agent.receive(gateway.frame(FrameKind.HEARD, b"x"))) == [(FrameKind.HEARD, b"x")]


def test_two_gateways_meet_as_dialer_and_listener() -> None:
    dialer = WireLink("dialer", "one", b"a" * 16, TOKEN, b"instance")
    listener = WireLink("listener", "two", b"b" * 16, TOKEN)
    shake(dialer, listener)
    assert listener.peer is not None and (listener.peer.name, listener.peer.instance) == ("one", b"instance")
    data = bytearray(dialer.frame(FrameKind.EVENTS, b"a placement"))
    assert list(listener.receive(bytes(data))) == [(FrameKind.EVENTS, b"a placement")]
    data = bytearray(dialer.frame(FrameKind.EVENTS, b"a placement"))
    data[7] ^= 1
    with pytest.raises(WireError, match="altered"):
        list(listener.receive(bytes(data)))


@pytest.mark.parametrize(
    ("one", "other"),
    [("agent", "listener"), ("agent", "dialer"), ("agent", "agent"), ("dialer", "gateway"), ("dialer", "dialer")],
)
def test_who_comes_to_the_wrong_port_is_refused_and_told(one, other) -> None:
    first, second = WireLink(one, "x", b"a" * 16, TOKEN), WireLink(other, "y", b"b" * 16, TOKEN)
    with pytest.raises(WireError, match=f"the other side is a {one}; here speaks a {other}"):
        list(second.receive(first.to_send()))


def test_another_version_is_named_also_where_its_hello_has_fewer_words() -> None:
    _, gateway = pair()
    old = msgspec.msgpack.encode([2, "agent", "node1", b"a" * 16, True])
    with pytest.raises(WireError, match="the other side speaks version 2 of the protocol, this one 4"):
        list(gateway.receive(len(old).to_bytes(4, "little") + bytes([FrameKind.HELLO]) + old))


@given(cuts=st.lists(st.integers(1, 40), max_size=40))
def test_bytes_may_be_cut_anywhere(cuts) -> None:
    agent, gateway = pair()
    shake(agent, gateway)
    data = b"".join(agent.frame(FrameKind.BATCH, bytes([n]) * n) for n in range(1, 20))
    got = []
    while data:
        size = cuts.pop() if cuts else len(data)
        got += list(gateway.receive(data[:size]))
        data = data[size:]
    assert [payload for _, payload in got] == [bytes([n]) * n for n in range(1, 20)]


def test_another_token_is_refused_by_both() -> None:
    agent, gateway = pair(TOKEN, b"another secret!!")
    list(gateway.receive(agent.to_send()))
    with pytest.raises(WireError, match="another token"):
        list(agent.receive(gateway.to_send()))
    with pytest.raises(WireError, match="another token"):
        list(gateway.receive(agent.to_send()))
    assert not agent.established and not gateway.established


@pytest.mark.parametrize("tokens", [(TOKEN, None), (None, TOKEN)])
def test_a_token_on_one_side_only_is_refused(tokens) -> None:
    agent, gateway = pair(*tokens)
    with pytest.raises(WireError, match="only one side"):
        list(gateway.receive(agent.to_send()))


def test_a_proof_sent_back_proves_nothing() -> None:
    """A stranger without the token mirrors what the gateway says."""
    _, gateway = pair()
    mirror = WireLink("agent", "node1", b"m" * 16, TOKEN)
    list(gateway.receive(mirror.to_send()))
    said = gateway.to_send()
    hello_length = 5 + int.from_bytes(said[:4], "little")
    proof = said[hello_length:]
    assert proof[4] == FrameKind.PROOF
    with pytest.raises(WireError, match="another token"):
        list(gateway.receive(proof))


def established() -> tuple[WireLink, WireLink]:
    agent, gateway = pair()
    shake(agent, gateway)
    return agent, gateway


def test_an_altered_frame_ends_the_connection() -> None:
    agent, gateway = established()
    data = bytearray(agent.frame(FrameKind.BATCH, b"figures"))
    data[6] ^= 1
    with pytest.raises(WireError, match="altered"):
        list(gateway.receive(bytes(data)))


def test_a_repeated_or_dropped_frame_ends_the_connection() -> None:
    agent, gateway = established()
    data = agent.frame(FrameKind.BATCH, b"figures")
    list(gateway.receive(data))
    with pytest.raises(WireError, match="out of order"):
        list(gateway.receive(data))
    agent, gateway = established()
    agent.frame(FrameKind.BATCH, b"lost")
    with pytest.raises(WireError, match="out of order"):
        list(gateway.receive(agent.frame(FrameKind.BATCH, b"next")))


def test_frames_of_another_connection_mean_nothing() -> None:
    agent, _ = established()
    other = WireLink("agent", "node1", b"b" * 16, TOKEN)
    gateway = WireLink("gateway", "gw", b"h" * 16, TOKEN)
    shake(other, gateway)
    with pytest.raises(WireError, match="altered"):
        list(gateway.receive(agent.frame(FrameKind.VERB, b"stop")))


def test_strangers_cannot_make_us_hold_memory() -> None:
    _, gateway = pair()
    with pytest.raises(WireError, match="above the limit"):
        list(gateway.receive((100_000).to_bytes(4, "little") + b"\x01"))
    _, gateway = established()
    with pytest.raises(WireError, match="above the limit"):
        list(gateway.receive((FRAME_BYTES_MAX + 1).to_bytes(4, "little") + b"\x05"))


@given(junk=st.binary(min_size=1, max_size=300))
def test_junk_never_establishes_and_never_crashes(junk) -> None:
    _, gateway = pair()
    with contextlib.suppress(WireError):
        assert list(gateway.receive(junk)) == []
    assert not gateway.established


def test_the_reason_of_a_refusal_reaches_the_other_side() -> None:
    agent, gateway = pair()
    with pytest.raises(WireError, match="refused by the other side: go away"):
        list(agent.receive(gateway.refusal("go away")))
