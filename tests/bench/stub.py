"""A server with known delays, for the client's tests: one asyncio task per connection, plain and slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\nX-ExaServe-Replica: n1/r2\r\n\r\n"
)


def event(payload: str) -> bytes:
    data = f"data: {payload}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def token(text: str) -> bytes:
    return event(json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}, separators=(",", ":")))


ROLE = event('{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}')
FINISH = event('{"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}')
END = b"0\r\n\r\n"


def usage(tokens: int) -> bytes:
    return event(json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}))


DONE = event("[DONE]")
Handler = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Stub:
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Stub]:
    """A server that reads requests and has ``handler(body, writer)`` answer each."""
    stub = Stub()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stub.connections += 1
        task = asyncio.current_task()
        assert task is not None
        stub.tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: (\d+)", head)
                assert size is not None
                body = await reader.readexactly(int(size[1]))
                stub.heads.append(head)
                stub.bodies.append(body)
                await handler(body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            stub.tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield stub
    finally:
        server.close()
        for task in tuple(stub.tasks):
            task.cancel()
        await asyncio.gather(*stub.tasks, return_exceptions=True)
        await server.wait_closed()
