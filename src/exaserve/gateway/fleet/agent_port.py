"""Builds the gateway's port for agents, and refuses one that strangers could use."""

from __future__ import annotations

from collections.abc import Callable

from exaserve.config import AgentSettings, is_loopback
from exaserve.domain.errors import ConfigError
from exaserve.gateway.fleet.agents import AgentServer
from exaserve.gateway.fleet.members import Members
from exaserve.gateway.fleet.telemetry import Telemetry
from exaserve.observe import EventLog
from exaserve.serving.fleet import Fleet
from exaserve.wire.tls import mutual_tls

__all__ = ["agents_of"]


def agents_of(
    settings: AgentSettings,
    name: str,
    token: str | None,
    members: Members,
    fleet: Fleet,
    telemetry: Telemetry,
    log: EventLog,
    on_report: Callable[[], None],
    clock: Callable[[], float],
) -> AgentServer:
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
    return AgentServer(
        settings,
        name,
        None if token is None else token.encode(),
        tls,
        members,
        fleet,
        telemetry,
        log,
        on_report,
        clock,
    )
