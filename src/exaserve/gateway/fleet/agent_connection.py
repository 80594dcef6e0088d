"""One agent's connection as the gateway has it: frames in, verbs out, and the door before it where TLS is on."""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, cast

from exaserve.config import join_address
from exaserve.domain.errors import ExaServeError
from exaserve.gateway.fleet import machine_figures as figures
from exaserve.gateway.fleet.roster import Row
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.wire import (
    AgentReport,
    FrameKind,
    Hello,
    MachineFigures,
    Verb,
    VerbResult,
    WireError,
    WireLink,
    decode,
    decode_batch,
    encode,
)
from exaserve.wire.messages import VerbName
from exaserve.wire.protocol import LinkProtocol

__all__ = ["HANDSHAKE_S", "NodeConnection", "NodeUnknown", "TlsDoor"]

HANDSHAKE_S = 5.0
_VERB_S = 10.0
_ACCEPT_PAUSE_S = 0.1
_STRANGERS_MAX = 1024
"""Connections that have not proved themselves yet."""


class NodeUnknown(ExaServeError):
    """No agent of that node is connected."""

    fault = "operator"
    status = 404
    code = "node_not_found"


class ConnectionServer(Protocol):
    """What a connection needs of :class:`exaserve.gateway.fleet.agents.AgentServer`."""

    name: str
    instance: bytes
    token: bytes | None
    telemetry: Telemetry
    on_report: Callable[[], None]
    clock: Callable[[], float]
    strangers: set[NodeConnection]
    agent_reports: int
    bytes_received: int
    batches: int
    records: int
    gaps: int

    def established(self, connection: NodeConnection, peer: Hello) -> None: ...

    def lost(self, connection: NodeConnection, why: str, *, left: bool) -> None: ...

    def take_report(self, connection: NodeConnection, report: AgentReport) -> None: ...

    def refusal(self, client: str, why: str) -> None: ...


class TlsDoor:
    """Takes connections and lets in those whose TLS handshake is good.

    A listener of asyncio's own would end the others without a word; here :meth:`ConnectionServer.refusal` hears why.
    """

    def __init__(self, server: ConnectionServer, context: ssl.SSLContext, listening: socket.socket) -> None:
        self._server = server
        self._context = context
        self._listening = listening
        self._shaking: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        for task in (self._accepting, *self._shaking):
            task.cancel()
        await asyncio.gather(self._accepting, *self._shaking, return_exceptions=True)
        self._listening.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._listening)
            except OSError:  # such as no file left: those who wait are taken later
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._shaking) >= _STRANGERS_MAX:
                client.close()
                continue
            task = loop.create_task(self._let_in(client, join_address(*address[:2])))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _let_in(self, client: socket.socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: NodeConnection(self._server), client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except (OSError, TimeoutError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "verify_message", "") or str(error) or "it took too long"
            self._server.refusal(address, f"TLS handshake: {why}")
            client.close()


class NodeConnection(LinkProtocol):
    """One agent's connection."""

    def __init__(self, server: ConnectionServer) -> None:
        super().__init__(server.clock)
        self._server = server
        self._refs = 0
        self._asked: dict[int, asyncio.Future[VerbResult]] = {}
        self._seq = 0
        self._why = ""
        self._left = False
        self.node = ""
        self.client = ""
        self.instance = b""
        self.replaced = False
        self.rows: dict[int, Row] = {}
        self.batches = 0
        self.figures = MachineFigures()

    def as_dict(self, now: float) -> dict[str, object]:
        return {
            "node": self.node,
            "client": self.client,
            "connected_s": now - self.opened_at,
            "heard_s": now - self.heard_at,
            "batches": self.batches,
            "bytes": self.bytes_received,
            **figures.as_dict(self.figures),
            "replicas": [row.as_dict() for row in self.rows.values()],
        }

    # ---- connection ---------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self.client = join_address(*peer[:2]) if peer else ""
        if len(self._server.strangers) >= _STRANGERS_MAX:
            cast("asyncio.Transport", transport).abort()
            return
        self._server.strangers.add(self)
        super().connection_made(transport)

    def new_link(self) -> WireLink:
        server = self._server
        return WireLink("gateway", server.name, secrets.token_bytes(16), server.token, server.instance)

    def data_received(self, data: bytes) -> None:
        self._server.bytes_received += len(data)
        super().data_received(data)

    def proved(self) -> None:
        assert self.link is not None
        assert self.link.peer is not None
        self._server.established(self, self.link.peer)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for future in self._asked.values():
            if not future.done():
                future.set_exception(NodeUnknown(f"The agent of {self.node} was lost before it answered."))
        self._asked.clear()
        self._server.lost(self, self._why or (str(exc) if exc else "connection closed"), left=self._left)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def silent(self, why: str) -> None:
        """Nothing has come for too long: the replicas go now, whenever TCP finds out."""
        self._why = why
        if self.transport is not None:
            self.transport.abort()
        self._server.lost(self, why, left=False)
        self.replaced = True

    def broke(self, why: str) -> None:
        self._why = why
        self._server.strangers.discard(self)
        self._server.refusal(self.client, why)
        self.refuse(why)

    # ---- frames -------------------------------------------------------------------------------------------------
    def took(self, kind: FrameKind, payload: bytes) -> None:
        if kind is FrameKind.BATCH:
            self._take_batch(payload)
        elif kind is FrameKind.REPORT:
            self._server.agent_reports += 1
            self._server.take_report(self, decode(payload, AgentReport))
        elif kind is FrameKind.RESULT:
            result = decode(payload, VerbResult)
            future = self._asked.pop(result.ref, None)
            if future is not None and not future.done():
                future.set_result(result)
        elif kind is FrameKind.FIGURES:
            self.figures = decode(payload, MachineFigures)
        elif kind is FrameKind.BYE:
            self._left = True
        else:
            raise WireError(f"an agent does not send {kind.name}")

    def _take_batch(self, payload: bytes) -> None:
        server = self._server
        batch = decode_batch(payload)
        self.batches += 1
        server.batches += 1
        server.records += len(batch.records)
        server.gaps += max(0, batch.seq - self._seq - 1)
        self._seq = batch.seq
        server.telemetry.push(self.rows, batch, self.heard_at)
        server.on_report()

    async def ask(self, verb: VerbName, replica: str, lines_max: int, drain_s: float) -> VerbResult:
        self._refs += 1
        ref = self._refs
        future: asyncio.Future[VerbResult] = asyncio.get_running_loop().create_future()
        self._asked[ref] = future
        self.send(FrameKind.VERB, encode(Verb(ref, verb, replica, lines_max, drain_s)))
        try:
            async with asyncio.timeout(_VERB_S):
                return await future
        except TimeoutError:
            return VerbResult(ref, ok=False, message=f"the agent of {self.node} did not answer within {_VERB_S:g} s")
        finally:
            self._asked.pop(ref, None)
