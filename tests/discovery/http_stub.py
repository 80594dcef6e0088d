"""A small HTTP/1.1 server for stand-ins of registries: whole answers, streamed ones, refusals, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

import msgspec
from tests.ports import free_port


class Asked(msgspec.Struct):
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes
    ended: asyncio.Event


class Told(msgspec.Struct):
    """An answer: ``body`` whole, or ``parts`` as they come (chunked)."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}
    parts: AsyncIterator[bytes] | None = None


class HttpStub:
    """Subclasses write :meth:`handle`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.asked: list[Asked] = []
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def handle(self, asked: Asked) -> Told:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.port = self.port or free_port()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)

    async def stop(self) -> None:
        """Gone: the port is closed and every connection cut."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.sleep(0.01)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip() for line in lines}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        parts = urlsplit(target)
        params = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked = Asked(method, parts.path, params, headers, body, asyncio.Event())
        self.asked.append(asked)
        told = await self.handle(asked)
        sent = [f"HTTP/1.1 {told.status} X", "content-type: application/json"]
        sent += [f"{name}: {value}" for name, value in told.headers.items()]
        if told.parts is None:
            sent.append(f"content-length: {len(told.body)}")
            writer.write("\r\n".join(sent).encode() + b"\r\n\r\n" + told.body)
            await writer.drain()
            return True
        writer.write("\r\n".join([*sent, "transfer-encoding: chunked"]).encode() + b"\r\n\r\n")
        async for part in told.parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


Handler = Callable[[Asked], Awaitable[Told]]
