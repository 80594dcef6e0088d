"""What to start for a cluster: the processes that hold its replicas, with their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from exaserve.agent.machine import read_machine
from exaserve.agent.plan import plan_node
from exaserve.config import Cluster, NodeEntry, Pool, split_url, state_folder
from exaserve.domain.replica import ReplicaSpec
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import arguments

__all__ = ["EXASERVE", "emulated_argv", "process_commands"]

EXASERVE = (sys.executable, "-m", "exaserve")
"""This very installation, whatever the path finds under its name."""


def process_commands(cluster: Cluster) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, arguments and environment of each process: an emulator per node, or an engine per replica."""
    for called, pool in zip(cluster.pool_names(), cluster.pools, strict=True):
        if not pool.starts_replicas:
            continue
        if pool.engine == "emulator":
            for node_index, node in enumerate(cluster.nodes):
                name = f"{called} on {node.name}" if len(cluster.pools) > 1 else node.name
                yield name, _emulator_argv(pool, node, node_index), {}
    if all(pool.engine == "emulator" for pool in cluster.pools if pool.starts_replicas):
        return
    machine = read_machine()
    for node in cluster.nodes:  # all pools of a node at once: they share its accelerators and ports
        for unit in plan_node(cluster, node, machine, state_folder() / node.name, emulated_argv):
            if unit.engine == "emulator":
                continue
            for path, text in unit.files.items():
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_text(text)
            yield unit.spec.id, list(unit.argv), dict(unit.env)


def emulated_argv(pool: Pool, spec: ReplicaSpec, index: int) -> list[str]:
    """One emulated replica as a process of its own, for an agent."""
    host, port = split_url(spec.url)
    return [*EXASERVE, "emulate", *arguments(_emulated(pool, host, port, 1, pool.emulator.seed + index))]


def _emulator_argv(pool: Pool, node: NodeEntry, node_index: int) -> list[str]:
    seed = pool.emulator.seed + node_index * pool.num_replicas_per_node
    config = _emulated(pool, node.address, pool.base_port, pool.num_replicas_per_node, seed)
    return [*EXASERVE, "emulate", *arguments(config), *pool.engine_args]


def _emulated(pool: Pool, host: str, port: int, replicas: int, seed: int) -> EmulatorConfig:
    settings = pool.emulator
    return EmulatorConfig(
        model=pool.model,
        served_model_names=(pool.served_name,),
        replicas=replicas,
        host=host,
        port=port,
        hardware=pool.hardware,
        profile_file=pool.profile,
        precision=pool.precision,
        tp=pool.tensor_parallel_size,
        pp=pool.pipeline_parallel_size,
        seed=seed,
        speed=settings.speed,
        max_model_len=pool.max_model_len or None,
        max_num_seqs=pool.max_num_seqs,
        token_budget=settings.token_budget,
        block_size=settings.block_size,
        prefix_caching=settings.prefix_caching,
    )
