"""``exaserve agent``: starts a node's engines, watches them, and tells every gateway."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from exaserve.config import Cluster, NodeEntry, Pool, is_loopback, load_cluster, read_environment, read_secret
from exaserve.config import split_address as split
from exaserve.domain.errors import ConfigError

if TYPE_CHECKING:
    from exaserve.agent.node import NodeAgent
    from exaserve.observe import EventLog

__all__ = ["agent"]


def agent(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Cluster file; flags win over what it says.")
    ] = None,
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
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Start this node's engines, watch and measure them, and tell every gateway.

    exaserve agent --config cluster.yaml --node node3

    SIGTERM or Ctrl-C drains the engines and stops them (a second one does not wait); nothing of them is left behind,
    however this process ends.
    """
    if config is None and model is None and (named := read_environment().config):
        config = Path(named)
    if config is not None:
        cluster = load_cluster(config)
    elif model is not None:
        cluster = _from_flags(model, engine, replicas, tp, node, address, base_port)
    else:
        raise ConfigError("give a cluster file by --config, or --model", param="--config")
    changes: dict[str, Any] = {}
    if gateway:
        changes["gateways"] = tuple(gateway)
    if token_file is not None:
        changes["token_file"] = str(token_file)
    if state_dir is not None:
        changes["state_dir"] = str(state_dir)
    cluster = msgspec.structs.replace(cluster, agents=msgspec.structs.replace(cluster.agents, **changes))
    if engine_api_key_file is not None:
        gateway_settings = msgspec.structs.replace(cluster.gateway, engine_api_key_file=str(engine_api_key_file))
        cluster = msgspec.structs.replace(cluster, gateway=gateway_settings)
    nodes = cluster.nodes if all_nodes else (_this_node(cluster, node),)
    _run(cluster, nodes, log_level)


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
    texts = agents.gateways or (f"{agents.host}:{agents.port}",)
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


def _run(cluster: Cluster, nodes: tuple[NodeEntry, ...], log_level: str) -> None:
    import uvloop

    from exaserve.observe import EventLog, LineSink
    from exaserve.observe.log import LEVELS

    if log_level not in LEVELS:
        raise ConfigError(f"--log-level: {log_level!r} is none of {', '.join(LEVELS)}", param="--log-level")
    sink = LineSink(sys.stderr)
    try:
        uvloop.run(_serve(cluster, nodes, EventLog(sink, level=log_level)))
    finally:
        sink.close()


async def _serve(cluster: Cluster, nodes: tuple[NodeEntry, ...], log: EventLog) -> None:
    from exaserve.cli.machine import raise_file_limit

    raise_file_limit()
    stop, force = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_stop() -> None:
        (force if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    agents, meters = build(cluster, nodes, log)
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
    """The agents of these nodes, and the machine's meters that they share; nothing is started yet."""
    import time

    from exaserve.agent.host import ProcessHost
    from exaserve.agent.machine import allowed_cpus, read_machine
    from exaserve.agent.meters import Meters
    from exaserve.agent.node import NodeAgent
    from exaserve.agent.plan import plan_node
    from exaserve.cli.commands import emulated_argv
    from exaserve.cli.null_host import MixedHost, NullHost
    from exaserve.config import state_folder
    from exaserve.wire.tls import mutual_tls

    settings = cluster.agents
    token = read_secret(settings.token_file, "agents.token_file") if settings.token_file else None
    file = cluster.gateway.engine_api_key_file
    key = read_secret(file, "gateway.engine_api_key_file", characters_min=1) if file else ""
    gateways = _gateways(cluster, token)
    tls = mutual_tls("client", settings.tls_cert, settings.tls_key, settings.tls_ca)
    machine = read_machine(allowed=allowed_cpus())
    folder = Path(settings.state_dir) if settings.state_dir else state_folder()
    host = MixedHost(ProcessHost(settings.stop_s, settings.log_bytes_max), NullHost())
    meters = Meters(time.monotonic)
    agents = [
        NodeAgent(
            node.name,
            plan_node(cluster, node, machine, folder / node.name, emulated_argv),
            gateways,
            settings,
            host,
            log,
            meters=meters,
            token=None if token is None else token.encode(),
            engine_api_key=key,
            tls=tls,
        )
        for node in nodes
    ]
    return agents, meters
