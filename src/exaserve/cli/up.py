"""``exaserve up``: a whole cluster on this machine from one file."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from exaserve.config import Cluster, load_cluster, parse_cluster, read_environment, to_yaml
from exaserve.domain.errors import ConfigError

if TYPE_CHECKING:
    from exaserve.local.cluster import LocalCluster

__all__ = ["built_in_cluster", "find_cluster", "up", "with_flags"]

_DEFAULT_FILE = "cluster.yaml"
_TROUBLE = re.compile(
    r"level=(?:warning|error) event=(?:replica_restarts|replica_hangs|last_words|supervision_failed) "
)
"""What of the agents' log is shown without --verbose."""


def up(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Cluster file; ./cluster.yaml unless given, else a built-in cluster."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the endpoint.")] = None,
    policy: Annotated[str | None, typer.Option(help="How replicas are chosen.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what the processes print.")] = False,
) -> None:
    """Run a whole cluster on this machine, replicas and gateway, until Ctrl-C.

    It is ready when every replica has answered a completion. Ctrl-C lets requests in flight end for gateway.drain, a
    second one does not wait. Whatever ends this command, nothing it started is left behind.
    """
    from exaserve.cli.running import run_until_signal
    from exaserve.local.commands import with_agents

    cluster, path = find_cluster(file, to_start=True)
    changed = with_agents(with_flags(cluster, port=port, policy=policy))
    same = path if changed == cluster else None
    run_until_signal(lambda hurry: _serve(changed, same, hurry, verbose=verbose))


def built_in_cluster() -> Cluster:
    """The cluster of the demonstration."""
    return parse_cluster(resources.files("exaserve.cli").joinpath("data/demo.yaml").read_bytes(), "built-in cluster")


def with_flags(cluster: Cluster, *, port: int | None = None, policy: str | None = None) -> Cluster:
    """``cluster`` with the flags laid over it. ConfigError for an unknown policy, or a port that something else has."""
    if policy is not None:
        from exaserve.scheduling import POLICIES

        if policy not in POLICIES:
            raise ConfigError(f"--policy: {policy!r} is not one of {', '.join(sorted(POLICIES))}", param="--policy")
        cluster = msgspec.structs.replace(cluster, scheduling=dataclasses.replace(cluster.scheduling, policy=policy))
    if port is not None:
        cluster = msgspec.structs.replace(cluster, gateway=msgspec.structs.replace(cluster.gateway, port=port))
        try:
            parse_cluster(to_yaml(cluster).encode(), "--port")
        except ConfigError as error:
            why = re.sub(r"--port:\d+: ", "--port: ", error.message)  # lines of a text that nobody has written
            raise ConfigError(why, param="--port") from None
    return cluster


def find_cluster(file: Path | None, *, to_start: bool = False) -> tuple[Cluster, str | None]:
    """The cluster and the file it is from, by flag, environment, or folder, in this order."""
    named = str(file) if file is not None else read_environment().config
    if named is None and Path(_DEFAULT_FILE).is_file():
        named = _DEFAULT_FILE
    if named is None:
        return built_in_cluster(), None
    return load_cluster(named, to_start=to_start), str(Path(named).absolute())


async def _serve(cluster: Cluster, path: str | None, hurry: list[Callable[[], None]], *, verbose: bool) -> None:
    from exaserve.cli.nodes import plain
    from exaserve.cli.running import StartView
    from exaserve.local.cluster import LocalCluster

    console = Console(stderr=True)

    def on_line(name: str, line: str) -> None:
        if verbose or (name == "agents" and _TROUBLE.search(line)):
            console.print(plain(f"{name} | {line}"), markup=False, highlight=False, soft_wrap=True)

    with StartView(console) as view:
        local = LocalCluster(cluster, config_path=path, on_step=view.step, on_line=on_line)
        hurry.append(local.kill)
        try:
            await local.start()
        except BaseException:
            await local.stop()
            raise
    try:
        typer.echo(_greeting(cluster, local.url, local.admin_url))
        await _watch(local, console)
    except asyncio.CancelledError:
        drain_s = cluster.gateway.drain_s
        console.print(f"stopping; requests in flight have {drain_s:g} s, Ctrl-C ends them at once", highlight=False)
        raise
    finally:
        await local.stop()


async def _watch(local: LocalCluster, console: Console) -> None:
    """Tells of every process that ends. Returns never: ends by cancellation, or when nothing is left to serve with."""
    while True:
        ended = await local.next_end()
        console.print(f"{ended.name} {ended.describe_end()}", style="red", highlight=False)
        for line in list(ended.tail)[-5:]:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        running = [child.name for child in local.children if child.code is None]
        if ended.name == "gateway" or running == ["gateway"]:
            console.print("nothing is left to serve with; stopping", style="red", highlight=False)
            raise typer.Exit(1)


def _greeting(cluster: Cluster, url: str, admin_url: str) -> str:
    replicas = cluster.replicas()
    models = list(dict.fromkeys(model for spec in replicas for model in spec.models)) or ["MODEL"]
    nodes = f" on {len(cluster.nodes)} node{'s' if len(cluster.nodes) != 1 else ''}" if cluster.nodes else ""
    count = f"{len(replicas)} replica{'s' if len(replicas) != 1 else ''}"
    body = json.dumps({"model": models[0], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    return f"""
Ready: {count} of {", ".join(models)}{nodes}, scheduled by {cluster.scheduling.policy}

  endpoint   {url}/v1
  admin API  {admin_url}

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{body}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")

Ctrl-C stops everything."""
