"""The gateway's side of the node agents: who is connected, what they say of their replicas, their telemetry.

An agent's word counts for its own replicas only. While it is heard, its replicas are neither polled nor regularly
probed from here. When it is lost (its connection ends, or nothing comes for ``lost_s``) they are out at once, requests
that wait for their first byte there go elsewhere, and polling and probing from here decide until the agent is back.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from exaserve.config.settings import AgentSettings
from exaserve.domain.errors import ExaServeError
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.fleet import machine_figures as figures
from exaserve.gateway.fleet.roster import Row, merged
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.observe import EventLog, Family, labels
from exaserve.serving.fleet import Fleet
from exaserve.wire import (
    Figures,
    Kind,
    Link,
    Picture,
    ReplicaState,
    Result,
    Verb,
    WireError,
    decode,
    decode_batch,
    encode,
)
from exaserve.wire.messages import VerbName

__all__ = ["AgentServer", "Members", "NodeUnknown"]

_TICK_S = 0.1
_HEARD_S = 0.5
_HANDSHAKE_S = 5.0
_VERB_S = 10.0
_FORGET_S = 600.0
"""How long a replica that only an agent knows of is remembered after the agent is lost."""
_STRANGERS_MAX = 1024
"""Connections that have not proved themselves yet."""


class NodeUnknown(ExaServeError):
    """No agent of that node is connected."""

    fault = "operator"
    status = 404
    code = "node_not_found"


class Members(Protocol):
    """Who adds and removes replicas (the gateway)."""

    def joined(self, spec: ReplicaSpec) -> None: ...

    def changed(self, old: ReplicaSpec, new: ReplicaSpec) -> None: ...

    def left(self, replica: ReplicaId) -> None: ...


class AgentServer:
    """Listens for agents from :meth:`start` to :meth:`stop`.

    Args:
        name: of this gateway, for the agents' logs.
        token: the shared secret; None asks for none.
        tls: for mutual TLS.
        on_report: called after each batch, so that queued requests are looked at again.
    """

    def __init__(
        self,
        settings: AgentSettings,
        name: str,
        token: bytes | None,
        tls: ssl.SSLContext | None,
        members: Members,
        fleet: Fleet,
        telemetry: Telemetry,
        log: EventLog,
        on_report: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.name = name
        self.token = token
        self.members = members
        self.scheduler = fleet.scheduler
        self.fleet = fleet
        self.telemetry = telemetry
        self.log = log
        self.on_report = on_report
        self.clock = clock
        self.nodes: dict[str, NodeConnection] = {}
        self.rows: dict[ReplicaId, Row] = {}
        """Every replica that an agent has spoken of, connected or not."""
        self.address = ""
        self.strangers: set[NodeConnection] = set()
        self.pictures = self.bytes_received = 0
        self.batches = self.records = self.gaps = self.refused = self.losses = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_next = 0.0
        self._ticked_at = clock()
        self._patient_until = 0.0

    async def start(self) -> None:
        """OSError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: NodeConnection(self), self.settings.host, self.settings.port, ssl=self._tls, backlog=4096
        )
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        self._timer = loop.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in [*self.nodes.values(), *self.strangers]:
            connection.close()
        self.nodes.clear()
        await asyncio.sleep(0)

    def expect(self, specs: Iterable[ReplicaSpec]) -> None:
        """Replicas that agents will start: neither polled nor probed until one speaks of them."""
        now = self.clock()
        for spec in specs:
            self.telemetry.hold(spec.id)
            self.fleet.told(spec.id, "waiting for its node's agent", now, ready=False)

    def adopt(self, replica: ReplicaId) -> bool:
        """The cluster file names it from now on too; whether an agent had announced it before."""
        row = self.rows.get(replica)
        if row is None or not row.announced:
            return False
        row.announced = False
        return True

    def retell(self) -> None:
        """Takes again what agents said last: a reload has described their replicas by the file alone."""
        now = self.clock()
        for connection in self.nodes.values():
            for row in list(connection.rows.values()):
                if row.owner is connection and row.told is not None and row.id in self.scheduler.states():
                    row.ready = row.drained = False
                    self._own(connection, row.told)
                    self._apply(row, row.told, now)

    # ---- verbs --------------------------------------------------------------------------------------------------
    async def ask(
        self, node: str, verb: VerbName, replica: str = "", *, lines_max: int = 100, drain_s: float = -1.0
    ) -> Result:
        """Passes a life-cycle verb on; returns the agent's answer. NodeUnknown where no such agent is connected."""
        connection = self.nodes.get(node)
        if connection is None:
            known = ", ".join(sorted(self.nodes)[:8]) or "none"
            raise NodeUnknown(f"No agent of node {node!r} is connected; connected are {known}.", param="node")
        return await connection.ask(verb, replica, lines_max, drain_s)

    # ---- figures ------------------------------------------------------------------------------------------------
    def summary(self) -> dict[str, object]:
        """Counts only: cheap at any size."""
        return {
            "nodes": len(self.nodes),
            "replicas": len(self.rows),
            "ready": sum(row.ready for row in self.rows.values()),
            "address": self.address,
            "batches": self.batches,
            "reports": self.records,
            "pictures": self.pictures,
            "bytes": self.bytes_received,
            "accelerators": figures.accelerators(self._figures()),
        }

    def _figures(self) -> dict[str, Figures]:
        return {name: connection.figures for name, connection in self.nodes.items()}

    def as_rows(self) -> list[dict[str, object]]:
        now = self.clock()
        return [connection.as_dict(now) for connection in self.nodes.values()]

    def families(self) -> Iterable[Family]:
        nodes = Family("exaserve_agents_connected", "gauge", "Node agents connected to this gateway.")
        nodes.add(len(self.nodes))
        rest = []
        for name, value, text in (
            ("batches", self.batches, "Telemetry batches of agents."),
            ("reports", self.records, "Changed reports in them."),
            ("batches_missed", self.gaps, "Batches that an agent numbered and that never came."),
            ("refused", self.refused, "Connections that did not prove themselves or broke the protocol."),
            ("lost", self.losses, "Agents lost."),
        ):
            family = Family(f"exaserve_agent_{name}_total", "counter", text)
            family.add(value)
            rest.append(family)
        restarts = Family("exaserve_replica_restarts", "gauge", "Restarts after failures, as the node's agent counts.")
        state = Family("exaserve_replica_lifecycle", "gauge", "1 for the state its agent says a replica is in.")
        for row in self.rows.values():
            if row.restarts:
                restarts.add(row.restarts, labels(replica=row.id))
            state.add(1, labels(replica=row.id, state=row.state))
        return [nodes, *rest, restarts, state, *figures.families(self._figures())]

    # ---- membership ---------------------------------------------------------------------------------------------
    def established(self, connection: NodeConnection) -> None:
        old = self.nodes.get(connection.node)
        if old is not None:
            self.log.warning("agent_replaced", node=connection.node, why="another agent of the same node connected")
            old.replaced = True
            old.close()
        self.nodes[connection.node] = connection
        self.log.info("agent_found", source="agent", node=connection.node, client=connection.client)

    def lost(self, connection: NodeConnection, why: str, *, left: bool) -> None:
        """The connection is over: all its replicas with it."""
        self.strangers.discard(connection)
        if self.nodes.get(connection.node) is connection:
            del self.nodes[connection.node]
        if connection.replaced or not connection.node:
            return
        now = self.clock()
        if not left:
            self.losses += 1
        event = self.log.info if left else self.log.warning
        event("agent_left" if left else "agent_lost", source="agent", node=connection.node, why=why)
        for row in connection.rows.values():
            if row.owner is connection:
                row.owner = None
                row.lost_at = now
                self._out(row, f"its node's agent is gone: {why}", now, left=left)

    def _out(self, row: Row, why: str, now: float, *, left: bool) -> None:
        row.ready = False
        if left and row.announced:
            self._forget(row)
            return
        self.fleet.word_lost(row.id, why, now)
        self.telemetry.release(row.id)
        self._undrain(row)

    def _forget(self, row: Row) -> None:
        self.rows.pop(row.id, None)
        self.log.info("replica_left", source="agent", replica=row.id)
        self.members.left(row.id)

    def _undrain(self, row: Row) -> None:
        if row.drained:
            row.drained = False
            self.scheduler.undrain(row.id)

    def take_picture(self, connection: NodeConnection, picture: Picture) -> None:
        """What an agent says of its replicas. Those that a full picture does not name are gone."""
        now = self.clock()
        named = set()
        for state in picture.replicas:
            row = self._own(connection, state)
            if row is not None:
                named.add(row.id)
                self._apply(row, state, now)
        gone = [row for row in connection.rows.values() if row.id in picture.gone]
        if picture.full:
            gone += [row for row in self.rows.values() if row.node == connection.node and row.id not in named]
        for row in gone:
            connection.rows.pop(row.index, None)
            self._out(row, "its agent does not run it any more", now, left=True)
        self.on_report()

    def _own(self, connection: NodeConnection, state: ReplicaState) -> Row | None:
        """The row of a replica that this agent may speak of; made where it is new."""
        replica = ReplicaId(state.id)
        row = self.rows.get(replica)
        if row is not None and row.owner is not None and row.owner is not connection and not row.owner.replaced:
            self.log.warning("replica_refused", replica=replica, node=connection.node, why=f"it is {row.owner.node}'s")
            return None
        known = self.scheduler.states().get(replica)
        spec = merged(known.spec if known is not None else None, state, connection.node)
        if row is None:
            row = self.rows[replica] = Row(replica, connection.node, announced=known is None)
        if known is None:
            row.announced = True
            self.log.info("replica_joined", source="agent", replica=replica, url=spec.url, node=connection.node)
            self.members.joined(spec)
        elif spec != known.spec:
            self.members.changed(known.spec, spec)
        row.owner = connection
        row.node = connection.node
        row.index = state.index
        connection.rows[state.index] = row
        self.telemetry.hold(replica)
        self.telemetry.described(replica, state.engine, state.missing)
        return row

    def _apply(self, row: Row, state: ReplicaState, now: float) -> None:
        row.told = state
        if row.pid and state.pid and row.pid != state.pid:
            self.fleet.restarted(row.id, f"process {state.pid} instead of {row.pid}", now)
        row.pid = state.pid or row.pid
        if state.state != row.state:
            self.log.debug("replica_state", replica=row.id, state=state.state, why=state.reason)
        row.state, row.reason, row.restarts, row.loras = state.state, state.reason, state.restarts, state.loras
        if state.state == "draining":
            if not row.drained:
                row.drained = True
                self.scheduler.drain(row.id)
            return
        if state.ready != row.ready or not state.ready:
            row.ready = state.ready
            self.fleet.told(row.id, f"{state.state}: {state.reason}", now, ready=state.ready)
        self._undrain(row)

    # ---- time ---------------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)
        now = self.clock()
        if now - self._ticked_at > 0.5 * self.settings.lost_s:
            self._patient_until = now + self.settings.lost_s
        self._ticked_at = now
        # After a pause of our own, what agents have said meanwhile is still in the sockets.
        silent = now - self.settings.lost_s if now >= self._patient_until else -1.0
        for connection in [each for each in self.nodes.values() if each.heard_at < silent]:
            connection.silent(f"nothing heard for {now - connection.heard_at:.1f} s")
        for connection in [each for each in self.strangers if each.heard_at < min(silent, now - _HANDSHAKE_S)]:
            connection.refuse(f"no handshake within {_HANDSHAKE_S:g} s")
        if now >= self._heard_next:
            self._heard_next = now + _HEARD_S
            for connection in self.nodes.values():
                connection.send(Kind.HEARD, b"")
            for row in [row for row in self.rows.values() if row.owner is None and row.announced]:
                if now - row.lost_at > _FORGET_S:
                    self._forget(row)


class NodeConnection(asyncio.Protocol):
    """One agent's connection."""

    def __init__(self, server: AgentServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._link = Link("gateway", server.name, secrets.token_bytes(16), server.token)
        self._refs = 0
        self._asked: dict[int, asyncio.Future[Result]] = {}
        self._seq = 0
        self._why = ""
        self._left = False
        self.node = ""
        self.client = ""
        self.replaced = False
        self.rows: dict[int, Row] = {}
        self.heard_at = server.clock()
        self.since = self.heard_at
        self.batches = 0
        self.bytes_received = 0
        self.figures = Figures()

    def as_dict(self, now: float) -> dict[str, object]:
        return {
            "node": self.node,
            "client": self.client,
            "connected_s": now - self.since,
            "heard_s": now - self.heard_at,
            "batches": self.batches,
            "bytes": self.bytes_received,
            **figures.as_dict(self.figures),
            "replicas": [row.as_dict() for row in self.rows.values()],
        }

    # ---- transport ----------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from asyncio's
        peer = transport.get_extra_info("peername")
        self.client = f"{peer[0]}:{peer[1]}" if peer else ""
        if len(self._server.strangers) >= _STRANGERS_MAX:
            self._transport.abort()
            return
        self._server.strangers.add(self)
        self._transport.write(self._link.to_send())

    def data_received(self, data: bytes) -> None:
        server = self._server
        self.heard_at = server.clock()
        self.bytes_received += len(data)
        server.bytes_received += len(data)
        try:
            for kind, payload in self._link.receive(data):
                if not self.node:
                    self._established()
                self._take(kind, payload)
        except WireError as error:
            self.refuse(error.message)
            return
        if self._transport is not None and (out := self._link.to_send()):
            self._transport.write(out)
        if self._link.established and not self.node:
            self._established()

    def _established(self) -> None:
        assert self._link.peer is not None
        if self._transport is not None and (out := self._link.to_send()):
            self._transport.write(out)
        self._server.strangers.discard(self)
        self.node = self._link.peer.name
        self._server.established(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for future in self._asked.values():
            if not future.done():
                future.set_exception(NodeUnknown(f"The agent of {self.node} was lost before it answered."))
        self._asked.clear()
        self._server.lost(self, self._why or (str(exc) if exc else "connection closed"), left=self._left)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def silent(self, why: str) -> None:
        """Nothing has come for too long: the replicas go now, whenever TCP finds out."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()
        self._server.lost(self, why, left=False)
        self.replaced = True

    def refuse(self, why: str) -> None:
        self._why = why
        self._server.refused += 1
        self._server.strangers.discard(self)
        self._server.log.warning("agent_refused", client=self.client, node=self.node or None, why=why)
        if self._transport is not None:
            self._transport.write(self._link.refusal(why))
            self._transport.close()

    def send(self, kind: Kind, payload: bytes) -> None:
        if self._transport is not None and self._link.established:
            self._transport.write(self._link.frame(kind, payload))

    # ---- frames -------------------------------------------------------------------------------------------------
    def _take(self, kind: Kind, payload: bytes) -> None:
        if kind is Kind.BATCH:
            self._take_batch(payload)
        elif kind is Kind.PICTURE:
            self._server.pictures += 1
            self._server.take_picture(self, decode(payload, Picture))
        elif kind is Kind.RESULT:
            result = decode(payload, Result)
            future = self._asked.pop(result.ref, None)
            if future is not None and not future.done():
                future.set_result(result)
        elif kind is Kind.FIGURES:
            self.figures = decode(payload, Figures)
        elif kind is Kind.BYE:
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

    async def ask(self, verb: VerbName, replica: str, lines_max: int, drain_s: float) -> Result:
        self._refs += 1
        ref = self._refs
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._asked[ref] = future
        self.send(Kind.VERB, encode(Verb(ref, verb, replica, lines_max, drain_s)))
        try:
            async with asyncio.timeout(_VERB_S):
                return await future
        except TimeoutError:
            return Result(ref, ok=False, message=f"the agent of {self.node} did not answer within {_VERB_S:g} s")
        finally:
            self._asked.pop(ref, None)
