"""What `exaserve up` starts: nodes' agents, or, where every replica is emulated, an emulator for each node."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import msgspec

from exaserve.config import Cluster, NodeEntry, Pool, split_url
from exaserve.domain.replica import ReplicaSpec
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import arguments

__all__ = ["EXASERVE", "emulated_argv", "emulator_commands", "needs_agents", "with_agents"]

EXASERVE = (sys.executable, "-m", "exaserve")
"""This very installation, whatever the path finds under its name."""


def needs_agents(cluster: Cluster) -> bool:
    """Whether nodes' agents start the replicas. Emulated ones alone do without: one process holds all of a node's."""
    engines = {pool.engine for pool in cluster.pools if pool.starts_replicas}
    return cluster.agents.enabled or bool(engines - {"emulator"})


def with_agents(cluster: Cluster) -> Cluster:
    """The cluster as it runs on this machine: with agents where :func:`needs_agents`, on a free port if unasked for."""
    if cluster.agents.enabled or not needs_agents(cluster):
        return cluster
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    agents = msgspec.structs.replace(cluster.agents, enabled=True, host="127.0.0.1", port=port)
    return msgspec.structs.replace(cluster, agents=agents)


def emulator_commands(cluster: Cluster) -> Iterator[tuple[str, list[str]]]:
    """Name and arguments of each node's emulators, a process for each pool."""
    for called, pool in zip(cluster.pool_names(), cluster.pools, strict=True):
        if not pool.starts_replicas:
            continue
        for node_index, node in enumerate(cluster.nodes):
            name = f"{called} on {node.name}" if len(cluster.pools) > 1 else node.name
            yield name, _emulator_argv(pool, node, node_index)


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
