"""The gateway's side of the node agents: who is connected, what they say of their replicas, their telemetry.

An agent's word counts for its own replicas only. While it is heard, its replicas are neither polled nor regularly
probed from here. When it is lost (its connection ends, or nothing comes for ``lost_s``) they are out at once, requests
that wait for their first byte there go elsewhere, and polling and probing from here decide until the agent is back.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping

from exaserve.config import join_address
from exaserve.config.settings import AgentSettings
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.fleet import machine_figures as figures
from exaserve.gateway.fleet.agent_connection import HANDSHAKE_S, NodeConnection, NodeUnknown, TlsDoor
from exaserve.gateway.fleet.members import Members
from exaserve.gateway.fleet.roster import Row, grown_exits, merged
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.observe import EventLog, Family, labels
from exaserve.serving.fleet import Fleet
from exaserve.wire import (
    AgentReplicaState,
    AgentReport,
    FrameKind,
    Hello,
    MachineFigures,
    VerbResult,
    WireError,
)
from exaserve.wire.messages import EXIT_CAUSES, VerbName

__all__ = ["AgentServer", "NodeUnknown"]

_TICK_S = 0.1
_HEARD_S = 0.5
_FORGET_S = 600.0
"""How long a replica that only an agent knows of is remembered after the agent is lost."""
_REFUSAL_EVERY_S, _REFUSALS_MAX = 60.0, 1024
"""Between two lines of the log on the same client and reason, and how many of these are remembered."""


_LEVELS = {"backoff": "warning", "failed": "error"}
"""Of what an agent tells of its engines only what went wrong is in a gateway's log; the rest is in the agent's."""


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
        self.instance = secrets.token_bytes(8)
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
        self.agent_reports = self.bytes_received = 0
        self.batches = self.records = self.gaps = self.refused = self.losses = 0
        self.exits = dict.fromkeys(EXIT_CAUSES, 0)
        """Ends of engines that agents told of since this gateway began; all causes at 0 first: absent is not none."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._door: TlsDoor | None = None
        self._refused_at: dict[str, float] = {}
        """By client and reason: when it was last logged."""
        self._heard_next = 0.0
        self._ticked_at = clock()
        self._patient_until = 0.0

    async def start(self) -> None:
        """OSError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        host, port = self.settings.host, self.settings.port
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(where[:2], family=family, backlog=4096)
        listening.setblocking(False)  # noqa: FBT003 -- the standard library's own signature
        self.address = join_address(*listening.getsockname()[:2])
        if self._tls is None:
            self._server = await loop.create_server(lambda: NodeConnection(self), sock=listening, backlog=4096)
        else:
            self._door = TlsDoor(self, self._tls, listening)
        self._timer = loop.call_later(_TICK_S, self._tick)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        if self._door is not None:
            await self._door.close()
        for connection in [*self.nodes.values(), *self.strangers]:
            connection.replaced = True  # it is we who go: its replicas are not lost
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

    def retell(self, replicas: Collection[ReplicaId]) -> None:
        """Takes again what agents said last of ``replicas``: a reload has described these by the file alone."""
        now = self.clock()
        for replica in replicas:
            row = self.rows.get(replica)
            if row is None or row.told is None or replica not in self.scheduler.states():
                continue
            connection = self.nodes.get(row.node)
            if connection is not None and row.owner is connection:
                row.ready = row.drained = False
                self._own(connection, row.told)
                self._apply(row, row.told, now)

    # ---- verbs --------------------------------------------------------------------------------------------------
    async def ask(
        self, node: str, verb: VerbName, replica: str = "", *, lines_max: int = 100, drain_s: float = -1.0
    ) -> VerbResult:
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
            "troubled": sum(row.state in _LEVELS for row in self.rows.values()),
            "address": self.address,
            "batches": self.batches,
            "reports": self.records,
            "agent_reports": self.agent_reports,
            "bytes": self.bytes_received,
            "accelerators": figures.accelerators(self._figures()),
        }

    def _figures(self) -> dict[str, MachineFigures]:
        return {name: connection.figures for name, connection in self.nodes.items()}

    def word(self, replica: ReplicaId) -> dict[str, object] | None:
        """What its agent last said of a replica; None where no connected agent speaks for it."""
        row = self.rows.get(replica)
        return None if row is None or row.owner is None else row.as_dict()

    def as_rows(self) -> list[dict[str, object]]:
        now = self.clock()
        return [connection.as_dict(now) for connection in self.nodes.values()]

    def families(self, nodes: Mapping[str, str] | None) -> Iterable[Family | None]:
        """For the gateway's own metrics; replicas' figures as sums by node where ``nodes`` are given."""
        connected = Family("exaserve_agents_connected", "gauge", "Node agents connected to this gateway.")
        connected.add(len(self.nodes))
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
        exits = Family("exaserve_engine_exits_total", "counter", "Ends of engines that nobody had asked for, by cause.")
        for cause, count in self.exits.items():
            exits.add(count, labels(cause=cause))
        restarts = Family("exaserve_replica_restarts", "gauge", "Restarts after failures, as the node's agent counts.")
        state = Family("exaserve_replica_lifecycle", "gauge", "1 for the state its agent says a replica is in.")
        for row in self.rows.values():
            where = {"replica": row.id} if nodes is None else {"node": row.node}
            if row.restarts:
                restarts.sum(row.restarts, labels(**where))
            state.sum(1, labels(**where, state=row.state))
        return [connected, *rest, exits, restarts, state, *figures.families(self._figures())]

    # ---- membership ---------------------------------------------------------------------------------------------
    def established(self, connection: NodeConnection, peer: Hello) -> None:
        """An agent has proved itself. WireError where another process speaks for its node: the first one keeps it."""
        old = self.nodes.get(peer.name)
        if old is not None and old.instance != peer.instance:
            raise WireError(
                f"node {peer.name} has an agent already, at {old.client}; end one of them, or give one another --node"
            )
        self.strangers.discard(connection)
        connection.node, connection.instance = peer.name, peer.instance
        if old is not None:
            self.log.info("agent_replaced", node=peer.name, why="the same agent connected again")
            old.replaced = True
            old.close()
        self.nodes[peer.name] = connection
        connection.send(FrameKind.HEARD, b"")
        self.log.info("agent_found", source="agent", node=peer.name, client=connection.client)

    def refusal(self, client: str, why: str) -> None:
        """A connection was refused. Agents try again for ever, so the same client is told of once in a while."""
        self.refused += 1
        now = self.clock()
        key = f"{client.rpartition(':')[0]} {why}"
        if now - self._refused_at.get(key, -_REFUSAL_EVERY_S) >= _REFUSAL_EVERY_S:
            if len(self._refused_at) >= _REFUSALS_MAX:
                self._refused_at.clear()
            self._refused_at[key] = now
            self.log.warning("agent_refused", client=client, why=why)

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
            self.members.back(row.id)

    def take_report(self, connection: NodeConnection, report: AgentReport) -> None:
        """What an agent says of its replicas. Those that a full report does not name are gone."""
        now = self.clock()
        named = set()
        for state in report.replicas:
            row = self._own(connection, state)
            if row is not None:
                named.add(row.id)
                self._apply(row, state, now)
        gone = [row for row in connection.rows.values() if row.id in report.gone]
        if report.full:
            gone += [row for row in self.rows.values() if row.node == connection.node and row.id not in named]
        for row in gone:
            connection.rows.pop(row.index, None)
            self._out(row, "its agent does not run it any more", now, left=True)
        self.on_report()

    def _own(self, connection: NodeConnection, state: AgentReplicaState) -> Row | None:
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

    def _apply(self, row: Row, state: AgentReplicaState, now: float) -> None:
        if row.told is not None:  # what was before this gateway heard of it is not counted
            for cause, grown in grown_exits(row.told.exits, state.exits):
                self.exits[cause] += grown
        row.told = state
        if row.pid and state.pid and row.pid != state.pid:
            self.fleet.restarted(row.id, f"process {state.pid} instead of {row.pid}", now)
        row.pid = state.pid or row.pid
        if state.state != row.state:
            level = _LEVELS.get(state.state, "debug")
            self.log.event(level, "replica_state", replica=row.id, node=row.node, state=state.state, why=state.reason)
        row.state, row.reason, row.restarts = state.state, state.reason, state.restarts
        if state.state == "draining":
            if not row.drained:
                row.drained = True
                self.scheduler.drain(row.id, returning=True)
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
        for connection in [each for each in self.strangers if each.heard_at < min(silent, now - HANDSHAKE_S)]:
            connection.broke(f"no handshake within {HANDSHAKE_S:g} s")
        if now >= self._heard_next:
            self._heard_next = now + _HEARD_S
            for connection in self.nodes.values():
                connection.send(FrameKind.HEARD, b"")
            for row in [row for row in self.rows.values() if row.owner is None and row.announced]:
                if now - row.lost_at > _FORGET_S:
                    self._forget(row)
