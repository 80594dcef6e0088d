"""What to start for a cluster: the processes that hold its replicas, with their arguments."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from exaserve.config import Cluster, NodeEntry, Pool, split_url
from exaserve.domain.replica import ReplicaSpec
from exaserve.emulator.config import EmulatorConfig
from exaserve.emulator.process import arguments
from exaserve.engines.launch import LaunchRequest, launch_argv

__all__ = ["EXASERVE", "process_commands"]

EXASERVE = (sys.executable, "-m", "exaserve")
"""This very installation, whatever the path finds under its name."""


def process_commands(cluster: Cluster) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    """Name, arguments and environment of each process: an emulator per node, or an engine per replica."""
    for pool in cluster.pools:
        if not pool.starts_replicas:
            continue
        if pool.engine == "emulator":
            for node_index, node in enumerate(cluster.nodes):
                name = f"{pool.served_name} on {node.name}" if len(cluster.pools) > 1 else node.name
                yield name, _emulator_argv(pool, node, node_index), {}
        else:
            for index, spec in enumerate(cluster.started(pool)):
                yield str(spec.id), _engine_argv(pool, spec), _devices(pool, index % pool.num_replicas_per_node)


def _emulator_argv(pool: Pool, node: NodeEntry, node_index: int) -> list[str]:
    settings = pool.emulator
    config = EmulatorConfig(
        model=pool.model,
        served_model_names=(pool.served_name,),
        replicas=pool.num_replicas_per_node,
        host=node.address,
        port=pool.base_port,
        hardware=pool.hardware,
        precision=pool.precision,
        tp=pool.tensor_parallel_size,
        pp=pool.pipeline_parallel_size,
        seed=settings.seed + node_index * pool.num_replicas_per_node,
        speed=settings.speed,
        max_model_len=pool.max_model_len or None,
        max_num_seqs=pool.max_num_seqs,
        token_budget=settings.token_budget,
        block_size=settings.block_size,
        prefix_caching=settings.prefix_caching,
    )
    return [*EXASERVE, "emulate", *arguments(config), *pool.engine_args]


def _engine_argv(pool: Pool, spec: ReplicaSpec) -> list[str]:
    host, port = split_url(spec.url)
    if pool.engine == "command":
        values = {"host": host, "port": str(port), "model": pool.model, "replica": str(spec.id)}
        return [_fill(word, values) for word in pool.engine_command] + list(pool.engine_args)
    request = LaunchRequest(
        model=pool.model,
        served_name=pool.served_name,
        host=host,
        port=port,
        precision=pool.precision,
        tp=pool.tensor_parallel_size,
        pp=pool.pipeline_parallel_size,
        max_model_len=pool.max_model_len,
        max_num_seqs=pool.max_num_seqs,
        extra=pool.engine_args,
    )
    return launch_argv(pool.engine, request)


def _fill(word: str, values: dict[str, str]) -> str:
    """Replaces ``{name}`` of known names only: other braces (JSON arguments) stay as they are."""
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _devices(pool: Pool, index_on_node: int) -> dict[str, str]:
    """Accelerators of one replica: the node's, in order, tensor x pipeline parallel size each."""
    each = pool.tensor_parallel_size * pool.pipeline_parallel_size
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(index_on_node * each + i) for i in range(each))}
