"""``exaserve gateway``: one OpenAI-compatible endpoint in front of replicas."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from exaserve.config import Cluster, Pool, load_cluster, read_environment, replica_from_url, same_address
from exaserve.domain.errors import ConfigError

__all__ = ["gateway"]


def gateway(
    replica: Annotated[
        list[str] | None,
        typer.Option("--replica", "-r", metavar="URL", help="A replica, as http://host:port. Repeat for more."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Cluster file; flags win over what it says.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 for all. [127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on, 0 for a free one. [8000]")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="How replicas are chosen, such as round_robin. [entropy]")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin API. [127.0.0.1]")] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the admin API, 0 for a free one. [8900]")
    ] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bearer token of the admin API; needed beyond loopback.")
    ] = None,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Let several gateways on this machine share the port.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Put one OpenAI-compatible endpoint in front of replicas.

    exaserve gateway --replica http://127.0.0.1:8001 --replica http://127.0.0.1:8002

    Stops on SIGTERM or Ctrl-C after the requests in flight (a second signal ends it at once); SIGHUP reads --config
    again.
    """
    if config is None and not replica and (named := read_environment().config):
        config = Path(named)
    flags = {"host": host, "port": port, "admin_host": admin_host, "admin_port": admin_port}

    def load() -> Cluster:
        return _cluster(config, replica or [], policy, flags)

    cluster = load()
    token = _token(admin_token_file)
    _run(cluster, load if config is not None else None, token, reuse_port=reuse_port, log_level=log_level)


def _cluster(config: Path | None, urls: list[str], policy: str | None, flags: dict[str, Any]) -> Cluster:
    """The file (or none) with the flags laid over it. ConfigError where nothing is left to serve."""
    cluster = load_cluster(config) if config is not None else Cluster()
    if urls:
        _refuse_duplicates([spec.url for spec in cluster.replicas()], urls)
        cluster = msgspec.structs.replace(cluster, pools=(*cluster.pools, Pool(replicas=tuple(urls))))
    if policy is not None:
        from exaserve.scheduling import POLICIES

        if policy not in POLICIES:
            names = ", ".join(sorted(POLICIES))
            raise ConfigError(f"--policy: unknown policy {policy!r}; choose one of {names}", param="--policy")
        cluster = msgspec.structs.replace(cluster, scheduling=dataclasses.replace(cluster.scheduling, policy=policy))
    given = {name: value for name, value in flags.items() if value is not None}
    if given:
        cluster = msgspec.structs.replace(cluster, gateway=msgspec.structs.replace(cluster.gateway, **given))
    if not cluster.replicas():
        raise ConfigError(
            "no replicas: give --replica http://host:port (once for each), or a cluster file by --config",
            param="--replica",
        )
    return cluster


def _refuse_duplicates(known: list[str], urls: list[str]) -> None:
    seen = {same_address(url): url for url in known}
    for url in urls:
        plain = replica_from_url(url).url
        key = same_address(plain)
        if key in seen:
            raise ConfigError(f"--replica {url}: the same address as {seen[key]}; name it once", param="--replica")
        seen[key] = url


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--admin-token-file {path}: cannot be read: {error}", param="--admin-token-file") from None
    if len(token) < 16 or not token.isascii():
        raise ConfigError(
            f"--admin-token-file {path}: must hold at least 16 ASCII characters", param="--admin-token-file"
        )
    return token


def _run(cluster: Cluster, load: Any, token: str | None, *, reuse_port: bool, log_level: str) -> None:
    import uvloop

    from exaserve.gateway.app import serve
    from exaserve.observe import EventLog, LineSink
    from exaserve.observe.log import LEVELS

    if log_level not in LEVELS:
        raise ConfigError(f"--log-level: {log_level!r} is none of {', '.join(LEVELS)}", param="--log-level")
    sink = LineSink(sys.stderr)
    try:
        log = EventLog(sink, level=log_level)
        uvloop.run(serve(cluster, log=log, load=load, admin_token=token, reuse_port=reuse_port))
    finally:
        sink.close()
