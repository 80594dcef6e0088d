"""``exaserve demo``: the same load through one policy after the other, each on a fresh cluster of emulated replicas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from exaserve.cli.flags import JsonFile, Seed, command
from exaserve.cli.outputs import STDOUT, check_writable, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from exaserve.bench import LoadPlan
    from exaserve.cli.demo_load import DemoParameters
    from exaserve.cli.demo_report import PolicyRun
    from exaserve.config import Cluster
    from exaserve.local.cluster import LocalCluster

__all__ = ["demo"]

BLIND = ":blind"
WARMUP_S = 5.0
"""Left out of the figures: caches, connections and estimates are cold."""
WINDOW_S = 5.0
REQUEST_TIMEOUT_S = 120.0
DRAIN_S = 60.0
"""Answers still wanted after the last request was sent; what comes later counts as failed."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The command's options, as given."""

    policies: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME…",
            help="Policies to compare, in this order; all for every one. NAME:blind lifts the limits on queue depth "
            "and KV use, which plain load balancers do not have.",
        ),
    ] = "round_robin,entropy"
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="Seconds of load for each policy.")] = 40.0
    load: Annotated[
        float, typer.Option(min=0.01, max=2.0, help="Load as a share of what the cluster can do at most.")
    ] = 0.8
    rate_per_s: Annotated[
        float | None, typer.Option("--rate", min=0.1, help="Requests per second, instead of --load.")
    ] = None
    seed: Seed = 1
    as_json: JsonFile = None
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the cluster file and exit.")] = False


def _demo(options: DemoOptions) -> None:
    """Bring up 4 nodes with 12 emulated replicas each and send the same load through each policy.

    The load is a mix of short (327 tokens), long (4,218) and very long (12,842) prompts, 65 / 30 / 5 %, arriving at
    random instants whatever the cluster does. Latency counts from the instant a request was due. Every policy gets a
    fresh cluster and the same requests at the same instants.
    """
    from rich.console import Console

    from exaserve.cli.demo_report import print_report, report_dict
    from exaserve.cli.running import run_until_signal
    from exaserve.cli.up import built_in_cluster

    o = options
    if o.show_config:
        typer.echo(_config_text(), nl=False)
        return
    from exaserve.cli.capacity import replica_capacity_per_s
    from exaserve.cli.demo_load import MIX, DemoParameters

    cluster = built_in_cluster()
    replicas = len(cluster.replicas())
    capacity_per_s = replicas * replica_capacity_per_s(cluster.pools[0], MIX, o.seed)
    rate_per_s = o.load * capacity_per_s if o.rate_per_s is None else o.rate_per_s
    parameters = DemoParameters(
        policies=_policies(o.policies),
        seconds=o.seconds,
        rate_per_s=rate_per_s,
        load=rate_per_s / capacity_per_s,
        seed=o.seed,
        model=cluster.pools[0].served_name,
        replicas=replicas,
    )
    check_writable(o.as_json, "--json")
    console = Console(stderr=o.as_json == STDOUT)
    runs = run_until_signal(lambda hurry: _compare(cluster, parameters, console, hurry))
    print_report(console, runs)
    if o.as_json is not None:
        write_text(o.as_json, json.dumps(report_dict(parameters, runs), indent=2) + "\n", "--json")


demo = command("demo", DemoOptions, _demo)


def _config_text() -> str:
    from importlib import resources

    return resources.files("exaserve.cli").joinpath("data/demo.yaml").read_text()


def _policies(text: str) -> tuple[str, ...]:
    from exaserve.domain.errors import ConfigError
    from exaserve.scheduling import POLICIES

    names = sorted(POLICIES) if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name.removesuffix(BLIND) not in POLICIES:
            known = ", ".join(sorted(POLICIES))
            raise ConfigError(f"--policies: {name!r} is not one of {known}", param="--policies")
    if not names:
        raise ConfigError("--policies: name at least one", param="--policies")
    return tuple(dict.fromkeys(names))


def _with_policy(cluster: Cluster, name: str) -> Cluster:
    from exaserve.cli.up import with_flags
    from exaserve.config import without_limits

    changed = with_flags(cluster, policy=name.removesuffix(BLIND))
    return without_limits(changed) if name.endswith(BLIND) else changed


async def _compare(
    cluster: Cluster, parameters: DemoParameters, console: Console, hurry: list[Callable[[], None]]
) -> list[PolicyRun]:
    from exaserve.bench import Arrivals, make_plan
    from exaserve.cli.demo_load import MIX
    from exaserve.cli.running import StartView
    from exaserve.local.addresses import free_base_port
    from exaserve.local.cluster import LocalCluster

    plan = make_plan(MIX, Arrivals(parameters.rate_per_s, parameters.seconds), parameters.seed)
    console.print(
        f"{parameters.replicas} emulated replicas of {parameters.model} on {len(cluster.nodes)} nodes; "
        f"{len(plan)} requests in {parameters.seconds:g} s for each policy, {parameters.load:.0%} of capacity",
        highlight=False,
    )
    runs = []
    for policy in parameters.policies:
        fresh = free_base_port(_with_policy(cluster, policy))
        with StartView(console) as view:
            local = LocalCluster(fresh, on_step=view.step)
            hurry[:] = [local.kill]
            try:
                await local.start()
            except BaseException:
                await local.stop()
                raise
        try:
            runs.append(await _drive(local, policy, plan, parameters, console))
        finally:
            await local.stop()
    return runs


async def _drive(
    local: LocalCluster, policy: str, plan: LoadPlan, parameters: DemoParameters, console: Console
) -> PolicyRun:
    """One plan through one gateway."""
    import os

    from exaserve.bench import BodyRenderer, LoadClient, LoadConfig, summarise
    from exaserve.cli.demo_load import MIX
    from exaserve.cli.demo_report import LoadView, PolicyRun
    from exaserve.cli.machine import CpuMeter

    config = LoadConfig(
        urls=(local.url,),
        renderer=BodyRenderer(parameters.model),
        request_timeout_s=REQUEST_TIMEOUT_S,
        connect_timeout_s=REQUEST_TIMEOUT_S,  # on one machine, a shorter one fails requests for want of processor alone
        drain_s=DRAIN_S,
    )
    processes = {"client": [os.getpid()]}
    for child in local.children:
        processes.setdefault("gateway" if child.name == "gateway" else "emulators", []).append(child.pid)
    meter = CpuMeter(processes)
    with LoadView(console, policy) as view:
        result = await LoadClient(config, plan, on_progress=view.update).run()
    ended = [f"{child.name} {child.describe_end()}" for child in local.children if child.code is not None]
    summary = summarise(
        result.records,
        duration_s=parameters.seconds,
        window_s=WINDOW_S,
        warmup_s=WARMUP_S if parameters.seconds > 3 * WARMUP_S else 0.0,
        scenarios=[scenario.name for scenario in MIX.scenarios],
    )
    return PolicyRun(policy, summary, meter.use(), result.lag_max_s, result.elapsed_s, tuple(ended))
