"""What goes over the wire, byte by byte where clients depend on it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from exaserve.emulator.server import Emulator

Start = Callable[..., Awaitable[Emulator]]

Body = Callable[..., dict[str, object]]


async def raw(url: str, path: str, body: dict[str, object], headers: str = "") -> bytes:
    """A response exactly as it comes over the connection, without the date."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\nconnection: close\r\n{headers}\r\n"
    writer.write(head.encode() + data)
    answer = await reader.read()
    writer.close()
    return re.sub(rb"date: [^\r]*\r\n", b"", re.sub(rb'"created":\d+', b'"created":1', answer))


def chunk(payload: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload.encode())


async def test_golden_chat_stream(start: Start, chat: Body) -> None:
    emulator = await start(seed=1)
    body = chat(max_tokens=3, stream=True, stream_options={"include_usage": True}, ignore_eos=True)
    got = await raw(emulator.urls[0], "/v1/chat/completions", body, "x-request-id: abc\r\n")
    head, _, stream = got.partition(b"\r\n\r\n")
    assert head == (
        b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\nconnection: close"
    )
    start_of = 'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1,"model":"tiny","choices":['
    words = re.findall(rb'"content":"( [a-z]{3})"', stream)
    assert len(words) == 3
    first, second, last = (word.decode() for word in words)
    # The length of a chunk counts the ten digits of the time that stands as 1 here.
    want = [
        start_of + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        '"prompt_token_ids":null}\n\n',
        start_of
        + '{"index":0,"delta":{"content":"'
        + first
        + '"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
        "\n\n",
        start_of + '{"index":0,"delta":{"content":"' + second + '"},"logprobs":null,"finish_reason":null,'
        '"token_ids":null}]}\n\n',
        start_of + '{"index":0,"delta":{"content":"' + last + '"},"logprobs":null,"finish_reason":"length",'
        '"stop_reason":null,"token_ids":null}]}\n\n' + start_of + '],"usage":{"prompt_tokens":10,"total_tokens":13,'
        '"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n',
    ]
    lengths = [len(part) + 9 * part.count('"created":1') for part in want]
    framed = b"".join(b"%x\r\n%b\r\n" % (n, part.encode()) for n, part in zip(lengths, want, strict=True))
    assert stream == framed + b"0\r\n\r\n"


async def test_golden_completion_stream(start: Start) -> None:
    emulator = await start(seed=1)
    body: dict[str, object] = {"model": "tiny", "prompt": "hi", "max_tokens": 2, "stream": True, "ignore_eos": True}
    got = await raw(emulator.urls[0], "/v1/completions", body, "x-request-id: abc\r\n")
    events = re.findall(rb"data: (.*)\n\n", got)
    assert events[-1] == b"[DONE]"
    assert re.fullmatch(
        rb'\{"id":"cmpl-abc","object":"text_completion","created":1,"model":"tiny","choices":\[\{"index":0,'
        rb'"text":" ...","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
        rb'"token_ids":null\}\],"usage":null\}',
        events[0],
    )
    assert b'"finish_reason":"length","stop_reason":null' in events[1]
    assert len(events) == 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_counts_are_exact_everywhere(start: Start, path: str, stream: bool) -> None:
    emulator = await start()
    body: dict[str, Any] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "count"}], "max_completion_tokens": 7},
        "/v1/completions": {"prompt": "count", "max_tokens": 7},
        "/v1/responses": {"input": "count", "max_output_tokens": 7},
        "/v1/messages": {"messages": [{"role": "user", "content": "count"}], "max_tokens": 7},
    }[path]
    body |= {"model": "tiny", "stream": stream, "ignore_eos": True}
    if stream and "completions" in path:
        body["stream_options"] = {"include_usage": True}
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        text = (await client.post(path, json=body)).text
    said = "".join(re.findall(r'"(?:content|text|delta)":"((?: [a-z]{3})+)"', text))
    assert len(said) >= 28
    tokens = re.findall(r'"(?:completion_tokens|output_tokens)":(\d+)', text)
    assert tokens[-1] == "7"
    assert emulator.replicas[0].engine.generation_tokens_total == 7


async def test_the_same_request_has_the_same_answer_under_a_seed(start: Start, chat: Body) -> None:
    async def say(process_seed: int, **more: object) -> str:
        emulator = await start(seed=process_seed, replicas=2)
        async with httpx.AsyncClient() as client:
            texts = {
                (await client.post(url + "/v1/chat/completions", json=chat(**more))).json()["choices"][0]["message"][
                    "content"
                ]
                for url in emulator.urls
            }
        assert len(texts) == 1
        return str(texts.pop())

    assert await say(1) == await say(1)
    assert await say(1) != await say(2)
    assert await say(1) != await say(1, seed=5)


async def test_streamed_and_whole_answers_agree(start: Start, chat: Body) -> None:
    emulator = await start()
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        for more in (
            {},
            {"stop": ["the"]},
            {"stop": " s", "include_stop_str_in_output": True},
            {"n": 3, "max_tokens": 9},
        ):
            whole = (await client.post("/v1/chat/completions", json=chat(**more))).json()
            stream = (await client.post("/v1/chat/completions", json=chat(**more, stream=True))).text
            events = [json.loads(e) for e in re.findall(r"data: (\{.*\})\n", stream)]
            for choice in whole["choices"]:
                mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == choice["index"]]
                assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
                assert [c["finish_reason"] for c in mine if c["finish_reason"]] == [choice["finish_reason"]]


async def test_a_stop_string_ends_the_answer_where_it_stands(start: Start, chat: Body) -> None:
    emulator = await start()
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:

        async def ask(**more: object) -> dict[str, Any]:
            answer: dict[str, Any] = (
                await client.post("/v1/chat/completions", json=chat(max_tokens=50, **more))
            ).json()
            return answer

        plain = (await ask(ignore_eos=True))["choices"][0]["message"]["content"]
        stop = plain[21:26]
        cut = await ask(ignore_eos=True, stop=[stop, "never"])
        choice = cut["choices"][0]
        assert choice["message"]["content"] == plain[: plain.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert cut["usage"]["completion_tokens"] == -(-(plain.index(stop) + 5) // 4)
        later = await ask(ignore_eos=True, stop=stop, min_tokens=45)
        assert later["usage"]["completion_tokens"] >= 45


async def test_eos_min_tokens_and_ignore_eos(start: Start, chat: Body) -> None:
    emulator = await start(output_tokens_mean=20.0)
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:

        async def ask(**more: object) -> tuple[int, str]:
            answer = (await client.post("/v1/chat/completions", json=chat(**more))).json()
            return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

        natural, why = await ask()
        assert (1 <= natural <= 120, why) == (True, "stop")
        assert await ask(max_tokens=natural) == (natural, "stop")
        assert await ask(max_tokens=200, ignore_eos=True) == (200, "length")
        assert await ask(max_tokens=200, min_tokens=150) == (150, "stop")


async def test_a_conversation_hits_the_prefix_cache(start: Start) -> None:
    emulator = await start()
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        messages = [{"role": "system", "content": "be brief " * 40}, {"role": "user", "content": "hello there " * 30}]
        first = (await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 64})).json()
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        messages += [first["choices"][0]["message"], {"role": "user", "content": "and then?"}]
        second = (await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})).json()
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        # The prompt and the answer were both computed but for the answer's last token and an unfilled block.
        total = first["usage"]["total_tokens"]
        assert total - 17 <= cached <= total
        for salt, hits in (("a", False), ("b", False), ("a", True)):
            asked = {"messages": messages, "max_tokens": 4, "cache_salt": salt}
            third = (await client.post("/v1/chat/completions", json=asked)).json()
            assert bool(third["usage"]["prompt_tokens_details"]["cached_tokens"]) is hits


async def test_completions_take_every_form_of_prompt(start: Start) -> None:
    emulator = await start()
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        ids = (await client.post("/tokenize", json={"prompt": "some words here"})).json()["tokens"]
        texts = []
        for prompt in ("some words here", ids, ["some words here"], [ids, ids]):
            answer = (await client.post("/v1/completions", json={"prompt": prompt, "echo": True})).json()
            texts += [choice["text"] for choice in answer["choices"]]
            assert answer["usage"]["prompt_tokens"] == 4 * (2 if prompt == [ids, ids] else 1)
        assert len(texts) == 5
        assert len(set(texts)) == 1
        assert texts[0].startswith("some words here ")
        assert (await client.post("/detokenize", json={"tokens": ids})).json() == {"prompt": "some words here"}


async def test_continuous_usage(start: Start, chat: Body) -> None:
    emulator = await start()
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        body = chat(max_tokens=4, ignore_eos=True, stream=True, stream_options=options)
        text = (await client.post("/v1/chat/completions", json=body)).text
    assert re.findall(r'"completion_tokens":(\d)', text) == ["0", "1", "2", "3", "4", "4"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/v1/chat/completions", b"{", 400, "JSON decode error"),
        ("/v1/chat/completions", b"[1]", 400, "valid dictionary"),
        ("/v1/chat/completions", b"[" * 5000, 400, "JSON"),
        ("/v1/chat/completions", b"\xff\xfe", 400, "JSON"),
        ("/v1/chat/completions", {}, 400, "'messages'"),
        ("/v1/chat/completions", {"messages": []}, 400, "at least one"),
        ("/v1/chat/completions", {"messages": ["x"]}, 400, "object"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400, "string or a list"),
        ("/v1/chat/completions", {"model": "nope", "messages": []}, 404, "The model `nope` does not exist."),
        ("/v1/chat/completions", {"model": 5, "messages": []}, 400, "string"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "max_tokens": 0}, 400, "at least 1"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "max_tokens": "5"}, 400, "integer"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "max_tokens": 5000}, 400, "5000 output tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 9000}]}, 400, "length is 2048"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "n": 0}, 400, "n must be"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "n": 999}, 400, "n must be"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "stream": "yes"}, 400, "boolean"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "temperature": -1}, 400, "temperature"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "logprobs": True}, 400, "logprobs"),
        ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream=True"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "min_tokens": 9, "max_tokens": 5}, 400, "min_tokens"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "tool_choice": "required"}, 400, "tools"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}], "tools": 5}, 400, "tools"),
        ("/v1/completions", {}, 400, "'prompt'"),
        ("/v1/completions", {"prompt": {"a": 1}}, 400, "prompt should be"),
        ("/v1/completions", {"prompt": [-5]}, 400, "prompt should be"),
        ("/v1/embeddings", {}, 400, "'input'"),
        ("/v1/embeddings", {"input": "x" * 9000}, 400, "maximum context"),
        ("/v1/responses", {}, 400, "'input'"),
        ("/v1/messages", {"max_tokens": 5}, 400, "'messages'"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/nowhere", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
    ],
)  # fmt: skip
async def test_errors_say_what_is_wrong(start: Start, path: str, body: Any, status: int, said: str) -> None:
    emulator = await start()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        answer = await client.post(path, content=content)
        assert answer.status_code == status, answer.text
        value = answer.json()
        if path == "/v1/messages":
            assert (value["type"], value["error"]["type"]) == ("error", "invalid_request_error")
        elif "error" in value:
            assert value["error"]["code"] == status
            assert set(value["error"]) == {"message", "type", "param", "code"}
        assert said in answer.text
        # The connection is still good.
        assert (await client.get("/health")).status_code == 200
    assert emulator.replicas[0].engine.steps_total == 0


async def test_lone_surrogates_are_taken(start: Start) -> None:
    emulator = await start()
    body = b'{"messages":[{"role":"user","content":"\\ud800"}],"max_tokens":2}'
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        assert (await client.post("/v1/chat/completions", content=body)).status_code == 200
        named = await client.post("/v1/chat/completions", content=body[:-1] + b',"model":"\\ud800"}')
        assert named.status_code == 404


async def test_models_version_and_unknown_paths(start: Start) -> None:
    emulator = await start(served_model_names=("a", "b"))
    async with httpx.AsyncClient(base_url=emulator.urls[0]) as client:
        models = (await client.get("/v1/models")).json()
        assert models["object"] == "list"
        assert [(m["id"], m["owned_by"], m["max_model_len"]) for m in models["data"]] == [
            ("a", "vllm", 2048),
            ("b", "vllm", 2048),
        ]
        assert "version" in (await client.get("/version")).json()
        assert (await client.head("/health")).status_code == 200
        assert (await client.get("/v1/chat/completions")).status_code == 405


async def test_http_1_0_and_pipelining(start: Start, chat: Body) -> None:
    emulator = await start()
    host, port = emulator.urls[0].removeprefix("http://").split(":")
    data = json.dumps(chat(max_tokens=3, stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/%b\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n"
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head % (b"1.0", len(data), b"") + data)
    old = await reader.read()
    assert b"transfer-encoding" not in old
    assert old.endswith(b"data: [DONE]\n\n")
    writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    one = head % (b"1.1", len(data), b"") + data
    writer.write(one * 20 + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    many = await reader.read()
    assert many.count(b"HTTP/1.1 200 OK") == 21
    assert many.count(b"[DONE]") == 20
    assert many.endswith(b"connection: close\r\n\r\n")
    writer.close()


async def test_bodies_and_framing_have_limits(start: Start) -> None:
    emulator = await start(body_bytes_max=1000)
    host, port = emulator.urls[0].removeprefix("http://").split(":")

    async def send(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        answer = await reader.read()
        writer.close()
        return answer

    assert (await send(b"POST /tokenize HTTP/1.1\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000)).startswith(
        b"HTTP/1.1 413 "
    )
    assert (await send(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert (await send(b"GET /health HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n")).startswith(b"HTTP/1.1 431 ")
    expected = b"POST /tokenize HTTP/1.1\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: 15\r\n\r\n"
    assert (await send(expected + b'{"prompt":"ab"}')).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
