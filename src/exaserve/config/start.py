"""What only a start needs: secrets that can be read, and ports that strangers cannot use.

One set of checks for ``exaserve config check`` and for every command that starts something, which looks again after its
flags were laid over the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from exaserve.config.cluster import Cluster
from exaserve.config.environment import gateway_folder
from exaserve.config.secret import open_to_all, read_secret
from exaserve.config.settings import AgentSettings, GatewaySettings
from exaserve.config.urls import is_loopback, split_address
from exaserve.domain.errors import ConfigError

__all__ = ["refuse_start", "secret_remarks", "start_problems", "state_dir_of"]


def state_dir_of(gateway: GatewaySettings) -> Path | None:
    """The gateway's state folder; None where it keeps nothing: on a free port the next one would not find it again."""
    if gateway.state_dir == "memory":
        return None
    if gateway.state_dir:
        return Path(gateway.state_dir)
    return gateway_folder(gateway.port) if gateway.port else None


def start_problems(gateway: GatewaySettings, agents: AgentSettings) -> Iterator[tuple[str, str]]:
    """``(field, what is wrong)``."""
    for field, file, characters_min in _secrets(gateway, agents):
        try:
            read_secret(file, "", characters_min=characters_min)
        except ConfigError as error:
            yield field, error.message.strip()
    if not is_loopback(gateway.admin_host) and not gateway.admin_token_file:
        yield "gateway.admin_host", _open(gateway.admin_host, "gateway.admin_token_file")
    if not gateway.peer_token_file:
        listen = [("gateway.peer_listen", gateway.peer_listen)] if gateway.peer_listen else []
        peers = [(f"gateway.peers[{i}]", peer) for i, peer in enumerate(gateway.peers)]
        yield from _beyond([*listen, *peers], "gateway.peer_token_file")
    if agents.enabled and not agents.token_file and not agents.tls_cert:
        if not is_loopback(agents.host):
            yield "agents.host", _open(agents.host, "agents.token_file or mutual TLS")
        gateways = [(f"agents.gateways[{i}]", each) for i, each in enumerate(agents.gateways)]
        yield from _beyond(gateways, "agents.token_file or mutual TLS")


def _open(host: str, repair: str) -> str:
    return f"{host} can be reached from other machines; give {repair}, or stay on 127.0.0.1"


def _beyond(addresses: list[tuple[str, str]], repair: str) -> Iterator[tuple[str, str]]:
    """Those that are not on this machine's loopback; what is no address is told elsewhere."""
    for field, text in addresses:
        try:
            host, _ = split_address(text, port_min=0)
        except ValueError:
            continue
        if not is_loopback(host):
            yield field, _open(text, repair)


def _secrets(gateway: GatewaySettings, agents: AgentSettings) -> Iterator[tuple[str, str, int]]:
    """Field, file and least length of every secret that is named."""
    for name, characters_min in (("admin_token_file", 16), ("peer_token_file", 16), ("engine_api_key_file", 1)):
        if file := getattr(gateway, name):
            yield f"gateway.{name}", file, characters_min
    if agents.enabled and agents.token_file:
        yield "agents.token_file", agents.token_file, 16


def secret_remarks(gateway: GatewaySettings, agents: AgentSettings) -> Iterator[tuple[str, str]]:
    """Secrets that everyone on this machine may replace."""
    for field, file, _ in _secrets(gateway, agents):
        if open_to_all(file):
            yield field, f"everyone on this machine may write {file}, and so put in a secret of their own; chmod 600"


def refuse_start(cluster: Cluster, *, agent: bool = False) -> list[str]:
    """Looks at what a command is about to start, flags included; returns what is worth a remark.

    Args:
        agent: a node's agent starts, which has nothing of the gateway's but the engines' key.

    Raises:
        ConfigError: names the first field that is wrong.
    """
    gateway, agents = cluster.gateway, cluster.agents
    if agent:
        gateway = GatewaySettings(engine_api_key_file=gateway.engine_api_key_file)
        agents = msgspec.structs.replace(agents, enabled=True)
    for field, message in start_problems(gateway, agents):
        raise ConfigError(f"{field}: {message}", param=field)
    return [f"{field}: {message}" for field, message in secret_remarks(gateway, agents)]
