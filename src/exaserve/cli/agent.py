"""``exaserve agent``: starts a node's engines, watches them, and tells every gateway."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from exaserve.cli.daemon import ConfigFile, LogLevel, stderr_log
from exaserve.config import (
    Cluster,
    NodeEntry,
    Pool,
    diff,
    is_loopback,
    join_address,
    load_cluster,
    read_environment,
    read_secret,
    refuse_start,
    state_folder,
)
from exaserve.config import split_address as split
from exaserve.domain.errors import ConfigError

if TYPE_CHECKING:
    from exaserve.agent.node import NodeAgent
    from exaserve.agent.plan import UnitPlan
    from exaserve.observe import EventLog

__all__ = ["agent"]


def agent(
    config: ConfigFile = None,
    node: Annotated[
        str | None, typer.Option(help="Which of the file's nodes this is. [the one with this host's name or address]")
    ] = None,
    all_nodes: Annotated[
        bool, typer.Option("--all-nodes", help="Be the agent of every node of the file, for trials on one machine.")
    ] = False,
    gateway: Annotated[
        list[str] | None,
        typer.Option("--gateway", "-g", metavar="HOST:PORT", help="Agent port of a gateway. Repeat for more."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Without a file: what the engines load.")] = None,
    engine: Annotated[str, typer.Option(help="Without a file: vllm, sglang, trtllm, llamacpp or emulator.")] = "vllm",
    replicas: Annotated[int, typer.Option(min=1, help="Without a file: engines on this node.")] = 1,
    tp: Annotated[int, typer.Option(min=1, help="Without a file: tensor parallel size.")] = 1,
    address: Annotated[str | None, typer.Option(help="Without a file: this node's address. [this host's]")] = None,
    base_port: Annotated[int, typer.Option(min=1, max=65535, help="Without a file: port of the first engine.")] = 8001,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Secret shared with the gateways; needed beyond loopback.")
    ] = None,
    engine_api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="API key of the engines, for probes and samples.")
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where logs and caches of engines are.")] = None,
    log_level: LogLevel = "info",
) -> None:
    """Start this node's engines, watch and measure them, and tell every gateway.

    exaserve agent --config cluster.yaml --node node3

    SIGTERM or Ctrl-C drains the engines and stops them (a second one does not wait); nothing of them is left behind,
    however this process ends. On SIGHUP --config is read again: replicas of this node come, go and change.
    """
    if config is None and model is None and (named := read_environment().config):
        config = Path(named)
    flags = {
        "gateways": tuple(gateway) if gateway else None,
        "token_file": None if token_file is None else str(token_file),
        "state_dir": None if state_dir is None else str(state_dir),
    }
    key_file = None if engine_api_key_file is None else str(engine_api_key_file)

    def load() -> Cluster:
        if config is not None:
            return _with_flags(load_cluster(config), flags, key_file)
        if model is not None:
            return _with_flags(_from_flags(model, engine, replicas, tp, node, address, base_port), flags, key_file)
        raise ConfigError("give a cluster file by --config, or --model", param="--config")

    cluster = load()
    remarks = refuse_start(cluster, agent=True)
    nodes = cluster.nodes if all_nodes else (_this_node(cluster, node),)
    _run(cluster, nodes, load if config is not None else None, log_level, remarks)


def _with_flags(cluster: Cluster, flags: dict[str, Any], key_file: str | None) -> Cluster:
    given = {name: value for name, value in flags.items() if value is not None}
    gateway = cluster.gateway
    if key_file is not None:
        gateway = msgspec.structs.replace(gateway, engine_api_key_file=key_file)
    return msgspec.structs.replace(cluster, agents=msgspec.structs.replace(cluster.agents, **given), gateway=gateway)


def _from_flags(
    model: str, engine: str, replicas: int, tp: int, node: str | None, address: str | None, base_port: int
) -> Cluster:
    host = socket.gethostname()
    pool = msgspec.convert(
        {
            "model": model,
            "engine": engine,
            "num_replicas_per_node": replicas,
            "tensor_parallel_size": tp,
            "base_port": base_port,
        },
        Pool,
        strict=False,
    )
    return Cluster(nodes=(NodeEntry(name=node or host, address=address or host),), pools=(pool,))


def _this_node(cluster: Cluster, name: str | None) -> NodeEntry:
    """The node by name; else by this host's name or an address that this machine has."""
    from exaserve.agent.plan import node_of

    if name is not None:
        return node_of(cluster, name)
    hosts = {socket.gethostname(), socket.gethostname().partition(".")[0], socket.getfqdn()}
    for node in cluster.nodes:
        if node.name in hosts or node.address in hosts:
            return node
    mine = [node for node in cluster.nodes if not is_loopback(node.address) and _is_ours(node.address)]
    if len(mine) == 1:
        return mine[0]
    if len(cluster.nodes) == 1:
        return cluster.nodes[0]
    raise ConfigError("which node of the file is this? give --node NAME", param="--node")


def _is_ours(address: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return True
    return False


def _gateways(cluster: Cluster, token: str | None) -> list[tuple[str, int]]:
    """Agent ports of all gateways. ConfigError where one beyond this machine would be told without a secret."""
    agents = cluster.agents
    texts = agents.gateways or (join_address(agents.host, agents.port),)
    found = []
    for text in texts:
        try:
            host, port = split(text)
        except ValueError as error:
            raise ConfigError(f"agents.gateways: {error}", param="agents.gateways") from None
        if token is None and not agents.tls_cert and not is_loopback(host):
            raise ConfigError(
                f"gateway {text} is on another machine; give agents.token_file or mutual TLS", param="agents.token_file"
            )
        found.append((host, port))
    return found


def _run(
    cluster: Cluster,
    nodes: tuple[NodeEntry, ...],
    load: Callable[[], Cluster] | None,
    log_level: str,
    remarks: list[str],
) -> None:
    import uvloop

    with stderr_log(log_level, remarks) as log:
        uvloop.run(_serve(cluster, nodes, log, load))


async def _serve(
    cluster: Cluster, nodes: tuple[NodeEntry, ...], log: EventLog, load: Callable[[], Cluster] | None
) -> None:
    from exaserve.agent.tasks import tell_of_errors
    from exaserve.cli.machine import raise_file_limit

    raise_file_limit()
    stop, force = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    tell_of_errors(loop, log)

    def on_stop() -> None:
        (force if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    agents, meters = build(cluster, nodes, log)
    in_use = cluster

    def on_reload() -> None:
        nonlocal in_use
        if load is None:
            log.warning("reload_ignored", why="started without a cluster file")
            return
        try:
            in_use = _reload(in_use, load(), agents, log)
        except ConfigError as error:
            log.error("reload_failed", error=error.message, kept="the configuration in use")

    loop.add_signal_handler(signal.SIGHUP, on_reload)
    meters.start()
    for each in agents:
        each.start()
        await asyncio.sleep(0)  # thousands of engines must not keep those that are up from speaking
    try:
        await stop.wait()
    finally:
        log.info("stopping", nodes=len(agents), drain_s=cluster.agents.drain_s)
        await _stop(agents, force, log)
        await meters.stop()
        log.info("stopped")


def _reload(old: Cluster, new: Cluster, agents: list[NodeAgent], log: EventLog) -> Cluster:
    """Gives the agents their new plans. ConfigError, before anything is changed, where one of them has none."""
    from exaserve.agent.plan import node_of

    restart = [each for each in diff(old, new) if each.startswith(("agents.", "gateway.engine_api_key_file"))]
    new = msgspec.structs.replace(new, agents=old.agents, gateway=old.gateway)
    plans = _plans(new, [node_of(new, each.node) for each in agents])
    if restart:
        log.warning("reload_needs_restart", settings=", ".join(each.split(":")[0] for each in restart))
    for each in agents:
        each.reload(plans[each.node])
    log.info("reloaded", nodes=len(agents), replicas=sum(map(len, plans.values())))
    return new


def _plans(cluster: Cluster, nodes: Iterable[NodeEntry]) -> dict[str, tuple[UnitPlan, ...]]:
    """What each of these nodes has to run, by the node's name."""
    from exaserve.agent.machine import allowed_cpus, read_machine
    from exaserve.agent.plan import plan_node
    from exaserve.local.commands import emulated_argv

    machine = read_machine(allowed=allowed_cpus())
    folder = _folder(cluster)
    return {node.name: plan_node(cluster, node, machine, folder / node.name, emulated_argv) for node in nodes}


def _folder(cluster: Cluster) -> Path:
    """Where nodes have their folders."""
    return Path(cluster.agents.state_dir) if cluster.agents.state_dir else state_folder()


async def _stop(agents: list[NodeAgent], force: asyncio.Event, log: EventLog) -> None:
    """Drains; ``force`` ends the draining."""
    stopping = asyncio.ensure_future(asyncio.wait([asyncio.ensure_future(each.stop()) for each in agents]))
    forced = asyncio.ensure_future(force.wait())
    await asyncio.wait([stopping, forced], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        log.warning("stop_forced")
        for each in agents:
            each.hurry()
        await stopping
    forced.cancel()


def build(cluster: Cluster, nodes: tuple[NodeEntry, ...], log: EventLog) -> tuple[list[NodeAgent], Any]:
    """The agents of these nodes, and the machine's meters that they share; nothing is started yet.

    Raises:
        ConfigError: a file cannot be used, or another agent has a node's folder.
    """
    import time

    from exaserve.agent.host import ProcessHost
    from exaserve.agent.meters import Meters
    from exaserve.agent.node import NodeAgent
    from exaserve.agent.registering import Registrar
    from exaserve.agent.state_folder import StateFolder
    from exaserve.local.null_host import MixedHost, NullHost
    from exaserve.wire.tls import mutual_tls

    settings = cluster.agents
    token = read_secret(settings.token_file, "agents.token_file") if settings.token_file else None
    file = cluster.gateway.engine_api_key_file
    key = read_secret(file, "gateway.engine_api_key_file", characters_min=1) if file else ""
    gateways = _gateways(cluster, token)
    tls = mutual_tls("client", settings.tls_cert, settings.tls_key, settings.tls_ca)
    plans = _plans(cluster, nodes)
    alone = len(nodes) == 1

    def state(node: str) -> StateFolder | None:
        """Of several nodes in one process, a trial, nothing is kept; and null engines have no use for a folder."""
        processes = any(plan.argv for plan in plans[node])
        return StateFolder(_folder(cluster) / node, keeps=alone) if alone or processes else None

    host = MixedHost(ProcessHost(settings.stop_s, settings.log_bytes_max), NullHost())
    meters = Meters(time.monotonic)
    agents = [
        NodeAgent(
            node.name,
            plans[node.name],
            gateways,
            settings,
            host,
            log,
            meters=meters,
            token=None if token is None else token.encode(),
            engine_api_key=key,
            tls=tls,
            registrar=None if settings.register is None else Registrar(node.name, settings.register, log),
            state=state(node.name),
        )
        for node in nodes
    ]
    return agents, meters
