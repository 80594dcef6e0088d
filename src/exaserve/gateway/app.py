"""The gateway process: builds everything, passes it on, takes it down again. The only place that knows all parts."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from exaserve.config import ClientLimits, Cluster, GatewaySettings, join_address, read_environment
from exaserve.domain.errors import ConfigError
from exaserve.gateway.admin.api import AdminServer
from exaserve.gateway.core import Core
from exaserve.gateway.data_plane import DataPlane, tune_gc
from exaserve.gateway.fleet.agent_port import agents_of
from exaserve.gateway.fleet.agents import AgentServer
from exaserve.gateway.fleet.gauges import ReplicaGauges
from exaserve.gateway.fleet.members import Members
from exaserve.gateway.fleet.probes import Probes
from exaserve.gateway.fleet.registries import Registries, sources_of, watch_file
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.gateway.guard.keeper import GuardKeeper
from exaserve.gateway.guard.state import ControlState
from exaserve.gateway.peers.control_sync import ControlSync
from exaserve.gateway.peers.limit_sync import LimitSync
from exaserve.gateway.peers.peering import Peering
from exaserve.gateway.peers.replication import Outbox, ReplicatingScheduler
from exaserve.gateway.reload import ClusterChange, Reloads, compare
from exaserve.observe import EventLog, GatewayMetrics
from exaserve.scheduling import Admission, Scheduler
from exaserve.serving.fleet import Fleet
from exaserve.serving.member import ChangeKind, FleetChange
from exaserve.wire import FrameKind

__all__ = ["Gateway", "fit_to_file_limit", "serve"]

BACKLOG = 4096
"""Connections the kernel holds for us: a burst of thousands of clients must not see a retransmitted SYN."""


class Gateway:
    """One gateway: data plane, scheduler, telemetry, probes, admin API.

    Args:
        cluster: replicas and settings.
        log: where events go.
        rng: chance for the policies; seeded in tests.
        admin_token: what the admin API asks for as a bearer token; None asks for none, on loopback only.
        agent_token: the secret that this gateway and node agents share; None for none, on loopback only.
        peer_token: the secret that gateways share; None for none, on loopback only.
        engine_api_key: what the engines want from probes and telemetry, "" for none.
        state_dir: where keys, decisions and use are kept; None keeps them in memory.
        reuse_port: whether several gateways of this machine share the port.
        clock: monotonic seconds; one clock for everything.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        log: EventLog,
        rng: Random | None = None,
        admin_token: str | None = None,
        peer_token: str | None = None,
        agent_token: str | None = None,
        engine_api_key: str = "",
        state_dir: Path | None = None,
        reuse_port: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster = cluster
        self.log = log
        self.clock = clock
        self._reuse_port = reuse_port
        settings = cluster.gateway
        rng = rng or Random()
        outbox = Outbox() if settings.peers or settings.peer_listen else None
        policy = cluster.scheduling
        self.scheduler = Scheduler(policy, rng) if outbox is None else ReplicatingScheduler(policy, rng, outbox)
        self.admission = Admission(cluster.admission)
        self.fleet = Fleet(self.scheduler, cluster.health, self._changes_wait)
        self.metrics = GatewayMetrics()
        self.core = Core(settings, self.fleet, self.admission, self.metrics, clock)
        if settings.access_log:
            self.core.access = log.line
        self.data_plane = DataPlane(self.core)
        self.telemetry = Telemetry(
            cluster.telemetry,
            self.fleet,
            log,
            self.data_plane.wake,
            clock,
            engine_api_key,
            cluster.agents.interval_s if cluster.agents.enabled else 0.0,
        )
        self.core.engine_of = self.telemetry.engine
        self.members = Members(self.fleet, self.telemetry, self.core.pool, clock)
        if engine_api_key:
            self.core.engine_line = b"\r\nAuthorization: Bearer " + engine_api_key.encode()
        self.control = ControlState(state_dir, f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}", log)
        self.keeper = GuardKeeper(self.control, self.core, cluster, log)
        self.members.on_join = self.keeper.joined
        self.probes = Probes(self.fleet, log, self.data_plane.wake, clock, engine_api_key)
        self._shared_limits: LimitSync | None = None
        self.peering = None if outbox is None else self._peers(peer_token, outbox, rng)
        self.registries = self._registries() if cluster.discovery else None
        self.agents: AgentServer | None = None
        if cluster.agents.enabled:
            self.agents = agents_of(
                cluster.agents,
                settings.name or f"{socket.gethostname()}:{settings.port}",
                agent_token,
                self.members,
                self.fleet,
                self.telemetry,
                log,
                self.data_plane.wake,
                clock,
            )
        self.admin = AdminServer(self, settings.admin_host, settings.admin_port, admin_token)
        self._server: asyncio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._ready_told = False
        self.url = ""
        self.admin_url = ""
        self._add_metric_sources()

    def _registries(self) -> Registries:
        discovery = self.cluster.discovery
        sources = sources_of(discovery, read_environment(), self.log)
        return Registries(
            sources, self.members, self.scheduler, self.log, self.data_plane.wake, discovery.shrink_hold_s
        )

    def _peers(self, token: str | None, outbox: Outbox, rng: Random) -> Peering:
        wake = self.data_plane.wake
        peering = Peering(self.cluster.gateway, token, self.scheduler, outbox, self.log, self.clock, rng, wake)
        sync = ControlSync(self.control, peering.links)
        peering.takers[FrameKind.CONTROL] = sync.took
        peering.on_greeted.append(sync.greeted)
        control = self.control
        shared = LimitSync(
            self.keeper.limits, peering.links, peering.expected, self.keeper.periods, control.wall, self.log
        )
        peering.takers[FrameKind.LIMITS] = shared.took
        peering.on_greeted.append(shared.greeted)
        peering.on_lost.append(shared.lost)
        self._shared_limits = shared
        return peering

    def _add_metric_sources(self) -> None:
        peering, registries = self.peering, self.registries
        if peering is not None:
            self.metrics.add_source(lambda _: peering.families())
        if registries is not None:
            self.metrics.add_source(lambda _: registries.families())
        if self.agents is not None:
            self.metrics.add_source(self.agents.families)
        self.metrics.add_source(self.telemetry.families)
        self.metrics.add_source(self.keeper.families)
        self.metrics.add_source(ReplicaGauges(self.fleet, self.clock).families)
        self.metrics.nodes = self._nodes

    # ---- life ---------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Listens, adds the replicas, begins to probe and poll.

        Raises:
            ConfigError: an address is in use or not ours; nothing is left open.
        """
        settings = self.cluster.gateway
        self.keeper.refuse_open(settings.host)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self.data_plane.client_protocol,
                settings.host,
                settings.port,
                backlog=BACKLOG,
                reuse_port=self._reuse_port or None,
            )
        except OSError as error:
            raise _cannot_listen(settings.host, settings.port, error, "gateway.port", "clients", "--port") from None
        self.url = _url(settings.host, self._server.sockets[0].getsockname()[1])
        try:
            self.admin_url = await self.admin.start()
        except OSError as error:
            self._server.close()
            raise _cannot_listen(
                settings.admin_host, settings.admin_port, error, "gateway.admin_port", "the admin API", "--admin-port"
            ) from None
        except ConfigError:
            self._server.close()
            raise
        self.data_plane.start()
        await self.keeper.start()
        for spec in self.cluster.replicas():
            self.members.joined(spec)
        if self.agents is not None:
            try:
                await self.agents.start()
            except OSError as error:
                await self.stop(0.0)
                agents = self.cluster.agents
                raise _cannot_listen(agents.host, agents.port, error, "agents.port", "agents", "agents.port") from None
            for pool in self.cluster.pools:
                self.agents.expect(self.cluster.started(pool))
        if self.peering is not None:
            try:
                await self.peering.start()
            except ConfigError:
                await self.stop(0.0)
                raise
            assert self._shared_limits is not None
            self._shared_limits.start()
        self.probes.start()
        self.telemetry.start()
        if self.registries is not None:
            self.registries.start()
        self.log.info(
            "listening",
            url=self.url,
            admin=self.admin_url,
            replicas=len(self.scheduler.states()),
            policy=self.scheduler.policy_name,
        )

    async def stop(self, drain_s: float | None = None) -> None:
        """Graceful end: not ready, then no new connections, then requests in flight for ``drain_s``, then nothing."""
        self.core.stop()
        drain_s = self.cluster.gateway.drain_s if drain_s is None else drain_s
        began = self.clock()
        self.log.info("stopping", inflight=self.data_plane.inflight(), drain_s=drain_s)
        try:
            if drain_s > 0:
                await asyncio.sleep(min(self.cluster.gateway.linger_s, drain_s))
            if self._server is not None:
                self._server.close()
            await self.data_plane.drain(max(0.0, drain_s - (self.clock() - began)))
        finally:
            if self._server is not None:
                self._server.close()
            cut = self.data_plane.inflight()
            if self.registries is not None:
                await self.registries.stop()
            self.telemetry.stop()
            await self.probes.stop()
            if self.agents is not None:
                await self.agents.stop()
            await self.data_plane.close()
            if self.peering is not None:
                await self.peering.stop()
            await self.admin.stop()
            if self._shared_limits is not None:
                await self._shared_limits.stop()
            await self.keeper.stop()
            self.log.info("stopped", requests=self.metrics.finished_total, cut=cut, took_s=self.clock() - began)

    # ---- reload -------------------------------------------------------------------------------------------------
    def reload(self, cluster: Cluster) -> list[str]:
        """Takes a new cluster file: replicas come, go and change, the policy switches. Requests in flight go on.

        Returns what changed, one line each. What only a restart can change is said in the log and left as it is.
        """
        difference = compare(self.cluster, cluster)
        self.take(difference)
        return list(difference.lines)

    def take(self, difference: ClusterChange) -> None:
        """Carries out a reload; costs by what differs. Nothing else is touched, asked or probed again."""
        cluster = difference.cluster
        for replica in difference.removed:
            self.members.left(replica)
        touched = {spec.id for _, spec in difference.changed}
        for old, spec in difference.changed:
            self.members.changed(old, spec)
        for spec in difference.added:
            if self.agents is not None and self.agents.adopt(spec.id):
                touched.add(spec.id)
                self.members.changed(self.scheduler.states()[spec.id].spec, spec)
                continue
            if self.registries is not None:
                self.registries.give_up(spec.id, "the cluster file")
            self.members.joined(spec)
        if cluster.scheduling.policy != self.cluster.scheduling.policy:
            self.keeper.levers.policy = cluster.scheduling.policy
            self.keeper.levers.apply_policy()
        self.keeper.reload(cluster)
        for line in difference.lines:
            self.log.info("reload_change", change=line)
        if restart := difference.needs_restart:
            self.log.warning("reload_needs_restart", settings=", ".join(restart))
        kept = self.cluster
        self.cluster = msgspec.structs.replace(
            kept,
            nodes=cluster.nodes,
            pools=cluster.pools,
            limits=cluster.limits,
            prices=cluster.prices,
            scheduling=dataclasses.replace(kept.scheduling, policy=cluster.scheduling.policy),
        )
        if self.registries is not None:
            self.registries.reconcile("the cluster file")
        if self.agents is not None:
            self.agents.retell(touched)
        self.log.info("reloaded", changes=len(difference.lines), replicas=len(self.scheduler.states()))
        self.data_plane.wake()

    def _nodes(self) -> dict[str, str] | None:
        """Each replica's node, where there are too many of them for a series each."""
        members = self.fleet.members()
        if len(members) <= self.cluster.gateway.replica_series_max:
            return None
        return {replica: member.ledger.spec.node for replica, member in members.items()}

    # ---- what the fleet wants done --------------------------------------------------------------------------------
    def _changes_wait(self) -> None:
        # Not from here: whoever found the trouble is in the middle of its own request. And once for all that changes
        # together: a look at the queue for each of thousands would cost their square.
        asyncio.get_running_loop().call_soon(self._carry_out)

    def _carry_out(self) -> None:
        for change in self.fleet.take():
            if change.kind is ChangeKind.LEAVE:
                if moved := self.data_plane.evacuate(change.replica):
                    self.log.info("requests_moved", replica=change.replica, count=moved, why=change.why)
                continue
            self._tell(change)
            if change.kind is ChangeKind.DOWN:
                self.core.pool.forget(change.replica)
            elif change.kind is ChangeKind.RESTARTED:
                self.telemetry.restarted(change.replica)
                self.core.pool.forget(change.replica)
        ready = bool(self.scheduler.ready_models())
        if ready != self._ready_told:
            self._ready_told = ready
            if ready:
                self.log.info("ready", url=self.url, models=",".join(self.scheduler.ready_models()))
            else:
                self.log.warning("not_ready", why="no replica may take requests")
        self.data_plane.wake()

    def _tell(self, change: FleetChange) -> None:
        well = change.kind in (ChangeKind.UP, ChangeKind.GIVEN_BACK, ChangeKind.TRUSTED)
        fields: dict[str, object] = {"replica": change.replica, "why": change.why}
        if change.kind is ChangeKind.UP:
            fields["share"] = change.share
        elif change.kind in (ChangeKind.DOWN, ChangeKind.WITHHELD):
            fields["inflight"] = change.inflight
        self.log.event("info" if well else "warning", change.kind.value, **fields)


def _url(host: str, port: int) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 (compared, not bound)
    return f"http://{join_address(shown, port)}"


def _cannot_listen(host: str, port: int, error: OSError, param: str, whom: str, repair: str) -> ConfigError:
    where = f"cannot listen on {join_address(host, port)} for {whom} ({param})"
    if error.errno == errno.EADDRINUSE:
        # The listener for clients closes at the start of a drain, the others at its end.
        draining = "" if param == "gateway.port" else ", perhaps by a gateway that still finishes its requests"
        return ConfigError(f"{where}: the port is in use{draining}; choose another with {repair}", param=param)
    if error.errno == errno.EACCES:
        return ConfigError(f"{where}: ports below 1024 need the right to bind them", param=param)
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"{where}: this machine does not have that address", param=param)
    return ConfigError(f"{where}: {error.strerror or error}", param=param)


def fit_to_file_limit(settings: GatewaySettings, replicas: int, log: EventLog) -> GatewaySettings:
    """Raises the soft limit on open files to the hard one, says what it allows, and bounds client connections by it.

    A request holds two files, the client's connection and a replica's; each replica two more, for telemetry and probes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    allowed = max(16, (limit - 64 - 2 * replicas) // 2)
    wanted = settings.limits.connections_max
    if allowed >= wanted:
        log.info("file_limit", files=limit, client_connections_max=wanted)
        return settings
    log.event(
        "info" if allowed >= 4096 else "warning",
        "file_limit",
        files=limit,
        client_connections_max=allowed,
        wanted=wanted,
        repair="raise ulimit -n",
    )
    return msgspec.structs.replace(settings, limits=msgspec.structs.replace(settings.limits, connections_max=allowed))


async def serve(
    cluster: Cluster,
    *,
    log: EventLog,
    load: Callable[[], Cluster] | None = None,
    ready: Callable[[Gateway], None] | None = None,
    admin_token: str | None = None,
    peer_token: str | None = None,
    agent_token: str | None = None,
    engine_api_key: str = "",
    state_dir: Path | None = None,
    reuse_port: bool = False,
    watched: Path | None = None,
) -> None:
    """Runs a gateway until SIGTERM or SIGINT; a second one ends it at once. SIGHUP reloads by ``load``.

    Args:
        load: reads the cluster again, raising ConfigError where it is wrong (then the old one is kept).
        ready: called once when the gateway listens.
        watched: file whose every change reloads too.
    """
    asked = cluster.gateway.limits
    settings = fit_to_file_limit(cluster.gateway, len(cluster.replicas()), log)
    cluster = msgspec.structs.replace(cluster, gateway=settings)
    gateway = Gateway(
        cluster,
        log=log,
        admin_token=admin_token,
        peer_token=peer_token,
        agent_token=agent_token,
        engine_api_key=engine_api_key,
        state_dir=state_dir,
        reuse_port=reuse_port,
    )
    loop = asyncio.get_running_loop()
    await gateway.start()
    stop = asyncio.Event()
    force = asyncio.Event()

    def on_stop() -> None:
        (force if stop.is_set() else stop).set()

    def read() -> Cluster:
        assert load is not None
        return _as_fitted(load(), asked, settings.limits)

    reloads = Reloads(lambda: gateway.cluster, read, gateway.take, log)

    def on_reload() -> None:
        if load is None:
            log.warning("reload_ignored", why="started without a cluster file")
        else:
            reloads.ask()

    for number, handler in ((signal.SIGTERM, on_stop), (signal.SIGINT, on_stop), (signal.SIGHUP, on_reload)):
        loop.add_signal_handler(number, handler)
    tasks = [loop.create_task(reloads.run())]
    if watched is not None:
        tasks.append(loop.create_task(watch_file(watched, on_reload)))
    try:
        tune_gc()
        if ready is not None:
            ready(gateway)
        await stop.wait()
    finally:
        for task in tasks:
            task.cancel()
        await _stop(gateway, force)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)


def _as_fitted(cluster: Cluster, asked: ClientLimits, fitted: ClientLimits) -> Cluster:
    """A cluster read again, whose limits did not change in the file and so do not against what they were fitted to."""
    if cluster.gateway.limits != asked:
        return cluster
    return msgspec.structs.replace(cluster, gateway=msgspec.structs.replace(cluster.gateway, limits=fitted))


async def _stop(gateway: Gateway, force: asyncio.Event) -> None:
    stopping = asyncio.create_task(gateway.stop())
    forced = asyncio.create_task(force.wait())
    await asyncio.wait({stopping, forced}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        gateway.log.warning("stop_forced", inflight=gateway.data_plane.inflight())
        stopping.cancel()
    forced.cancel()
    await asyncio.gather(stopping, forced, return_exceptions=True)
