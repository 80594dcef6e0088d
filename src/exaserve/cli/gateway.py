"""``exaserve gateway``: one OpenAI-compatible endpoint in front of replicas."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from exaserve import __version__
from exaserve.cli.daemon import ConfigFile, LogLevel, stderr_log
from exaserve.cli.form import form
from exaserve.config import (
    Cluster,
    Pool,
    load_cluster,
    read_environment,
    read_secret,
    refuse_start,
    replica_from_url,
    same_address,
    split_address,
    state_dir_of,
)
from exaserve.config.discover import merge_discovery
from exaserve.config.guard import AuthMode
from exaserve.domain.errors import ConfigError

__all__ = ["gateway"]


_Discover = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Where to find replicas: consul://HOST:8500/SERVICE, kubernetes://NAMESPACE/SERVICE,"
        " dns:///_http._tcp.NAME or file:///PATH. Repeat for more.",
    ),
]


def gateway(
    replica: Annotated[
        list[str] | None,
        typer.Option("--replica", "-r", metavar="URL", help="A replica, as http://host:port. Repeat for more."),
    ] = None,
    config: ConfigFile = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 for all. [127.0.0.1]")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on, 0 for a free one. [8000]")
    ] = None,
    discover: _Discover = None,
    policy: Annotated[str | None, typer.Option(help="How replicas are chosen, such as round_robin. [entropy]")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Address of the admin API. [127.0.0.1]")] = None,
    admin_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the admin API, 0 for a free one. [8900]")
    ] = None,
    admin_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Bearer token of the admin API; needed beyond loopback.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What other gateways call this one. [host name and peer port]")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", metavar="HOST:PORT", help="Peer port of a gateway with the same replicas. Repeat for more."
        ),
    ] = None,
    peer_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where other gateways connect, to share their placements.")
    ] = None,
    peer_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Secret that peers share; needed beyond loopback.")
    ] = None,
    engine_api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API key of the engines, for probes and telemetry.")
    ] = None,
    auth: Annotated[
        AuthMode | None,
        typer.Option(help="keys: each request needs one; open: none does. [keys once there are any]"),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", metavar="DIR", help="Where keys and decisions are kept. [gateway.state_dir]"),
    ] = None,
    reuse_port: Annotated[
        bool, typer.Option("--reuse-port", help="Let several gateways on this machine share the port.")
    ] = False,
    log_level: LogLevel = "info",
) -> None:
    """Put one OpenAI-compatible endpoint in front of replicas.

    exaserve gateway --replica http://127.0.0.1:8001 --replica http://127.0.0.1:8002

    Stops on SIGTERM or Ctrl-C after the requests in flight (a second signal ends it at once). --config is read again
    when it changes, and on SIGHUP.
    """
    if config is None and not replica and not discover and (named := read_environment().config):
        config = Path(named)
    flags: dict[str, Any] = {"host": host, "port": port, "admin_host": admin_host, "admin_port": admin_port}
    files = {"engine_api_key_file": engine_api_key_file, "state_dir": state_dir, "admin_token_file": admin_token_file}
    flags |= {field: path and str(path) for field, path in files.items()} | _peer_flags(
        name, peer, peer_listen, peer_token_file
    )

    def load() -> Cluster:
        cluster = _cluster(config, replica or [], discover or [], policy, flags)
        return msgspec.structs.replace(
            cluster, auth=msgspec.structs.replace(cluster.auth, mode=auth) if auth else cluster.auth
        )

    cluster = load()
    options = {**_secrets(cluster, flags), "state_dir": state_dir_of(cluster.gateway), "reuse_port": reuse_port}
    options["watched"] = config if config is not None and config.is_file() else None
    _run(cluster, load if config is not None else None, options, log_level, refuse_start(cluster))


def _secrets(cluster: Cluster, flags: dict[str, Any]) -> dict[str, Any]:
    """What stands in files of its own. ConfigError names the flag or the key that named an unusable one."""

    def param(key: str) -> str:
        return f"gateway.{key}" if flags.get(key) is None else f"--{key.replace('_', '-')}"

    settings, agents = cluster.gateway, cluster.agents
    admin, peer, key = settings.admin_token_file, settings.peer_token_file, settings.engine_api_key_file
    agent = agents.token_file
    return {
        "admin_token": read_secret(admin, param("admin_token_file")) if admin else None,
        "peer_token": read_secret(peer, param("peer_token_file")) if peer else None,
        "agent_token": read_secret(agent, "agents.token_file") if agent and agents.enabled else None,
        "engine_api_key": read_secret(key, param("engine_api_key_file"), characters_min=1) if key else "",
    }


def _peer_flags(
    name: str | None, peers: list[str] | None, listen: str | None, token_file: Path | None
) -> dict[str, Any]:
    """ConfigError for an address that is none."""
    for flag, text, port_min in [("--peer", each, 1) for each in peers or ()] + [("--peer-listen", listen, 0)]:
        if text is not None:
            try:
                split_address(text, port_min=port_min)
            except ValueError as error:
                raise ConfigError(f"{flag}: {error}", param=flag) from None
    return {
        "name": name,
        "peers": tuple(peers) if peers else None,
        "peer_listen": listen,
        "peer_token_file": None if token_file is None else str(token_file),
    }


def _cluster(
    config: Path | None, urls: list[str], discover: list[str], policy: str | None, flags: dict[str, Any]
) -> Cluster:
    """The file (or none) with the flags laid over it. ConfigError where nothing is left to serve."""
    cluster = load_cluster(config) if config is not None else Cluster()
    if urls:
        _refuse_duplicates([spec.url for spec in cluster.replicas()], urls)
        cluster = msgspec.structs.replace(cluster, pools=(*cluster.pools, Pool(replicas=tuple(urls))))
    if discover:
        cluster = msgspec.structs.replace(cluster, discovery=merge_discovery(cluster.discovery, discover))
    if policy is not None:
        from exaserve.scheduling import POLICIES

        if policy not in POLICIES:
            names = ", ".join(sorted(POLICIES))
            raise ConfigError(f"--policy: unknown policy {policy!r}; choose one of {names}", param="--policy")
        cluster = msgspec.structs.replace(cluster, scheduling=dataclasses.replace(cluster.scheduling, policy=policy))
    given = {name: value for name, value in flags.items() if value is not None}
    if given:
        cluster = msgspec.structs.replace(cluster, gateway=msgspec.structs.replace(cluster.gateway, **given))
    if not cluster.replicas() and not cluster.discovery:
        raise ConfigError(
            "no replicas: give --replica http://host:port (once for each), a cluster file by --config, or say by"
            " --discover where to find them",
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


def _run(cluster: Cluster, load: Any, options: dict[str, Any], log_level: str, remarks: list[str]) -> None:
    import uvloop

    from exaserve.gateway.app import serve

    with stderr_log(log_level, remarks) as log:
        plain = "a request costs about half as much CPU again as where pip finds a C compiler"
        log.info("started", version=__version__, form=form(), note=plain if form() == "plain" else None)
        uvloop.run(serve(cluster, log=log, load=load, **options))
