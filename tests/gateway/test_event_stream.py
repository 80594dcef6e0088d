"""Streams of odd engines: events across chunks, errors instead of a first event, ends that are not quite ends."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.dataplane import (
    EVENTS,
    STREAM_HEAD,
    Bench,
    MockTransport,
    body,
    chunk,
    plain,
    post,
    read_answers,
    read_chunks,
)

from exaserve.gateway.http.client import ClientConnection
from exaserve.gateway.http.event_stream import EventHolder, first_error
from exaserve.gateway.http.upstream import UpstreamConnection
from exaserve.health import FailureKind

END = b"0\r\n\r\n"
DONE = chunk(b"data: [DONE]\n\n")


def ask(bench: Bench, data: bytes | None = None) -> MockTransport:
    client = bench.client()
    client.protocol.data_received(post(body(stream=True)) if data is None else data)
    return client


def got(client: MockTransport) -> bytes:
    """Payload that the client has by now."""
    return read_chunks(bytes(client.written).partition(b"\r\n\r\n")[2])[0]


def known_to_mark(bench: Bench) -> MockTransport:
    """A client, after a stream whose end was marked, as engines' streams are known to be from then on."""
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]) + DONE + END)
    client.take()
    client.protocol.data_received(post(body(stream=True)))
    return client


# ---- events go out at once ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("blank", ["\n\n", "\r\n\r\n", "\r\r"])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_an_event_goes_out_when_it_is_whole_wherever_chunks_end(blank: str, before: int) -> None:
    """Chunks end ``before`` bytes of the blank line: the next one begins with the rest of it."""
    bench = Bench(1)
    client = ask(bench)
    events = [f"data: {n}{blank}".encode() for n in range(6)]
    whole = b"".join(events)
    bench.answer(STREAM_HEAD)
    start = 0
    for n in range(6):
        end = len(b"".join(events[: n + 1])) - min(before, len(blank))
        bench.answer(chunk(whole[start:end]))
        start = end
        sent = got(client)
        assert whole.startswith(sent)
        assert len(sent) >= len(b"".join(events[:n])), "all events that are whole"
    if start < len(whole):
        bench.answer(chunk(whole[start:]))
    bench.answer(END)
    (answer,) = read_answers(client.take())
    assert (answer.body, answer.whole) == (whole, True)
    bench.settled()


@given(
    st.lists(st.sampled_from(["data: a", "data: bb\ndata: c", ": note", "event: e\ndata: x"]), max_size=8), st.data()
)
def test_cut_anywhere_all_whole_events_are_given_out(texts: list[str], data: st.DataObject) -> None:
    blank = data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"]))
    payload = b"".join(text.encode().replace(b"\n", blank[: len(blank) // 2]) + blank for text in texts)
    raw, at = b"", 0
    while at < len(payload):
        size = data.draw(st.integers(1, len(payload) - at))
        raw += chunk(payload[at : at + size])
        at += size
    holder = EventHolder()
    out, at = b"", 0
    while at < len(raw):
        size = data.draw(st.integers(1, len(raw) - at))
        out += holder.feed(raw[at : at + size])
        at += size
        assert payload.startswith(read_chunks(out)[0])
    # A line end behind the last event may still be on its way: CR and CRLF begin alike.
    assert read_chunks(out)[0].rstrip(b"\r\n") == payload.rstrip(b"\r\n")
    assert read_chunks(out + holder.end(END)) == (payload, b"", True)


def test_a_stream_is_passed_on_as_it_comes_again_once_chunks_and_events_agree() -> None:
    bench = Bench(1)
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(b"data: a\n"))
    bench.answer(chunk(b"\ndata: b\n\n"))
    client.take()
    bench.answer(b"00000D;x=y\r\ndata: hello\n\n\r\n")
    assert client.take() == b"00000D;x=y\r\ndata: hello\n\n\r\n"
    bench.answer(END)
    assert client.take() == END
    bench.settled()


# ---- an error instead of an answer ----------------------------------------------------------------------------------
ERRORS = {
    "vLLM": b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}\n\n',
    "SGLang": b'data: {"error":{"object":"error","message":"CUDA error","type":"InternalServerError","code":500}}\n\n',
    "old vLLM": b'data: {"object":"error","message":"dead","type":"internal_error","code":500}\n\n',
    "Anthropic": b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"dead"}}\n\n',
    "text": b'data: {"error":"out of memory"}\n\n',
    "no code": b'data: {"error":{"message":"dead"}}\n\n',
    "busy": b'data: {"error":{"message":"busy","code":429}}\n\n',
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("cut", [0, 5, 30, None])
def test_a_stream_that_begins_with_an_error_is_tried_elsewhere(name: str, cut: int | None) -> None:
    bench = Bench(2)
    client = ask(bench)
    error = ERRORS[name]
    first = bench.busy()
    if cut is None:
        bench.answer(STREAM_HEAD + chunk(error) + DONE + END)
    else:
        bench.answer(STREAM_HEAD + (chunk(error[:cut]) if cut else b""))
        bench.answer(chunk(error[cut:]))
    assert first.aborted
    assert client.take() == b"", "nothing has reached the client"
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]) + DONE + END)
    (answer,) = read_answers(client.take())
    assert answer.body == EVENTS[0] + b"data: [DONE]\n\n"
    assert answer.headers["x-exaserve-replica"] == "r1"
    assert bench.health.bad == [("r0", FailureKind.INVALID)]
    bench.settled()


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"too long","type":"BadRequestError","code":400}}\n\n',
        b'data: {"error":{"message":"too long","type":"invalid_request_error"}}\n\n',
        b'data: {"choices":[],"error":null}\n\n',
        b'data: {"choices":[{"delta":{"content":"an \\"error\\" it is"}}]}\n\n',
        b'data: "error"\n\n',
        b"data: error\n\n",
        b": error\n\n",
    ],
)
def test_what_is_no_error_of_the_engine_is_passed_on(event: bytes) -> None:
    assert first_error(chunk(event)) is None
    bench = Bench(2)
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(event) + DONE + END)
    (answer,) = read_answers(client.take())
    assert answer.body == event + b"data: [DONE]\n\n"
    assert bench.health.bad == []
    bench.settled()


def test_an_error_in_mid_stream_is_passed_on() -> None:
    bench = Bench(2)
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    bench.answer(chunk(ERRORS["vLLM"]) + END)
    assert read_answers(client.take())[0].body == EVENTS[0] + ERRORS["vLLM"]
    bench.settled()


def test_where_every_replica_begins_with_an_error_the_client_is_told_what_it_was() -> None:
    bench = Bench(1, retry={"attempts_max": 1})
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(ERRORS["vLLM"]) + END)
    (answer,) = read_answers(client.take())
    assert answer.status == 502
    assert "EngineCore died" in json.loads(answer.body)["error"]["message"]
    bench.settled()


# ---- ends -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("after", [b"", chunk(b": bye\n\n"), chunk(b": bye\n\n") * 3])
@pytest.mark.parametrize("end", ["last chunk", "FIN", "reset", "nonsense"])
def test_a_stream_is_whole_once_its_end_mark_has_gone_out(after: bytes, end: str) -> None:
    bench = Bench(2)
    client = known_to_mark(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    bench.answer(DONE)
    busy = bench.busy()
    if after:
        bench.answer(after)
    if end == "last chunk":
        bench.answer(END)
    elif end == "nonsense":
        bench.answer(b"zz\r\n")
    else:
        busy.lose(ConnectionResetError() if end == "reset" else None)
    (answer,) = read_answers(client.take())
    assert answer.whole
    assert answer.body.startswith(EVENTS[0] + b"data: [DONE]\n\n")
    assert b"error" not in answer.body
    assert bench.health.bad == []
    assert not client.closed
    bench.settled()


def test_an_error_of_null_is_no_end() -> None:
    bench = Bench(2)
    client = known_to_mark(bench)
    bench.answer(STREAM_HEAD + chunk(b'data: {"choices":[{"delta":{"content":"a"}}],"error":null}\n\n'))
    bench.answer(END)
    assert b"before the answer was whole" in read_answers(client.take())[0].body
    assert bench.health.bad[-1][1] is FailureKind.INVALID
    bench.settled()


# ---- encoded bodies -------------------------------------------------------------------------------------------------
def test_an_encoded_stream_is_bytes() -> None:
    bench = Bench(2)
    client = known_to_mark(bench)
    packed = gzip.compress(b"".join(EVENTS))
    head = STREAM_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"
    bench.answer(head)
    for at in range(0, len(packed), 10):
        bench.answer(chunk(packed[at : at + 10]))
        assert got(client) == packed[: at + 10], "at once"
    bench.answer(END)
    (answer,) = read_answers(client.take())
    assert answer.whole
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.body) == b"".join(EVENTS)
    assert bench.health.bad == []
    bench.settled()


# ---- heads and what lies behind answers -----------------------------------------------------------------------------
@pytest.mark.parametrize("more", [b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"\r\n\r\nx"])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_what_lies_behind_a_whole_answer_costs_only_the_connection(more: bytes, chunked: bool, split: bool) -> None:
    bench = Bench(2)
    client = ask(bench)
    answered = bench.busy()
    head, content = (STREAM_HEAD, chunk(EVENTS[0]) + DONE + END) if chunked else (plain()[:-11], plain()[-11:])
    for piece in (head, content + more) if split else (head + content + more,):
        bench.answer(piece)
    (answer,) = read_answers(client.take())
    assert (answer.status, answer.whole) == (200, True)
    assert answer.body == (EVENTS[0] + b"data: [DONE]\n\n" if chunked else b'{"ok":true}')
    assert answered.aborted, "who knows what comes next on it"
    assert bench.health.bad == []
    bench.settled()


@pytest.mark.parametrize("name", ["Location", "content-location", "Refresh", "Link", "LOCATION"])
@pytest.mark.parametrize(
    "framing", ["content-length: 2\r\n\r\n{}", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
def test_no_header_names_an_inner_address(name: str, framing: str) -> None:
    for value, passed in {
        "http://127.0.0.1:9000/v1/x?a=b": "/v1/x?a=b",
        "HTTP://127.0.0.1:9000/v1/x": "/v1/x",
        "//127.0.0.1:9000/v1/x": "/v1/x",
        "/v1//x": "/v1//x",
        "5; url=http://127.0.0.1:9000/y": "5; url=/y",
        "</a>; rel=next": "</a>; rel=next",
        "<http://127.0.0.1:9000/a>; rel=next": "</a>; rel=next",
        "http://10.1.2.3:8000/v1/x": None,
        "//engine-3/v1/x": None,
    }.items():
        bench = Bench(1)
        client = ask(bench)
        bench.answer(f"HTTP/1.1 200 OK\r\n{name}: {value}\r\nServer: uvicorn\r\n{framing}".encode())
        (answer,) = read_answers(client.take())
        assert answer.headers.get(name.lower()) == passed
        assert answer.headers["server"] == "uvicorn"
        assert answer.body == b"{}"
        bench.settled()


def test_a_header_that_the_engines_connection_header_names_is_not_passed_on() -> None:
    bench = Bench(1)
    client = ask(bench)
    bench.answer(plain(b"{}", "200 OK", "X-Hop: 1", "Connection: keep-alive, x-hop, content-type", "X-Stays: 2"))
    (answer,) = read_answers(client.take())
    assert "x-hop" not in answer.headers
    assert "connection" not in answer.headers
    assert (answer.headers["x-stays"], answer.headers["content-type"]) == ("2", "application/json")
    bench.settled()


@pytest.mark.parametrize("protocol", [ClientConnection, UpstreamConnection])
def test_a_connection_has_every_method_that_a_transport_calls(protocol: type) -> None:
    """They do not derive from ``asyncio.Protocol`` (compiled classes cannot), so nothing else fills a gap."""
    for name in dir(asyncio.Protocol):
        if not name.startswith("_"):
            assert callable(getattr(protocol, name, None)), name
