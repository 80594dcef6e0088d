"""Both protocol classes byte by byte, over mock transports: cut anywhere, and every way to fail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.dataplane import (
    COMPILED,
    EVENTS,
    MODEL,
    STREAM,
    STREAM_HEAD,
    Bench,
    MockTransport,
    body,
    chunk,
    get,
    plain,
    post,
    read_answers,
)

from exaserve.domain.request import Outcome, Usage
from exaserve.health import FailureKind
from exaserve.scheduling import AdmissionConfig, Placement


def connecting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    if COMPILED:
        pytest.skip("replaces a method of a compiled class")
    asked: list[tuple[str, Any]] = []
    monkeypatch.setattr(bench.core.pool, "connect", lambda endpoint, waiter: asked.append((endpoint.replica, waiter)))
    return asked


def ask(bench: Bench, data: bytes | None = None) -> MockTransport:
    client = bench.client()
    client.protocol.data_received(post(body(stream=True)) if data is None else data)
    return client


SSE_BODY = b"".join(EVENTS)
ANSWERS = {
    "counted": (plain(b'{"x":1}'), b'{"x":1}'),
    "empty": (plain(b""), b""),
    "event stream": (STREAM, SSE_BODY),
    "chunks": (
        b"HTTP/1.1 200 OK\r\nContent-Type: audio/wav\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunk(b"abc")
        + chunk(b"d\n\n")
        + b"0\r\n\r\n",
        b"abcd\n\n",
    ),
    "trailers": (STREAM_HEAD + chunk(EVENTS[0]) + b"0\r\nX-T: 1\r\n\r\n", EVENTS[0]),
    "several events a chunk": (STREAM_HEAD + chunk(SSE_BODY) + b"0\r\n\r\n", SSE_BODY),
    "an event over chunks": (STREAM_HEAD + chunk(EVENTS[0][:9]) + chunk(EVENTS[0][9:]) + b"0\r\n\r\n", EVENTS[0]),
    "CRLF events": (
        STREAM_HEAD + chunk(b"data: a\r\n\r\n") + chunk(b"data: b\r\n\r\n") + b"0\r\n\r\n",
        b"data: a\r\n\r\ndata: b\r\n\r\n",
    ),
    "interim first": (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + plain(b"{}"),
        b"{}",
    ),
    "reason": (plain(b"{}", "200 Fine By Me"), b"{}"),
    "HTTP/1.0 counted": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_cut_at_every_byte_arrive_whole(name: str) -> None:
    data, content = ANSWERS[name]
    for cut in range(len(data)):
        bench = Bench(1)
        client = ask(bench)
        for piece in filter(None, (data[:cut], data[cut:])):
            bench.answer(piece)
        (answer,) = read_answers(client.take())
        assert (answer.status, answer.body, answer.whole) == (200, content, True), cut
        assert answer.headers["x-exaserve-replica"] == "r0"
        assert not client.closed
        bench.settled()
    bench = Bench(1)
    client = ask(bench)
    for i in range(len(data)):
        bench.answer(data[i : i + 1])
    (answer,) = read_answers(client.take())
    assert (answer.body, answer.whole) == (content, True)
    bench.settled()


@pytest.mark.parametrize("name", ANSWERS)
def test_http10_clients_get_no_chunks(name: str) -> None:
    data, content = ANSWERS[name]
    for cut in range(0, len(data), 3):
        bench = Bench(1)
        client = ask(
            bench, b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body()), body())
        )
        for piece in filter(None, (data[:cut], data[cut:])):
            bench.answer(piece)
        (answer,) = read_answers(client.take())
        assert answer.body == content
        assert "transfer-encoding" not in answer.headers
        assert answer.headers["connection"] == "close"
        assert client.closed
        bench.settled()


def test_an_answer_up_to_the_end_of_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    bench = Bench(1)
    client = ask(bench)
    bench.answer(head + b"abc")
    bench.answer(b"def")
    bench.busy().lose()
    (answer,) = read_answers(client.take())
    assert (answer.body, answer.whole) == (b"abcdef", True)
    assert answer.headers["transfer-encoding"] == "chunked"
    bench.settled()


def test_one_receive_is_one_send_and_bytes_are_untouched() -> None:
    bench = Bench(1)
    client = ask(bench)
    bench.answer(STREAM_HEAD)
    assert client.writes == 0, "the head waits for the first event"
    for index, data in enumerate(map(chunk, EVENTS)):
        bench.answer(data)
        assert client.writes == index + 1
    assert client.take().endswith(b"".join(map(chunk, EVENTS)))
    bench.answer(b"0\r\n\r\n")
    assert client.take() == b"0\r\n\r\n"
    assert bench.core.pool.idle() == 1
    bench.settled()


def test_hop_by_hop_headers_are_dropped_both_ways() -> None:
    bench = Bench(1)
    client = ask(
        bench, post(None, "/v1/completions", "Connection: keep-alive, X-Hop", "X-Hop: 1", "Keep-Alive: 5", "X-End: 2")
    )
    sent = bench.busy().take()
    assert b"X-Hop" not in sent
    assert b"eep-" not in sent
    assert b"X-End: 2" in sent
    assert sent.count(b"Host:") == 1
    assert b"Host: 127.0.0.1:9000" in sent
    bench.answer(
        plain(
            b"{}",
            "200 OK",
            "Connection: keep-alive",
            "Keep-Alive: timeout=5",
            "X-End: 3",
            "Access-Control-Allow-Origin: *",
            "X-Request-Id: theirs",
            "Proxy-Authenticate: x",
        )
    )
    (answer,) = read_answers(client.take())
    assert answer.headers["x-end"] == "3"
    assert not {"keep-alive", "connection", "proxy-authenticate", "access-control-allow-origin"} & set(answer.headers)
    assert answer.headers["x-request-id"] != "theirs"


def test_request_id_is_kept_and_passed_on() -> None:
    bench = Bench(1)
    client = ask(bench, post(None, "/v1/completions", "X-Request-Id: mine"))
    assert b"x-request-id: mine\r\n" in bench.busy().take()
    bench.answer(plain())
    assert read_answers(client.take())[0].headers["x-request-id"] == "mine"


def test_bodies_go_on_untouched_whatever_is_in_them() -> None:
    for data in (
        b'{"model":"tiny","messages":"\\ud800"}',
        '{"messages":[{"content":"ä日本"}],"model":"tiny"}'.encode(),
        b' {"a":{"model":"other"},"model" : "tiny","x":NaN}\n',
        b'{"model":"wrong","model":"tiny"}',
    ):
        bench = Bench(1)
        client = ask(bench, post(data))
        assert bench.busy().take().endswith(b"\r\n\r\n" + data)
        bench.answer(plain())
        assert read_answers(client.take())[0].status == 200
        bench.settled()


def test_head_requests_and_bodyless_statuses() -> None:
    bench = Bench(1)
    client = ask(bench, get("/v1/responses/resp_1", method="HEAD"))
    bench.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    (answer,) = read_answers(client.take(), bodyless=True)
    assert answer.headers["content-length"] == "10"
    bench.settled()
    bench.open("r0")
    client.protocol.data_received(post())
    bench.answer(b"HTTP/1.1 204 No Content\r\n\r\n")
    (answer,) = read_answers(client.take())
    assert (answer.status, answer.body) == (204, b"")
    assert bench.core.pool.idle() == 1
    bench.settled()


def test_pipelined_requests_are_answered_in_order() -> None:
    bench = Bench(1)
    client = ask(bench, post(body(n=1)) + get("/health") + post(b"[]") + post(body(n=2)))
    assert client.take() == b""
    bench.answer(plain(b'{"first":1}'))
    answers = read_answers(client.take())
    assert [a.status for a in answers] == [200, 200, 400]
    assert answers[0].body == b'{"first":1}'
    bench.answer(plain(b'{"second":1}'))
    assert read_answers(client.take())[0].body == b'{"second":1}'
    bench.settled()


def test_many_pipelined_requests_pause_reading_and_do_not_recurse() -> None:
    bench = Bench(1, limits={"pipeline_max": 4})
    client = ask(bench)
    client.protocol.data_received(get("/health") * 5000)
    assert not client.reading
    bench.answer(STREAM)
    assert client.reading
    assert len(read_answers(client.take())) == 5001


def test_expect_continue_is_answered_in_turn() -> None:
    head = post(None, "/v1/completions", "Expect: 100-continue")[: -len(body())]
    bench = Bench(1)
    client = bench.client()
    client.protocol.data_received(head)
    assert client.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.protocol.data_received(body())
    bench.answer(plain())
    assert read_answers(client.take())[0].status == 200
    client = ask(bench)
    client.protocol.data_received(head)
    assert client.take() == b"", "the answer before comes first"
    bench.answer(plain())
    assert client.take().endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    client.protocol.data_received(body())
    bench.answer(plain())
    bench.settled()


# ---- failures -------------------------------------------------------------------------------------------------------
GARBAGE = {
    "no http": b"garbage\r\n\r\n",
    "bare LF": b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "both framings": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    "coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    "protocol switch": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "header split by NUL": b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "bad chunk at once": STREAM_HEAD + b"zz\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_invalid_answers_are_retried_elsewhere(name: str) -> None:
    data = GARBAGE[name]
    for pieces in ((data,), [data[i : i + 50] for i in range(0, len(data), 50)]):
        bench = Bench(2)
        client = ask(bench)
        first = bench.busy()
        for piece in pieces:
            if first.closed:
                break
            first.protocol.data_received(piece)
        assert first.aborted, name
        assert client.take() == b""
        assert bench.health.bad[0][1] is FailureKind.INVALID
        assert bench.busy() is not first
        bench.answer(plain(b"{}"))
        (answer,) = read_answers(client.take())
        assert (answer.status, answer.body) == (200, b"{}")
        bench.settled()


@pytest.mark.parametrize("cut", ["nothing", "part of the head", "the head of a stream", "half an event"])
def test_replica_lost_before_the_first_byte_is_retried(cut: str) -> None:
    bench = Bench(2)
    client = ask(bench)
    first = bench.busy()
    data = {
        "nothing": b"",
        "part of the head": STREAM_HEAD[:20],
        "the head of a stream": STREAM_HEAD,
        "half an event": STREAM_HEAD + chunk(EVENTS[0])[:15],
    }[cut]
    bench.clock.now += 5  # too late for a connection that was dead already
    if data:
        first.protocol.data_received(data)
    first.lose()
    assert bench.health.bad == [(first.protocol.endpoint.replica, FailureKind.RESET)]
    bench.answer(STREAM)
    (answer,) = read_answers(client.take())
    assert (answer.body, answer.whole) == (SSE_BODY, True)
    bench.settled()


def test_a_dead_idle_connection_is_replaced_at_the_same_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(2)
    asked = connecting(bench, monkeypatch)
    client = ask(bench)
    first = bench.busy()
    name = first.protocol.endpoint.replica
    first.lose()
    assert [replica for replica, _ in asked] == [name]
    assert bench.health.bad == [], "it says nothing about the replica"
    fresh = bench.open(*asked[0])
    fresh.protocol.data_received(plain())
    assert read_answers(client.take())[0].headers["x-exaserve-replica"] == name
    bench.settled()


def test_a_fresh_connection_that_dies_counts_and_moves_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(2)
    asked = connecting(bench, monkeypatch)
    client = ask(bench)
    bench.busy().lose()
    bench.open(*asked[0]).lose()
    assert [kind for _, kind in bench.health.bad] == [FailureKind.RESET]
    bench.answer(plain())
    assert read_answers(client.take())[0].status == 200
    bench.settled()


def test_a_connection_that_is_closed_before_it_can_be_used_moves_the_request_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(2, idle=0)
    asked = connecting(bench, monkeypatch)
    client = ask(bench)
    ((replica, waiter),) = asked
    pool = bench.core.pool
    upstream = pool.protocol(pool.endpoint(replica, f"http://127.0.0.1:{9000 + int(replica[1:])}"))
    MockTransport(upstream).lose()
    pool.adopt(upstream, waiter)
    assert bench.health.bad == [(replica, FailureKind.CONNECT)]
    assert len(pool) == 0
    bench.plane.tick(bench.clock.now + 1)
    bench.open(*asked[1]).protocol.data_received(plain())
    assert read_answers(client.take())[0].status == 200
    bench.settled()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("extra", [b"", b"5\r\nda", chunk(EVENTS[1])[:20], chunk(EVENTS[1])[:-3]])
def test_a_stream_that_breaks_ends_with_one_error_event(path: str, extra: bytes) -> None:
    bench = Bench(2)
    client = ask(bench, post(body(stream=True), path))
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]) + extra)
    bench.busy().lose(ConnectionResetError("reset"))
    (answer,) = read_answers(client.take())
    assert answer.whole, "the stream ends properly"
    assert b"[DONE]" not in answer.body
    assert answer.body.startswith(EVENTS[0])
    events = answer.body[len(EVENTS[0]) :].split(b"\n\n")
    assert events.pop() == b""
    (last,) = events
    value = json.loads(last.rpartition(b"data: ")[2])
    assert value["error"]["message"]
    assert last.startswith(b"event: error\n") == (path != "/v1/chat/completions")
    if path == "/v1/messages":
        assert value["type"] == "error"
    assert not client.closed
    bench.settled()
    client.protocol.data_received(post())
    bench.answer(plain())
    assert read_answers(client.take())[0].status == 200, "the connection goes on"


def test_a_stream_that_ends_without_its_mark_is_a_failure_once_the_mark_is_known() -> None:
    bench = Bench(4)
    client = ask(bench, post(body(stream=True)))
    unmarked = STREAM_HEAD + chunk(EVENTS[0]) + b"0\r\n\r\n"
    bench.answer(unmarked)
    assert read_answers(client.take())[0].body == EVENTS[0], "engines that mark no end are believed"
    client.protocol.data_received(post(body(stream=True)))
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]) + chunk(b"data: [DONE]\n\n"))
    bench.answer(b"0\r\n\r\n")
    assert read_answers(client.take())[0].body.endswith(b"[DONE]\n\n")
    client.protocol.data_received(post(body(stream=True)))
    bench.answer(unmarked)
    (cut,) = read_answers(client.take())
    assert cut.whole
    assert cut.body.startswith(EVENTS[0])
    assert b"before the answer was whole" in cut.body
    assert b"[DONE]" not in cut.body
    client.protocol.data_received(post(body(stream=True)))
    bench.answer(STREAM_HEAD + b"0\r\n\r\n")  # nothing at all: another replica is asked
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    (retried,) = read_answers(client.take())
    assert retried.body == EVENTS[0] + b"data: [DONE]\n\n"
    bench.settled()


def test_a_half_sent_body_closes_the_client_connection() -> None:
    bench = Bench(2)
    client = ask(bench)
    bench.answer(plain(b"x" * 100)[:-50])
    bench.busy().lose()
    (answer,) = read_answers(client.take())
    assert not answer.whole
    assert client.closed
    bench.settled()


def test_bad_chunks_in_mid_stream_are_a_failure() -> None:
    bench = Bench(2)
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    bench.answer(b"zz\r\nnonsense")
    (answer,) = read_answers(client.take())
    assert answer.whole
    assert b"error" in answer.body
    assert bench.health.bad[-1][1] is FailureKind.INVALID
    bench.settled()


def test_an_event_too_long_to_hold_is_passed_on() -> None:
    bench = Bench(1)
    client = ask(bench)
    long = b"data: " + b"x" * 200_000 + b"\n\n"
    data = STREAM_HEAD + chunk(EVENTS[0]) + chunk(long) + b"0\r\n\r\n"
    for start in range(0, len(data), 10_000):
        bench.answer(data[start : start + 10_000])
    (answer,) = read_answers(client.take())
    assert answer.body == EVENTS[0] + long
    bench.settled()


@pytest.mark.parametrize(
    "status", ["502 Bad Gateway", "503 Service Unavailable", "504 Gateway Timeout", "429 Too Many Requests"]
)
def test_statuses_that_another_replica_may_not_have(status: str) -> None:
    bench = Bench(2)
    client = ask(bench)
    bench.answer(plain(b'{"error":1}', status))
    assert client.take() == b""
    bench.answer(plain(b"{}"))
    assert read_answers(client.take())[0].status == 200
    assert bool(bench.health.bad) == (status[0] == "5")
    bench.settled()
    # where nobody else can take it, the replica's own answer is passed on
    bench2 = Bench(1)
    client = ask(bench2)
    bench2.answer(plain(b'{"error":1}', status))
    (answer,) = read_answers(client.take())
    assert (answer.status, answer.body) == (int(status[:3]), b'{"error":1}')
    bench2.settled()


def test_an_engines_500_is_tried_elsewhere_once() -> None:
    bench = Bench(3)
    client = ask(bench)
    bench.answer(plain(b'{"error":1}', "500 Internal"))
    bench.answer(plain(b'{"error":2}', "500 Internal"))
    (answer,) = read_answers(client.take())
    assert (answer.status, answer.body) == (500, b'{"error":2}')
    assert len(bench.health.bad) == 2
    bench.settled()


@pytest.mark.parametrize(("status", "bad"), [("400 Bad Request", 0), ("404 Not Found", 0), ("422 X", 0)])
def test_statuses_that_are_passed_on(status: str, bad: int) -> None:
    bench = Bench(2)
    client = ask(bench)
    bench.answer(plain(b'{"error":1}', status))
    (answer,) = read_answers(client.take())
    assert answer.status == int(status[:3])
    assert len(bench.health.bad) == bad
    bench.settled()


def test_attempts_are_bounded() -> None:
    bench = Bench(5, retry={"attempts_max": 3})
    client = ask(bench)
    for _ in range(3):
        bench.clock.now += 5
        bench.busy().lose()
    (answer,) = read_answers(client.take())
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "replica_connection_lost"
    assert len(bench.health.bad) == 3
    bench.settled()


def test_the_retry_budget_bounds_retries() -> None:
    bench = Bench(2, idle=20, retry={"budget_ratio": 0.0, "budget_min_per_s": 0.1, "budget_window_s": 10.0})
    statuses = []
    for _ in range(3):
        client = ask(bench)
        bench.clock.now += 1.5
        bench.busy().lose()
        busy = [t for t in bench.upstreams if t.protocol.relay is not None]
        if busy:
            bench.answer(plain())
        statuses.append(read_answers(client.take())[0].status)
    assert statuses == [200, 502, 502], "one retry in ten seconds"
    bench.settled()


def test_every_replica_tried_backs_off_and_tries_again() -> None:
    bench = Bench(1, idle=3)
    client = ask(bench)
    bench.clock.now += 5
    bench.busy().lose()
    assert client.take() == b""
    assert not [t for t in bench.upstreams if t.protocol.relay is not None], "it waits first"
    bench.clock.now += 0.3
    bench.plane.tick(bench.clock.now)
    bench.answer(plain())
    assert read_answers(client.take())[0].status == 200
    bench.settled()


# ---- admission ------------------------------------------------------------------------------------------------------
def test_waits_while_no_replica_is_ready_then_goes_on() -> None:
    bench = Bench(1)
    bench.scheduler.set_health("r0", False, "starting")  # type: ignore[arg-type]
    client = ask(bench)
    assert len(bench.admission) == 1
    bench.scheduler.set_health("r0", True, "ready")  # type: ignore[arg-type]
    bench.plane.wake()
    bench.answer(plain())
    assert read_answers(client.take())[0].status == 200
    bench.settled()


def test_queue_deadline_and_bounds() -> None:
    bench = Bench(1, admission=AdmissionConfig(queue_max=1, wait_max_s=5.0))
    bench.scheduler.set_health("r0", False, "starting")  # type: ignore[arg-type]
    first, second = ask(bench), ask(bench)
    (answer,) = read_answers(second.take())
    assert answer.status == 429
    assert int(answer.headers["retry-after"]) >= 1
    bench.clock.now += 6
    bench.plane.tick(bench.clock.now)
    (answer,) = read_answers(first.take())
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["code"] == "no_replica_ready"
    assert "retry-after" in answer.headers
    bench.settled()


def test_a_released_place_goes_to_the_next_in_the_queue() -> None:
    bench = Bench(1, idle=2, scheduler={"queue_depth_max": 1})
    first, second = ask(bench), ask(bench)
    assert len(bench.admission) == 1
    bench.answer(plain())
    assert read_answers(first.take())[0].status == 200
    bench.answer(plain())
    assert read_answers(second.take())[0].status == 200
    bench.settled()


def test_unknown_model_lists_what_is_served() -> None:
    bench = Bench(1)
    client = ask(bench, post(b'{"model":"nobody\\ud800"}'))
    (answer,) = read_answers(client.take())
    assert answer.status == 404
    assert "tiny" in json.loads(answer.body)["error"]["message"]
    bench.settled()


# ---- clients that leave ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", ["queued", "connecting", "waiting", "head", "streaming", "backing off"])
def test_a_client_that_leaves_releases_everything(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1, idle=0 if phase == "connecting" else 1)
    asked = connecting(bench, monkeypatch)
    if phase == "queued":
        bench.scheduler.set_health("r0", False, "down")  # type: ignore[arg-type]
    client = ask(bench)
    if phase == "head":
        bench.answer(STREAM_HEAD)
    elif phase == "streaming":
        bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    elif phase == "backing off":
        bench.clock.now += 5
        bench.busy().lose()
    client.lose()
    bench.settled()
    assert all(t.aborted for t in bench.upstreams if t.take() and phase != "backing off")
    if phase == "connecting":
        bench.open(*asked[0])
        bench.settled()
    bench.plane.tick(bench.clock.now + 10_000)
    bench.settled()


@pytest.mark.skipif(COMPILED, reason="replaces a method of a compiled class")
def test_outcomes_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(1, idle=3)
    done: list[Outcome] = []
    release = bench.scheduler.release

    def recorded(placement: Placement, now: float, outcome: Outcome, usage: Usage | None = None) -> None:
        done.append(outcome)
        release(placement, now, outcome, usage)

    monkeypatch.setattr(bench.scheduler, "release", recorded)
    ask(bench)
    bench.answer(STREAM)
    ask(bench)
    bench.answer(plain(b"{}", "400 Bad"))
    ask(bench).lose()
    bench.open("r0")
    ask(bench)
    bench.answer(plain(b"{}", "500 Bad"))
    assert done == [Outcome.COMPLETED, Outcome.REJECTED, Outcome.CLIENT_GONE, Outcome.REPLICA_ERROR]
    bench.settled()
    assert 'exaserve_prompt_tokens_total{model="tiny"} 7' in bench.metrics.render().decode(), "usage of the stream"


# ---- time -----------------------------------------------------------------------------------------------------------
def later(bench: Bench, seconds: float) -> None:
    bench.clock.now += seconds
    bench.plane.tick(bench.clock.now)


def test_first_byte_deadline_moves_on_then_gives_up() -> None:
    bench = Bench(2, timeouts={"first_byte_s": 3.0}, retry={"attempts_max": 2})
    client = ask(bench)
    first = bench.busy()
    later(bench, 3.1)
    assert first.aborted
    assert bench.health.bad == [(first.protocol.endpoint.replica, FailureKind.TIMEOUT)]
    later(bench, 3.1)
    (answer,) = read_answers(client.take())
    assert answer.status == 504
    bench.settled()


def test_silence_in_a_stream_ends_it() -> None:
    bench = Bench(1, timeouts={"between_bytes_s": 2.0})
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    for _ in range(5):
        later(bench, 1.5)
        bench.answer(chunk(EVENTS[1]))
    assert not bench.health.bad
    later(bench, 0.1)
    later(bench, 2.1)
    (answer,) = read_answers(client.take())
    assert answer.whole
    assert b"error" in answer.body
    bench.settled()


def test_total_deadline_and_the_clients_own() -> None:
    bench = Bench(1, idle=2, timeouts={"total_s": 10.0})
    client = ask(bench, post(body(), "/v1/completions", "x-exaserve-deadline-ms: 1500"))
    later(bench, 1.6)
    assert read_answers(client.take())[0].status == 504
    assert bench.health.bad == [], "a client's deadline says nothing of the replica"
    bench.settled()
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    for _ in range(10):
        bench.answer(chunk(EVENTS[1])) if bench.core.dispatcher.open else None
        later(bench, 1.1)
    assert b"error" in read_answers(client.take())[0].body
    bench.settled()


def test_slow_senders_and_idle_clients() -> None:
    bench = Bench(1)
    slow_head, slow_body, idle = bench.client(), bench.client(), bench.client()
    slow_head.protocol.data_received(b"POST /v1/completions HTTP/1.1\r\nHo")
    slow_body.protocol.data_received(post()[:-3])
    idle.protocol.data_received(get("/health"))
    later(bench, 11)
    assert read_answers(slow_head.take())[0].status == 408
    assert slow_head.closed or slow_head.eof
    assert slow_body.take() == b""
    later(bench, 20)
    assert read_answers(slow_body.take())[0].status == 408
    assert not idle.closed
    later(bench, 60)
    assert idle.closed
    bench.settled()


def test_a_body_that_trickles_is_given_up_and_a_slow_one_is_not() -> None:
    bench = Bench(1)
    trickle, slow = bench.client(), bench.client()
    data = body(pad="x" * 150_000)
    head = post(data)[: -len(data)]
    trickle.protocol.data_received(head)
    slow.protocol.data_received(head)
    for second in range(0, 70, 2):
        if not trickle.closed:
            trickle.protocol.data_received(data[second : second + 1])
        slow.protocol.data_received(data[second * 1100 : (second + 2) * 1100])
        later(bench, 2)
    (answer,) = read_answers(trickle.take())
    assert answer.status == 408
    assert slow.take() == b""
    bench.open("r0")
    slow.protocol.data_received(data[70 * 1100 :])
    bench.answer(plain())
    assert read_answers(slow.take())[0].status == 200
    bench.settled()


def test_errors_that_close_let_the_client_read_them() -> None:
    bench = Bench(1, limits={"body_bytes_max": 1000})
    client = ask(bench, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n")
    (answer,) = read_answers(client.take())
    assert answer.status == 413
    assert answer.headers["connection"] == "close"
    assert client.eof
    assert not client.closed, "it takes and drops what still comes"
    client.protocol.data_received(b"x" * 10_000)
    later(bench, 3)
    assert client.aborted


def test_a_client_that_does_not_read_pauses_its_replica_and_is_dropped_in_the_end() -> None:
    bench = Bench(1, timeouts={"client_write_s": 5.0, "between_bytes_s": 2.0})
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    upstream = bench.busy()
    client.buffered = 300_000
    client.protocol.pause_writing()
    assert not upstream.reading
    later(bench, 3)
    client.buffered = 200_000
    later(bench, 3)
    assert not client.aborted, "it reads, slowly; and the replica is not to blame for its own silence"
    client.protocol.resume_writing()
    assert upstream.reading
    client.protocol.pause_writing()
    later(bench, 0.1)
    later(bench, 5.1)
    assert client.aborted
    client.lose()
    bench.settled()
    assert not bench.health.bad


def test_a_paused_connection_is_resumed_before_it_is_reused() -> None:
    bench = Bench(1)
    client = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    upstream = bench.busy()
    client.protocol.pause_writing()
    upstream.protocol.data_received(b"0\r\n\r\n")
    assert upstream.reading
    client.protocol.data_received(get("/health"))
    assert b"HTTP/1.1 200 OK\r\nContent-Type: application/json" not in client.take(), "nothing more until it reads"
    client.protocol.resume_writing()
    assert read_answers(client.take())[0].status == 200
    bench.settled()


def test_stopping() -> None:
    bench = Bench(1)
    client, idle = ask(bench), bench.client()
    idle.protocol.data_received(get("/ready"))
    assert read_answers(idle.take())[0].status == 200
    bench.core.stop()
    idle.protocol.data_received(get("/ready"))
    assert read_answers(idle.take())[0].status == 503
    assert idle.closed
    bench.answer(STREAM)
    (answer,) = read_answers(client.take())
    assert answer.headers["connection"] == "close"
    assert (answer.whole, client.closed) == (True, True)
    bench.settled()


def test_the_end_of_a_drain_is_told_to_streams_and_to_those_who_wait() -> None:
    bench = Bench(2, idle=2)
    streaming = ask(bench)
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    waiting = bench.client()
    waiting.protocol.data_received(post())
    bench.core.stop()
    bench.core.dispatcher.stop(bench.clock.now)
    (stream,) = read_answers(streaming.take())
    assert stream.whole, "its framing is in order"
    assert b'"code": "shutting_down"' in stream.body.rstrip().rpartition(b"\n")[2]
    assert b"[DONE]" not in stream.body
    (refused,) = read_answers(waiting.take())
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    bench.settled()


def test_a_client_that_closes_after_the_end_mark_has_been_served() -> None:
    bench = Bench(1, idle=2)
    client = ask(bench)
    bench.answer(STREAM_HEAD + b"".join(map(chunk, EVENTS)))  # the framing's end has not come yet
    client.lose()
    bench.settled()
    text = bench.metrics.render().decode()
    assert 'outcome="completed"' in text
    assert 'outcome="client_gone"' not in text
    assert 'exaserve_completion_tokens_total{model="tiny"} 2' in text


def test_evacuation_moves_what_has_not_been_answered() -> None:
    bench = Bench(2, idle=3)
    waiting, streaming = ask(bench), bench.client()
    stuck = bench.busy()
    replica = stuck.protocol.endpoint.replica
    assert bench.plane.evacuate(replica) == 1
    assert stuck.aborted
    assert bench.busy().protocol.endpoint.replica != replica
    bench.answer(STREAM_HEAD + chunk(EVENTS[0]))
    assert bench.plane.evacuate(bench.busy().protocol.endpoint.replica) == 0, "it has begun"
    bench.answer(b"0\r\n\r\n")
    assert read_answers(waiting.take())[0].whole
    streaming.lose()
    bench.settled()


# ---- own pages ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/health"), 200),
        (get("/ready"), 200),
        (get("/metrics"), 200),
        (get("/v1/models"), 200),
        (get("/v1/models/tiny"), 200),
        (get("/v1/models/no%2Fone"), 404),
        (get("/nothing"), 404),
        (get("/"), 404),
        (post(path="/health"), 405),
        (get("/v1/chat/completions"), 405),
        (get("/v1/completions", method="PUT"), 405),
        (post(path="/v1/load_lora_adapter"), 404),
        (post(path="/v1/unload_lora_adapter/"), 404),
        (post(path="/v1/%6coad_lora_adapter"), 404),
        (post(path="/v1/x/../sleep"), 404),
        (post(path="/sleep"), 404),
        (post(path="//v1/completions"), 404),
        (post(b"nonsense"), 400),
        (post(b"[]"), 400),
        (post(b""), 400),
        (post(b'{"model":1}'), 400),
        (post(b'{"model":""}'), 400),
        (post(b'{"a":' + b"[" * 100_000), 400),
        (post(b'{"model":' + b"[" * 50_000 + b"]" * 50_000 + b"}"), 400),
        (get("/v1/x", method="OPTIONS"), 204),
        (get("*", method="OPTIONS"), 204),
    ],
)
def test_own_answers(request_: bytes, status: int) -> None:
    bench = Bench(1)
    client = ask(bench, request_)
    (answer,) = read_answers(client.take())
    assert answer.status == status
    assert answer.whole
    if status >= 400:
        assert {"message", "type", "param", "code"} == set(json.loads(answer.body)["error"])
        assert answer.headers["x-request-id"]
    if status == 405:
        assert answer.headers["allow"]
    assert not client.closed
    bench.settled()


def test_a_refusal_names_the_method_that_the_path_takes_and_the_clients_own_id() -> None:
    asked = get("/v1/chat/completions", method="PUT").replace(b"\r\n\r\n", b"\r\nx-request-id: mine\r\n\r\n")
    (answer,) = read_answers(ask(Bench(1), asked).take())
    assert answer.status == 405
    assert answer.headers["allow"] == "POST, OPTIONS"
    assert answer.headers["x-request-id"] == "mine"


def test_head_of_own_pages() -> None:
    client = ask(Bench(1), get("/health", method="HEAD") + get("/health"))
    first, rest = client.take().split(b"\r\n\r\n", 1)
    assert b"Content-Length: 16" in first
    assert read_answers(rest)[0].body == b'{"status": "ok"}'


def test_errors_on_the_anthropic_path_have_its_form() -> None:
    bench = Bench(1)
    client = ask(bench, post(b'{"model":"x"}', "/v1/messages"))
    value = json.loads(read_answers(client.take())[0].body)
    assert value == {"type": "error", "error": {"type": "not_found_error", "message": value["error"]["message"]}}


def test_cors() -> None:
    bench = Bench(1)
    client = ask(
        bench,
        get(
            "/v1/chat/completions",
            "Origin: http://web",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization,content-type",
            method="OPTIONS",
        ),
    )
    (answer,) = read_answers(client.take())
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    client.protocol.data_received(post(None, "/v1/completions", "Origin: http://web"))
    bench.answer(plain(b"{}", "200 OK", "access-control-allow-origin: *"))
    assert read_answers(client.take())[0].headers["access-control-allow-origin"] == "*"
    strict = Bench(1, cors=("http://web",))
    client = ask(strict, get("/v1/models", "Origin: http://web") + get("/v1/models", "Origin: http://evil"))
    good, evil = read_answers(client.take())
    assert good.headers["access-control-allow-origin"] == "http://web"
    assert "access-control-allow-origin" not in evil.headers


def test_models_are_listed_with_a_replica_down() -> None:
    bench = Bench(1)
    bench.scheduler.set_health("r0", False, "down")  # type: ignore[arg-type]
    client = ask(bench, get("/v1/models") + get("/ready"))
    models, ready = read_answers(client.take())
    assert [m["id"] for m in json.loads(models.body)["data"]] == ["tiny"]
    assert ready.status == 503


# ---- fuzz -----------------------------------------------------------------------------------------------------------
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from([post(), post()[:50], post()[50:], get("/health"), b"\r\n", b"0\r\n\r\n"]),
        ),
        max_size=8,
    )
)
def test_no_client_bytes_break_the_connection_object(pieces: list[bytes]) -> None:
    bench = Bench(1, idle=8)
    bench.plane.clients._open.clear()
    client = bench.client()
    for piece in pieces:
        if client.closed:
            break
        client.protocol.data_received(piece)
        for transport in bench.upstreams:
            if transport.protocol.relay is not None:
                transport.protocol.data_received(plain())
    client.lose()
    bench.settled()


@given(
    st.sampled_from([STREAM, plain(), *(data for data, _ in ANSWERS.values()), *GARBAGE.values()]),
    st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=3)), max_size=2),
    st.integers(1, 80),
    st.booleans(),
)
def test_no_replica_bytes_break_the_relay(data: bytes, damage: list[tuple[int, bytes]], step: int, reset: bool) -> None:
    for at, new in damage:
        data = data[:at] + new + data[at + 1 :]
    bench = Bench(1, retry={"attempts_max": 1})
    client = ask(bench)
    transport = bench.busy()
    bench.clock.now += 5
    for start in range(0, len(data[:4000]), step):
        if transport.closed:
            break
        transport.protocol.data_received(data[start : start + step])
    if not transport.closed:
        transport.lose(ConnectionResetError() if reset else None)
    got = client.take()
    assert got, "answered, cut off, or an error"
    bench.settled()


# ---- stored responses, records --------------------------------------------------------------------------------------
def answer_from(bench: Bench, data: bytes) -> str:
    replica: str = bench.busy().protocol.endpoint.replica
    bench.answer(data)
    return replica


@pytest.mark.parametrize("stream", [False, True])
def test_a_stored_response_is_asked_of_the_replica_that_keeps_it(stream: bool) -> None:
    bench = Bench(5, idle=2)
    client = bench.client()
    created = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
    done = b'event: response.completed\ndata: {"type":"response.completed","response":{"id":"resp_1"}}\n\n'
    answers = {False: plain(b'{"id":"resp_1"}'), True: STREAM_HEAD + chunk(created) + chunk(done) + b"0\r\n\r\n"}
    client.protocol.data_received(
        post(json.dumps({"model": MODEL, "input": "x", "stream": stream}).encode(), "/v1/responses")
    )
    keeper = answer_from(bench, answers[stream])
    goes_on = json.dumps({"model": MODEL, "input": "y", "previous_response_id": "resp_1"}).encode()
    for request in (
        get("/v1/responses/resp_1"),
        post(goes_on, "/v1/responses"),
        get("/v1/responses/resp_1?stream=true"),
        post(b"", "/v1/responses/resp_1/cancel"),
        get("/v1/responses/resp_1", method="DELETE"),
    ):
        client.protocol.data_received(request)
        assert answer_from(bench, plain()) == keeper
    others = set()
    for _ in range(6):
        client.protocol.data_received(get("/v1/responses/resp_unknown"))
        others.add(answer_from(bench, plain(b"{}", "404 Not Found")))
    assert len(others) > 1
    bench.settled()


def test_a_request_is_one_record_where_that_is_wanted() -> None:
    bench = Bench(2)
    lines: list[str] = []
    bench.core.access = lines.append
    client = ask(bench, post(body(stream=True), "/v1/chat/completions", "x-request-id: mine"))
    bench.answer(plain(b"{}", "503 Service Unavailable"))
    bench.answer(STREAM)
    client.protocol.data_received(get("/v1/models"))
    (line,) = lines
    record = json.loads(line)
    assert record["request_id"] == "mine"
    assert (record["route"], record["model"], record["replica"]) == ("/v1/chat/completions", MODEL, "r1")
    assert (record["status"], record["outcome"], record["attempts"]) == (200, "completed", 2)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (7, 2)
    bench.settled()
