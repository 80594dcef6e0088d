"""Addresses of replicas, as flags and the cluster file give them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaId, ReplicaSpec

__all__ = [
    "check_host",
    "is_every_address",
    "is_loopback",
    "join_address",
    "replica_from_url",
    "same_address",
    "same_host",
    "split_address",
    "split_url",
]

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}(?<!-)")


def split_url(url: str) -> tuple[str, int]:
    """Host and port of ``http://host:port``.

    Raises:
        ValueError: with what is wrong and how to write it.
    """
    example = "write it as http://host:port"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!a} is not an address ({error}); {example}") from None
    if parts.scheme == "https":
        raise ValueError(f"{url!a}: replicas are reached over plain HTTP; {example}")
    if parts.scheme != "http" or not url.startswith("http://"):
        raise ValueError(f"{url!a} has no http:// in front; {example}")
    if "@" in parts.netloc:
        raise ValueError(f"{url!a} holds a user name; {example}")
    if parts.path not in ("", "/") or parts.query or parts.fragment or url.endswith(("?", "#")):
        raise ValueError(f"{url!a} has a path; leave it out: http://{parts.netloc}")
    host = parts.hostname or ""
    check_host(host)
    if port == 0:
        raise ValueError(f"{url!a}: a replica's port is from 1 to 65535")
    return host, port or 80


def split_address(text: str, *, port_min: int = 1) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[IPv6]:port``.

    Raises:
        ValueError: with what is wrong and how to write it.
    """
    host, colon, digits = text.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{text!a} is not an address; write it as host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!a}: put an IPv6 address in brackets, such as [::1]:8901")
    if not (digits.isascii() and digits.isdigit() and port_min <= int(digits) <= 65_535):
        raise ValueError(f"{text!a}: the port must be a number from {port_min} to 65535")
    check_host(host)
    return host, int(digits)


def join_address(host: str, port: int) -> str:
    """``host:port``, or ``[host]:port`` where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_host(host: str) -> None:
    """Raises ValueError unless ``host`` is a name or an IP address, without brackets."""
    if host.startswith("["):
        raise ValueError(f"{host!a}: write an IPv6 address without brackets here, such as ::1")
    if ":" in host:
        ipaddress.ip_address(host)
    elif not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!a} is not a host name or address")


def is_every_address(host: str) -> bool:
    """Whether listening there is listening on all of a machine's addresses."""
    return host in ("0.0.0.0", "::", "")  # noqa: S104 (compared, not bound)


def same_host(one: str, other: str) -> bool:
    """Whether a port of the one may be a port of the other."""
    return one == other or is_every_address(one) or is_every_address(other)


def same_address(url: str) -> str:
    """A key under which two spellings of one address are equal."""
    host, port = split_url(url)
    host = host.lower().rstrip(".")
    if ":" in host:
        host = ipaddress.ip_address(host).compressed
    return join_address("127.0.0.1" if host == "localhost" else host, port)


def replica_from_url(url: str, models: tuple[str, ...] = (), param: str = "--replica") -> ReplicaSpec:
    """A replica known by its URL alone; its id is ``host:port``.

    Raises:
        ConfigError: naming ``param``.
    """
    try:
        host, port = split_url(url)
    except ValueError as error:
        raise ConfigError(f"{param}: {error}", param=param) from None
    where = join_address(host, port)
    return ReplicaSpec(ReplicaId(where), f"http://{where}", models)
