"""Client framing: cut anywhere, pipelined, hostile, fuzzed. The short way and the long way must agree on everything."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.dataplane import body, post

from exaserve.config.settings import ClientLimits
from exaserve.domain.errors import ReceivingTooMuch
from exaserve.gateway.http.parse import IDLE, Receiving, Request, RequestReader

LIMITS = ClientLimits(header_bytes_max=2048, header_count_max=20, body_bytes_max=10_000)


def fields(request: Request) -> dict[str, object]:
    return {
        name: getattr(request, name)
        for name in (
            "method",
            "target",
            "body",
            "http11",
            "keep_alive",
            "session",
            "request_id",
            "origin",
            "priority",
            "deadline",
        )
    } | {
        "head": sorted(line.strip() for line in request.head.split(b"\r\n")[1:]),
        "line": request.head.split(b"\r\n")[0],
    }


def read(*pieces: bytes, limits: ClientLimits = LIMITS) -> RequestReader:
    reader = RequestReader(limits)
    for piece in pieces:
        reader.feed(piece)
    return reader


GOOD = {
    "plain": post(),
    "get": b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n",
    "chunked": b"POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: v\r\n\r\n",
    "understood": post(
        body(),
        "/v1/x",
        "X-Session-Id:  s1 ",
        "x-request-id: id-1",
        "Origin: http://o",
        "x-priority: 3",
        "X-ExaServe-Deadline-Ms: 500",
        "Accept: */*",
    ),
    "hop by hop": post(
        body(),
        "/v1/x",
        "Connection: keep-alive, X-Secret, Content-Encoding",
        "X-Secret: 1",
        "Content-Encoding: gzip",
        "Keep-Alive: timeout=5",
        "TE: gzip",
        "Proxy-Connection: keep-alive",
        "X-Stays: 1",
    ),
    "close": post(body(), "/v1/x", "Connection: close"),
    "http/1.0": b"POST /v1/x HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    "empty value": b"GET / HTTP/1.1\r\nX-A:\r\nHost: a\r\n\r\n",
    "leading line ends": b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "upgrade ignored": b"POST /v1/x HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"Upgrade: h2c\r\nHTTP2-Settings: x\r\n"
    b"Content-Length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("name", GOOD)
def test_requests_cut_at_every_byte_are_the_same(name: str) -> None:
    data = GOOD[name]
    whole = read(data)
    assert len(whole.ready) == 1
    assert whole.ready[0].error is None
    for cut in range(1, len(data)):
        halves = read(data[:cut], data[cut:])
        assert len(halves.ready) == 1, cut
        assert fields(halves.ready[0]) == fields(whole.ready[0]), cut
    bytewise = read(*(data[i : i + 1] for i in range(len(data))))
    assert fields(bytewise.ready[0]) == fields(whole.ready[0])


def test_what_is_forwarded() -> None:
    request = read(GOOD["hop by hop"]).ready[0]
    assert request.head == b"POST /v1/x HTTP/1.1\r\nContent-Encoding: gzip\r\nX-Stays: 1"
    understood = read(GOOD["understood"]).ready[0]
    assert (understood.session, understood.request_id, understood.origin) == (b"s1", b"id-1", b"http://o")
    assert (understood.priority, understood.deadline) == (b"3", b"500")
    assert b"Accept: */*" in understood.head
    assert b"x-request-id" not in understood.head, "the gateway adds it itself"
    chunked = read(GOOD["chunked"]).ready[0]
    assert chunked.body == b"hello world"
    assert chunked.head == b"POST /v1/x HTTP/1.1", "neither coding nor trailers are passed on"
    assert read(GOOD["upgrade ignored"]).ready[0].body == b"hello"
    old = read(GOOD["http/1.0"]).ready[0]
    assert (old.http11, old.keep_alive) == (False, False)
    assert read(GOOD["close"]).ready[0].keep_alive is False


def test_pipelined_requests_come_in_order_however_cut() -> None:
    data = b"".join(post(body(n=i)) for i in range(3)) + GOOD["chunked"] + GOOD["get"]
    expected = [r.body for r in read(data).ready]
    assert len(expected) == 5
    for cut in range(1, len(data), 7):
        reader = read(data[:cut], data[cut:])
        assert [r.body for r in reader.ready] == expected
        assert reader.phase == IDLE


HOST = b"Host: a\r\n"
HOSTILE = {
    "both framings": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both, other order": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "two equal lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two zero lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "length list": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc",
    "signed length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
    "hex length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc",
    "huge length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\nabc",
    "endless length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: " + b"9" * 1500 + b"\r\n\r\nabc",
    "empty length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nabc",
    "bare LF": b"GET / HTTP/1.1\nHost: a\n\n",
    "bare LF in headers": b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "bare LF at the end": b"GET / HTTP/1.1\r\nHost: a\r\n\n",
    "obs-fold": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
    "obs-fold tab": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
    "space before colon of length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc",
    "space before first header": b"GET / HTTP/1.1\r\n Host: a\r\n\r\n",
    "unknown coding": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
    "coding list": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "coding twice": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding lookalike": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "coding then identity": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "coding with vertical tab": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "bad chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
    "0x chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "negative chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n",
    "huge chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nabc",
    "space after chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n",
    "LF after chunk size": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "chunk longer than said": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "NUL in value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
    "CR in value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
    "control in value": b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x01b\r\n\r\n",
    "NUL in name": b"GET / HTTP/1.1\r\nHost: a\r\nX\0: ab\r\n\r\n",
    "bad name": b"GET / HTTP/1.1\r\nHost: a\r\nX(): ab\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\nHost: a\r\n: ab\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "two hosts, two spellings": b"GET / HTTP/1.1\r\nHost: a\r\nhOsT: b\r\n\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: a\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes in target": b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "tunnel": b"CONNECT x:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "garbage": b"\x00\x01\x02\x03",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_framing_is_refused(name: str) -> None:
    data = HOSTILE[name]
    for pieces in (
        (data,),
        *((data[:cut], data[cut:]) for cut in range(1, len(data))),
        [data[i : i + 1] for i in range(len(data))],
    ):
        reader = read(*pieces)
        assert reader.failed, pieces
        assert reader.ready[-1].error is not None
        assert reader.ready[-1].error.status == 400
        assert all(request.error is None for request in list(reader.ready)[:-1])
        assert reader.ready[-1].keep_alive is False
        reader.feed(post())
        assert len([r for r in reader.ready if r.error is None]) == 0, "nothing is read after a failure"


def test_a_hostile_request_behind_a_good_one_does_not_spoil_it() -> None:
    reader = read(post() + HOSTILE["both framings"])
    assert [request.error is None for request in reader.ready] == [True, False]


def test_limits() -> None:
    big = read(post(b"x" * 10_001))
    assert big.ready[-1].error is not None
    assert big.ready[-1].error.status == 413
    announced = read(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
    assert announced.ready[-1].error is not None
    assert announced.ready[-1].error.status == 413, "refused before any of the body came"
    chunked = read(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"400\r\n" + b"x" * 1024 + b"\r\n"] * 11
    )
    assert chunked.ready[-1].error is not None
    assert chunked.ready[-1].error.status == 413
    for data in (
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3000 + b"\r\n\r\n",
        b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 21 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: " + b"x" * 3000 + b"\r\n\r\n",
    ):
        for pieces in ((data,), [data[i : i + 100] for i in range(0, len(data), 100)]):
            reader = read(*pieces)
            assert reader.ready[-1].error is not None
            assert reader.ready[-1].error.status == 431


def test_endless_heads_and_frames_are_bounded() -> None:
    reader = read(b"GET / HTTP/1.1\r\nHost: a\r\nX: ")
    for _ in range(100):
        reader.feed(b"x" * 1000)
    assert reader.failed
    assert reader.ready[-1].error is not None
    assert reader.ready[-1].error.status == 431
    frames = read(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;")
    for _ in range(300):
        frames.feed(b"x" * 10_000)
    assert frames.failed
    trailers = read(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    for index in range(30_000):
        trailers.feed(b"X%d: %s\r\n" % (index, b"y" * 100))
    assert trailers.failed


def test_a_large_body_before_a_partial_head_is_not_a_large_head() -> None:
    reader = read(post(b"x" * 9000) + b"GET / HTTP/1.1\r\nHo", b"st: a\r\n\r\n")
    assert [request.error for request in reader.ready] == [None, None]


def test_continue_is_wanted_only_before_the_body() -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    reader = read(head)
    assert reader.waits_continue
    reader.continued()
    assert not reader.waits_continue
    reader.feed(b"abc")
    assert reader.ready[0].body == b"abc"
    assert b"xpect" not in reader.ready[0].head
    assert not read(head + b"a").waits_continue
    assert not read(post()).waits_continue


CORPUS = [*GOOD.values(), *HOSTILE.values()]


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_wait_or_answer(pieces: list[bytes]) -> None:
    check(pieces)


@given(
    st.sampled_from(CORPUS),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=3),
    st.integers(1, 40),
)
@example(GOOD["plain"], [(0, b"\r\n")], 40)
def test_damaged_requests_wait_or_answer(data: bytes, damage: list[tuple[int, bytes]], step: int) -> None:
    for at, new in damage:
        data = data[:at] + new + data[at + 1 :]
    check([data[i : i + step] for i in range(0, len(data), step)])
    # one piece and many pieces must tell the same story, or a request could be read in two ways
    one, many = read(data), read(*(data[i : i + step] for i in range(0, len(data), step)))
    assert [(r.error is None, r.method, r.target, r.body) for r in one.ready if r.error is None] == [
        (r.error is None, r.method, r.target, r.body) for r in many.ready if r.error is None
    ]
    assert one.failed == many.failed


def check(pieces: list[bytes]) -> None:
    reader = read(*pieces)
    errors = [request for request in reader.ready if request.error is not None]
    assert len(errors) <= 1
    assert reader.failed or not errors
    if errors:
        assert reader.ready[-1] is errors[0]


def test_bodies_being_received_are_bounded_over_all_connections() -> None:
    limits = ClientLimits(receiving_bytes_max=1000)
    shared = Receiving(limits.receiving_bytes_max)
    head = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 700\r\n\r\n"
    readers = [RequestReader(limits, receiving=shared) for _ in range(3)]
    for reader, size in zip(readers, (450, 250), strict=False):
        reader.feed(head)
        reader.feed(b"x" * size)
    assert shared.held_bytes == 700
    readers[2].feed(head)
    readers[2].feed(b"x" * 350)
    (refused,) = readers[2].ready
    assert isinstance(refused.error, ReceivingTooMuch)
    assert refused.error.retry_after_s == 1
    assert shared.held_bytes == 700
    readers[0].feed(b"x" * 50)
    readers[0].feed(b"x" * 200)  # whole: no longer being received
    assert [len(request.body) for request in readers[0].ready] == [700]
    assert shared.held_bytes == 250
    readers[1].close()  # the client has gone
    assert shared.held_bytes == 0


def test_a_client_that_takes_http2_for_granted_is_told() -> None:
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    for pieces in ((preface,), (preface[:24], preface[24:])):
        (request,) = read(*pieces).ready
        assert request.error is not None
        assert "HTTP/2 is not spoken here" in request.error.message
        assert request.error.status == 400
