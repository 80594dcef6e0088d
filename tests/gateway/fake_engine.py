"""A server that answers what a test tells it to, for what the control plane asks of replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Self

from tests.engines.shapes import vllm_now
from tests.ports import free_port

Answer = tuple[int, bytes] | str
"""Status and body, or what to do instead: ``hang``, ``close`` or ``garbage``."""

MODELS = b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":4096}]}'


class FakeEngine:
    """Answers ``answers[path]``; 404 for others. Records what was asked."""

    def __init__(self, **metrics: float) -> None:
        self.answers: dict[str, Answer] = {
            "/v1/models": (200, MODELS),
            "/v1/completions": (200, b'{"choices":[{"text":"x"}]}'),
            "/metrics": (200, vllm_now(**metrics).encode()),  # type: ignore[arg-type]
            "/health": (200, b""),
        }
        self.asked: Counter[str] = Counter()
        self.heads: list[bytes] = []
        self.bodies: list[tuple[str, bytes]] = []
        self.connections = 0
        self.open = 0
        self.close_after_answer = False
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.port = self.port or free_port()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0.01)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        self._writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        raw = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(raw)
        head = raw.decode()
        path = head.split(" ")[1]
        length = next(
            (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-len")), 0
        )
        body = await reader.readexactly(length)
        self.asked[path] += 1
        self.bodies.append((path, body))
        answer = self.answers.get(path, (404, b'{"error":"not here"}'))
        if answer == "hang":
            await reader.read()
            return False
        if answer == "close":
            return False
        if answer == "garbage":
            writer.write(b"this is not HTTP at all\r\n\r\n")
            return False
        assert not isinstance(answer, str)
        status, content = answer
        close = self.close_after_answer or "connection: close" in head.lower()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content)
        await writer.drain()
        return not close
