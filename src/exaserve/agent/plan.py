"""From the cluster file to what one node has to start: a frozen plan for each unit, with everything decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exaserve.agent.machine import Binding, NodeMachine, bind, visibility
from exaserve.config import Cluster, NodeEntry, Pool, hub_folder, split_url
from exaserve.domain.errors import ConfigError
from exaserve.domain.replica import ReplicaSpec
from exaserve.engines import ENGINES
from exaserve.engines.base import Launch, LaunchRequest, block_size_of
from exaserve.engines.checkpoint import own_quantization

__all__ = ["EmulatorArgv", "StagePlan", "UnitPlan", "node_of", "plan_node", "safe_name"]

_SIDE_PORT_FIRST, _SIDE_PORTS = 20_000, 10
_STAGE_PORT = 2
"""Of a unit's side ports the first two are the engine's own; pipeline stages begin here."""

EmulatorArgv = Callable[[Pool, ReplicaSpec, int], list[str]]
"""Command line of one emulated replica: pool, replica, and its number, which goes into the seed."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One process that must accept connections on ``port`` before the next one starts."""

    name: str
    argv: tuple[str, ...]
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """One inference unit: one engine process (and its stages), its accelerators, its address.

    Attributes:
        spec: as gateways are to know it.
        engine: key of the pool's ``engine``.
        argv / env: of the engine, beside our own environment. No argv: the engine lives in this process (null).
        stages: processes that start before it, in order.
        ports: what is held before the start.
        side_port: first of the ten that its engine may use besides, 0 for none.
        devices: accelerators by number, in PCI order.
        binding: CPUs and memory nodes.
        files: written before the start, by path.
        cache_dir / log_path: its own.
    """

    spec: ReplicaSpec
    engine: str
    host: str
    port: int
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    stages: tuple[StagePlan, ...] = ()
    ports: tuple[int, ...] = ()
    side_port: int = 0
    devices: tuple[int, ...] = ()
    binding: Binding = field(default_factory=Binding)
    files: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path = Path()
    log_path: Path = Path()


def node_of(cluster: Cluster, name: str) -> NodeEntry:
    """The node of that name. ConfigError where the file has none."""
    for node in cluster.nodes:
        if node.name == name:
            return node
    known = ", ".join(node.name for node in cluster.nodes[:8]) or "none"
    raise ConfigError(f"there is no node {name!r} in the cluster file; it has {known}", param="nodes")


def safe_name(replica: str) -> str:
    """A replica's id as one path component."""
    return "".join(char if char.isalnum() or char in "-._" else "_" for char in replica)


def plan_node(
    cluster: Cluster, node: NodeEntry, machine: NodeMachine, state_dir: Path, emulator: EmulatorArgv | None = None
) -> tuple[UnitPlan, ...]:
    """The units of one node, pool by pool; accelerators are dealt out in order.

    Raises:
        ConfigError: the node has fewer accelerators than its units need, or the engine cannot be started from here.
    """
    units: list[UnitPlan] = []
    total = sum(pool.num_replicas_per_node for pool in cluster.pools if pool.starts_replicas)
    next_device = 0
    for pool in cluster.pools:
        if not pool.starts_replicas:
            continue
        family = machine.family if pool.accelerator == "auto" else pool.accelerator
        each = 0 if family == "cpu" or not _holds_accelerators(pool) else _accelerators(pool)
        for spec in cluster.started(pool, (node,)):
            devices = tuple(range(next_device, next_device + each))
            next_device += each
            if machine.devices and next_device > len(machine.devices):
                raise ConfigError(
                    f"{node.name} has {len(machine.devices)} accelerators, but its replicas need {next_device} or more",
                    param="num_replicas_per_node",
                )
            units.append(_unit(pool, spec, len(units), devices, family, machine, total, state_dir, emulator))
    return tuple(units)


def _holds_accelerators(pool: Pool) -> bool:
    engine = ENGINES.get(pool.engine)
    return engine is None or engine.accelerators


def _accelerators(pool: Pool) -> int:
    return pool.tensor_parallel_size * pool.pipeline_parallel_size


def _unit(
    pool: Pool,
    spec: ReplicaSpec,
    index: int,
    devices: tuple[int, ...],
    family: str,
    machine: NodeMachine,
    total: int,
    state_dir: Path,
    emulator: EmulatorArgv | None,
) -> UnitPlan:
    host, port = split_url(spec.url)
    if pool.engine == "null":
        return UnitPlan(spec=spec, engine="null", host=host, port=port)
    side = _SIDE_PORT_FIRST + index * _SIDE_PORTS
    name = safe_name(spec.id)
    cache_dir = state_dir / "cache" / name
    stages = _stages(pool, host, side)
    start = _launch(pool, spec, index, host, port, side, cache_dir, stages, emulator)
    env = {**start.env, **visibility(family, devices), **pool.environment}
    return UnitPlan(
        spec=spec,
        engine=pool.engine,
        host=host,
        port=port,
        argv=start.argv,
        env=env,
        stages=stages,
        ports=(port, *(stage.port for stage in stages)),
        side_port=side,
        devices=devices,
        binding=bind(machine, devices, index, total),
        files=start.files,
        cache_dir=cache_dir,
        log_path=state_dir / "logs" / f"{name}.log",
    )


def _stages(pool: Pool, host: str, side: int) -> tuple[StagePlan, ...]:
    if not pool.stage_command:
        return ()
    count = pool.pipeline_parallel_size
    if count > _SIDE_PORTS - _STAGE_PORT:
        raise ConfigError(
            f"at most {_SIDE_PORTS - _STAGE_PORT} stages can be started on one node", param="pipeline_parallel_size"
        )
    stages = []
    for stage in range(count):
        port = side + _STAGE_PORT + stage
        values = {"host": host, "stage": str(stage), "stage_port": str(port), "model": pool.model}
        stages.append(StagePlan(f"stage{stage}", tuple(_fill(word, values) for word in pool.stage_command), port))
    return tuple(stages)


def _launch(
    pool: Pool,
    spec: ReplicaSpec,
    index: int,
    host: str,
    port: int,
    side: int,
    cache_dir: Path,
    stages: tuple[StagePlan, ...],
    emulator: EmulatorArgv | None,
) -> Launch:
    if pool.engine == "emulator":
        if emulator is None:
            raise ConfigError("emulated replicas cannot be started from here", param="engine")
        return Launch((*emulator(pool, spec, index), *pool.engine_args))
    if pool.engine == "command":
        values = {
            "host": host,
            "port": str(port),
            "model": pool.model,
            "replica": str(spec.id),
            "stage_urls": ",".join(f"{host}:{stage.port}" for stage in stages),
        }
        return Launch((*(_fill(word, values) for word in pool.engine_command), *pool.engine_args))
    engine = ENGINES[pool.engine]
    if engine.launch is None:
        raise ConfigError(f"{pool.engine} is not started by a command line", param="engine")
    if pool.lora_adapters and not engine.named_adapters:
        raise ConfigError(
            f"{pool.engine} does not choose adapters by the model's name; give its own flags in engine_args",
            param="lora_adapters",
        )
    request = LaunchRequest(
        model=pool.model,
        served_name=pool.served_name,
        host=host,
        port=port,
        precision=pool.precision,
        quantized=bool(own_quantization(pool.model, hub_folder())),
        tp=pool.tensor_parallel_size,
        pp=pool.pipeline_parallel_size,
        max_model_len=pool.max_model_len,
        max_num_seqs=pool.max_num_seqs,
        block_size=pool.block_size or block_size_of(pool.prompt_length),
        memory_share=pool.gpu_memory_utilization,
        kv_connector=pool.kv_connector,
        kv_role=pool.kv_role,
        kv_connector_config=pool.kv_connector_config,
        loras=tuple(_adapter(text) for text in pool.lora_adapters),
        side_port=side,
        cache_dir=str(cache_dir),
        extra=pool.engine_args,
    )
    return engine.launch(request)


def _adapter(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise ConfigError(f"{text!r} is not an adapter; write name=path", param="lora_adapters")
    return name, path


def _fill(word: str, values: Mapping[str, str]) -> str:
    """Replaces ``{name}`` of known names only: other braces (JSON arguments) stay as they are."""
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word
