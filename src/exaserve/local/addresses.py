"""Whether a cluster's addresses can be listened on, before anything starts, so that the field at fault can be named."""

from __future__ import annotations

import contextlib
import errno
import socket

import msgspec

from exaserve.config import Cluster, join_address, split_url
from exaserve.domain.errors import ConfigError

__all__ = ["check_addresses", "free_base_port", "shown_url"]

_SHIFT = 100
"""Ports are moved by this much at a time: more than a node's replicas in any sensible demonstration."""


def check_addresses(cluster: Cluster) -> None:
    """Raises ConfigError naming the field of an address that is in use, or not of this machine."""
    for i, pool in enumerate(cluster.pools):
        field = f"pools[{i}].base_port" if len(cluster.pools) > 1 else "base_port"
        for spec in cluster.started(pool):
            host, port = split_url(spec.url)
            _check_bind(host, port, field, f"nodes (address of {spec.node})")
    gateway = cluster.gateway
    for name, host, port in (
        ("gateway", gateway.host, gateway.port),
        ("gateway.admin", gateway.admin_host, gateway.admin_port),
    ):
        prefix = "gateway." if name == "gateway" else "gateway.admin_"
        if port == 0:
            raise ConfigError(f"{prefix}port: 0 is not possible here; give a port", param=f"{prefix}port")
        _check_bind(host, port, f"{prefix}port", f"{prefix}host")
    if cluster.agents.enabled:
        _check_bind(cluster.agents.host, cluster.agents.port, "agents.port", "agents.host")


def _check_bind(host: str, port: int, port_field: str, host_field: str) -> None:
    try:
        _bind(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"{port_field}: {join_address(host, port)} is already in use; give another port", param=port_field
            ) from None
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"{port_field}: no permission to listen on {join_address(host, port)}; ports below 1024 need root",
                param=port_field,
            ) from None
        raise ConfigError(
            f"{host_field}: {host} is not an address of this machine ({error.strerror}); replicas that run elsewhere "
            "belong under replicas, with their URLs",
            param=host_field,
        ) from None


def _bind(host: str, port: int) -> None:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def free_base_port(cluster: Cluster, tries_max: int = 50) -> Cluster:
    """The cluster on free ports, its own if possible: for a demonstration nobody should have to choose them."""
    for offset in range(0, tries_max * _SHIFT, _SHIFT):
        gateway = msgspec.structs.replace(
            cluster.gateway, port=cluster.gateway.port + offset, admin_port=cluster.gateway.admin_port + offset
        )
        pools = tuple(msgspec.structs.replace(pool, base_port=pool.base_port + offset) for pool in cluster.pools)
        moved = msgspec.structs.replace(cluster, gateway=gateway, pools=pools)
        with contextlib.suppress(ConfigError):
            check_addresses(moved)
            return moved
    check_addresses(cluster)
    return cluster


def shown_url(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 -- compared with, not bound
    return f"http://{join_address(host, port)}"
