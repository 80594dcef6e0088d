"""What counts as an answer, where it ends, and which of its tokens were reasoning."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.bench.stub import DONE, END, FINISH, HEAD, ROLE, event, serving, token, usage

from exaserve.bench import BodyRenderer, Ending, LoadClient, LoadConfig, LoadResult, Record, summarise
from exaserve.bench.events import EventReader, is_answer
from exaserve.workload import Arrivals, Mix, OutputLengths, Scenario, make_plan

CLOSING = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
MIX = Mix(((Scenario("A", 40, OutputLengths("fixed", 5.0)), 1.0),))


def plain(body: bytes, head: bytes = b"HTTP/1.1 200 OK\r\ncontent-type: application/json") -> bytes:
    return head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def line(payload: str) -> bytes:
    return f"data: {payload}\n\n".encode()


def delta(**fields: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": fields}]}, separators=(",", ":"))


async def load(pieces: list[bytes], *, close: bool = True, stream: bool = True, pause_s: float = 0.0) -> LoadResult:
    async def answer(_body: bytes, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if close:
            writer.close()

    async with serving(answer) as stub:
        plan = make_plan(MIX, Arrivals(100.0, 0.05, "constant"), 1)
        return await LoadClient(LoadConfig(urls=(stub.url,), renderer=BodyRenderer("m", stream=stream)), plan).run()


async def only(pieces: list[bytes], *, close: bool = True, stream: bool = True, pause_s: float = 0.0) -> Record:
    result = await load(pieces, close=close, stream=stream, pause_s=pause_s)
    assert len({(r.error, r.verdict) for r in result.records}) == 1
    return result.records[0]


HTML = b"<!doctype html><html><body>Welcome to nginx</body></html>"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", "status"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "no_answer"),
        (plain(b""), "no_answer"),
        (plain(b'{"error":{"message":"no such model"}}'), "no_answer"),
        (plain(b'{"object":"error","message":"no such model"}'), "no_answer"),
        (plain(b'{"choices":[]}'), "no_answer"),
        (plain(b'{"text":"hello"}'), "no_answer"),
        (plain(HTML, b"HTTP/1.1 200 OK\r\ncontent-type: text/html"), "no_answer"),
        (HEAD + END, "no_answer"),
        (HEAD + ROLE + FINISH + DONE + END, "no_answer"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_no_answer_has_failed(answer, error, stream):
    result = await load([answer], close=False, stream=stream)
    assert {(r.error, r.verdict) for r in result.records} == {(error, Ending.FAILED)}
    summary = summarise(result.records, duration_s=0.05, window_s=0.05)
    assert (summary.all.ok, summary.all.ttft.count, summary.requests_per_s) == (0, 0, 0.0)


def test_answers_of_all_kinds_are_answers():
    for body in (
        {"choices": [{"message": {"content": "hi"}}]},
        {"choices": [{"text": "hi"}], "error": None},
        {"choices": [{"message": {"content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]},
        {"choices": [{"message": {"content": "", "reasoning_content": "hm"}}]},
        {"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 1}},
        {"output": [{"content": [{"type": "output_text", "text": "hi"}]}]},
    ):
        assert is_answer(json.dumps(body).encode()), body
    assert not is_answer(b"[1]")
    assert not is_answer(b'{"choices": [{"message"')


async def test_a_stream_without_text_but_with_tokens_is_an_answer():
    record = await only([HEAD + ROLE + FINISH + usage(1) + DONE + END], close=False)
    assert (record.verdict, record.tokens, record.ttft_s) == (Ending.OK, 1, None)


async def test_a_stream_that_ends_with_its_connection_is_complete():
    tokens = [line(delta(content="x")), line(delta(content="y"))]
    record = await only([CLOSING, *tokens, b"data: [DONE]\n\n"])
    assert (record.verdict, record.error, record.done, record.tokens) == (Ending.OK, "", True, 2)
    assert record.last_s is not None
    record = await only([CLOSING, *tokens])
    assert (record.verdict, record.error) == (Ending.CUT, "no_done")
    record = await only([HEAD, token("x"), DONE])
    assert record.error == "lost", "chunks have an end of their own"


async def test_a_plain_answer_that_ends_with_its_connection_is_complete():
    body = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"completion_tokens":2}}'
    record = await only([b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", body[:20], body[20:]], stream=False)
    assert (record.verdict, record.tokens) == (Ending.OK, 2)
    record = await only([b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", body[:20]], stream=False)
    assert record.error == "no_answer"


async def test_an_answer_in_one_piece_has_no_time_per_token():
    record = await only([HEAD + token("x") * 1 + token("y") + usage(32) + DONE + END], close=False)
    assert (record.tokens, record.token_gap_s) == (32, None)
    stats = summarise([record], duration_s=1.0, window_s=1.0).all
    assert stats.token_gap.count == 0
    record = await only([HEAD + token("x"), token("y") + usage(3) + DONE + END], close=False, pause_s=0.02)
    assert record.token_gap_s is not None
    assert record.token_gap_s > 0.0


async def test_reasoning_is_told_apart():
    thought = event(delta(reasoning_content="hm"))
    pieces = [HEAD + ROLE + thought, thought, thought + token("so"), token("!") + FINISH + usage(5) + DONE + END]
    record = await only(pieces, close=False, pause_s=0.02)
    assert record.verdict is Ending.OK
    assert (record.reasoning_tokens, record.tokens) == (3, 5)
    assert record.first_token_s is not None
    assert record.first_answer_s is not None
    assert record.first_token_s < record.first_answer_s
    stats = summarise([record], duration_s=1.0, window_s=1.0).all
    assert (stats.reasoned, stats.reasoning_tokens, stats.ttfa.count) == (1, 3, 1)
    assert stats.ttfa.p50 == record.ttfa_s


def test_reasoning_tokens_by_the_servers_count_and_without_an_answer():
    reader = EventReader()
    assert reader.feed(line(delta(reasoning="hm")))
    assert not reader.has_answer
    reader.feed(b'data: {"usage":{"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":7}}}\n\n')
    assert reader.usage().reasoning == 7
    assert not reader.has_answer


def test_a_tool_call_begins_with_its_name():
    call = delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "get_weather", "arguments": ""}}])
    reader = EventReader()
    assert not reader.feed(line(delta(role="assistant", content=None)))
    assert reader.feed(line(call))
    assert reader.has_answer
    reader.feed(line(delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])))
    assert reader.token_events == 2
