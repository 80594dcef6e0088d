"""A name server for SRV and A questions over UDP and TCP, with faults."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from types import TracebackType
from typing import Any, Self


def name_bytes(name: str) -> bytes:
    return b"".join(bytes([len(p)]) + p.encode() for p in name.split(".") if p) + b"\0"


class FakeDns(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.port = 0
        self.srv: dict[str, list[tuple[int, int, int, str]]] = {}
        self.a: dict[str, list[str]] = {}
        self.ttl = 0
        self.code = 0
        self.silent = False
        self.truncate = False
        self.with_addresses = True
        self.udp = 0
        self.asked_at: list[float] = []
        self.tcp = 0
        self.wrong_ident = False
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", self.port))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        assert self._transport is not None
        self._server.close()
        self._transport.close()
        await asyncio.sleep(0.01)

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.udp += 1
        self.asked_at.append(asyncio.get_running_loop().time())
        if self.silent:
            return
        assert self._transport is not None
        if self.wrong_ident:
            self._transport.sendto(struct.pack("!H", int.from_bytes(data[:2], "big") ^ 1) + data[2:], address)
        self._transport.sendto(self.answer(data, cut=self.truncate), address)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tcp += 1
        size = int.from_bytes(await reader.readexactly(2), "big")
        answer = self.answer(await reader.readexactly(size), cut=False)
        writer.write(len(answer).to_bytes(2, "big") + answer)
        await writer.drain()
        writer.close()

    def answer(self, asked: bytes, *, cut: bool) -> bytes:
        labels, at = [], 12
        while asked[at]:
            labels.append(asked[at + 1 : at + 1 + asked[at]].decode())
            at += 1 + asked[at]
        name = ".".join(labels)
        kind = int.from_bytes(asked[at + 1 : at + 3], "big")
        question = asked[12 : at + 5]
        records: list[bytes] = []
        more: list[bytes] = []
        if kind == 33:
            for priority, weight, port, target in self.srv.get(name, []):
                data = struct.pack("!HHH", priority, weight, port) + name_bytes(target)
                records.append(b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, self.ttl, len(data)) + data)
                if self.with_addresses:
                    more += [self._a(target, each) for each in self.a.get(target, [])]
        elif kind == 1:
            records = [self._a(name, each) for each in self.a.get(name, [])]
        known = name in self.srv or name in self.a
        code = self.code or (0 if known else 3)
        flags = 0x8180 | code | (0x0200 if cut else 0)
        if code:
            records, more = [], []
        head = asked[:2] + struct.pack("!HHHHH", flags, 1, len(records), 0, len(more))
        body = head + question + b"".join(records) + b"".join(more)
        return body[: 12 + len(question) + 7] if cut else body

    def _a(self, name: str, address: str) -> bytes:
        return name_bytes(name) + struct.pack("!HHIH", 1, 1, self.ttl, 4) + ipaddress.IPv4Address(address).packed
