"""Replicas that cost next to nothing: fixed answers in an engine's form.

One process listens on several ports of 127.0.0.1 (each a replica) and prints them as a JSON list on its first line.
``POST`` is answered at once with a completion of about 800 bytes, or, where the body asks for a stream, with one event
of about 230 bytes per ``--gap-ms``. ``GET`` answers ``/v1/models``, ``/health`` and ``/metrics`` (about 50 kB, the size
and form of vLLM's own). Streams with the same phase are served by one tick, as one step of an engine's batch is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from typing import cast

import uvloop

MODEL = "bench"
_ID = "chatcmpl-0123456789abcdef0123456789abcdef"
_CREATED = 1_760_000_000


def _event(delta: dict[str, object], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    chunk = {"id": _ID, "object": "chat.completion.chunk", "created": _CREATED, "model": MODEL, "choices": [choice]}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


EVENT = _event({"content": " word"})
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_STREAM_BEGIN = _STREAM_HEAD + _chunk(_event({"role": "assistant", "content": ""})) + _chunk(EVENT)
_STREAM_EVENT = _chunk(EVENT)


def _stream_end(tokens: int) -> bytes:
    usage = {"prompt_tokens": 327, "total_tokens": 327 + tokens, "completion_tokens": tokens}
    last = {
        "id": _ID,
        "object": "chat.completion.chunk",
        "created": _CREATED,
        "model": MODEL,
        "choices": [],
        "usage": usage,
    }
    data = b"data: " + json.dumps(last, separators=(",", ":")).encode() + b"\n\n"
    return _chunk(_event({}, "length")) + _chunk(data) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _answer(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    head = (
        b"HTTP/1.1 %s\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-length: %d\r\ncontent-type: %s\r\n\r\n"
    )
    return head % (status, len(body), content_type) + body


def _plain() -> bytes:
    message: dict[str, object] = {
        "role": "assistant",
        "content": "word " * 60,
        "refusal": None,
        "tool_calls": [],
        "reasoning_content": None,
    }
    body = {
        "id": _ID,
        "object": "chat.completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
        "usage": {"prompt_tokens": 327, "total_tokens": 387, "completion_tokens": 60, "prompt_tokens_details": None},
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }
    return _answer(json.dumps(body, separators=(",", ":")).encode())


def _metrics() -> bytes:
    """An exposition of vLLM's size: its load gauges, and histograms to fill it to about 50 kB."""
    labels = f'engine="0",model_name="{MODEL}"'
    lines = []
    for name, value in (("num_requests_running", 1), ("num_requests_waiting", 0), ("kv_cache_usage_perc", 0.02)):
        lines += [f"# HELP vllm:{name} Value.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}"]
    info = f'block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="27000",enable_prefix_caching="True",{labels}'
    lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{info}}} 1.0"]
    for name in ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens"):
        lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{labels}}} 12345.0"]
    for index in range(20):
        name = f"vllm:request_stage_{index}_time_seconds"
        lines += [f"# HELP {name} Histogram of seconds.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{labels},le="{0.001 * 1.6**step:.4f}"}} {step * 1000.0}' for step in range(26)]
        lines += [f"{name}_sum{{{labels}}} 123.456", f"{name}_count{{{labels}}} 25000.0"]
    return _answer("\n".join(lines).encode() + b"\n", b"text/plain; version=0.0.4; charset=utf-8")


PLAIN = _plain()
_MODELS = _answer(
    json.dumps(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131_072}]}
    ).encode()
)
_GET = {
    b"/v1/models": _MODELS,
    b"/health": _answer(b"", b"text/plain"),
    b"/version": _answer(b'{"version":"0.11.0"}'),
    b"/metrics": _metrics(),
}
_NOT_FOUND = _answer(b'{"error":{"message":"not found"}}', status=b"404 Not Found")


class Wheel:
    """Streams by the millisecond of their phase; every tick writes one event to each stream whose turn it is."""

    def __init__(self, gap_ms: int, events: int) -> None:
        self.gap_ms = gap_ms
        self.events = events
        self.end = _stream_end(events)
        self.slots: list[dict[Replica, int]] = [{} for _ in range(gap_ms)]
        self.at = int(time.monotonic() * 1000.0)

    def add(self, replica: Replica) -> None:
        slot = int(time.monotonic() * 1000.0) % self.gap_ms
        replica.slot = slot
        self.slots[slot][replica] = self.events - 1

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(0.001, self.tick, loop)
        now = int(time.monotonic() * 1000.0)
        self.at = max(self.at, now - self.gap_ms)  # after a long pause nothing is sent twice
        while self.at < now:
            self.at += 1
            slot = self.slots[self.at % self.gap_ms]
            ended = []
            for replica, left in slot.items():
                if left <= 0:
                    ended.append(replica)
                    continue
                slot[replica] = left - 1
                replica.write(_STREAM_EVENT)
            for replica in ended:
                del slot[replica]
                replica.slot = -1
                replica.write(self.end)


class Replica(asyncio.Protocol):
    __slots__ = ("buffer", "slot", "transport", "wheel", "write")

    def __init__(self, wheel: Wheel) -> None:
        self.wheel = wheel
        self.buffer = b""
        self.slot = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.write = self.transport.write

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.slot >= 0:
            self.wheel.slots[self.slot].pop(self, None)

    def data_received(self, data: bytes) -> None:
        if self.buffer:
            data = self.buffer + data
            self.buffer = b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.buffer = data
            return
        if data.startswith(b"GET "):
            path = data[4 : data.index(b" ", 4)].split(b"?")[0]
            self.write(_GET.get(path, _NOT_FOUND))
            return
        head = data[:end].lower()
        at = head.find(b"content-length:")
        if at >= 0:
            stop = head.find(b"\r", at)
            size = int(head[at + 15 : stop if stop > 0 else end])
            whole = len(data) - end - 4 >= size
        else:
            whole = data.endswith(b"0\r\n\r\n")  # chunked
        if not whole:
            self.buffer = data
        elif b'"stream":true' in data:
            self.wheel.add(self)
            self.write(_STREAM_BEGIN)
        else:
            self.write(PLAIN)


async def serve(ports: int, gap_ms: int, events: int) -> None:
    loop = asyncio.get_running_loop()
    wheel = Wheel(gap_ms, events)
    loop.call_soon(wheel.tick, loop)
    servers = [await loop.create_server(lambda: Replica(wheel), "127.0.0.1", 0, backlog=8192) for _ in range(ports)]
    print(json.dumps([server.sockets[0].getsockname()[1] for server in servers]), flush=True)
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ports", type=int, default=4)
    parser.add_argument("--gap-ms", type=int, default=20)
    parser.add_argument("--events", type=int, default=300)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.ports, arguments.gap_ms, arguments.events))
    sys.exit(0)


if __name__ == "__main__":
    main()
