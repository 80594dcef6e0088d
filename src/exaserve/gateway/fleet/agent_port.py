"""Builds the gateway's port for agents, and refuses one that strangers could use."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from exaserve.config import AgentSettings, Cluster, is_loopback
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.gateway.data_plane import DataPlane
from exaserve.gateway.fleet.agents import AgentServer
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.observe import EventLog
from exaserve.serving.fleet import Fleet
from exaserve.wire.tls import mutual_tls

__all__ = ["agents_of"]


class Host(Protocol):
    """What of a gateway the agents' port needs."""

    cluster: Cluster
    log: EventLog
    clock: Callable[[], float]
    fleet: Fleet
    data_plane: DataPlane
    telemetry: Telemetry

    def joined(self, spec: ReplicaSpec) -> None: ...

    def changed(self, old: ReplicaSpec, new: ReplicaSpec) -> None: ...

    def left(self, replica: ReplicaId) -> None: ...


def agents_of(settings: AgentSettings, host: Host, token: str | None) -> AgentServer:
    """The server for agents, not yet listening.

    Raises:
        ConfigError: other machines could reach it and neither a token nor mutual TLS keeps strangers out.
    """
    tls = mutual_tls("server", settings.tls_cert, settings.tls_key, settings.tls_ca)
    if token is None and tls is None and not is_loopback(settings.host):
        raise ConfigError(
            f"agents.host {settings.host} can be reached from other machines; give agents.token_file or mutual TLS",
            param="agents.host",
        )
    name = host.cluster.gateway.name or f"{socket.gethostname()}:{host.cluster.gateway.port}"
    return AgentServer(
        settings,
        name,
        None if token is None else token.encode(),
        tls,
        host,
        host.fleet,
        host.telemetry,
        host.log,
        host.data_plane.wake,
        host.clock,
    )
