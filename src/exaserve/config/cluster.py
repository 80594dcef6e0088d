"""The cluster file's shape: every key with its unit and meaning. :mod:`exaserve.config.load` reads and checks it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from exaserve.config.convert import Limits, Schema
from exaserve.config.guard import AuthMode, AuthSettings
from exaserve.config.settings import (
    AgentSettings,
    ClientLimits,
    GatewaySettings,
    NetworkSettings,
    RetrySettings,
    TelemetrySettings,
)
from exaserve.config.sources import DiscoverySettings, FileSettings
from exaserve.config.urls import join_address, replica_from_url
from exaserve.control.records import LimitRule, Price
from exaserve.domain.replica import ReplicaId, ReplicaSpec
from exaserve.health import HealthConfig
from exaserve.scheduling.config import AdmissionConfig, SchedulerConfig

__all__ = [
    "SCHEMA",
    "STARTING_KEYS",
    "Accelerator",
    "Cluster",
    "ClusterFile",
    "EmulatorSettings",
    "EngineName",
    "NodeEntry",
    "Pool",
    "PromptLength",
    "ReplicaEntry",
    "SchedulingSection",
]

STARTING_KEYS = (
    "num_replicas_per_node",
    "engine_args",
    "engine_command",
    "stage_command",
    "environment",
    "hardware",
    "accelerator",
    "base_port",
    "gpu_memory_utilization",
    "block_size",
    "prompt_length",
    "kv_connector",
    "kv_role",
    "kv_connector_config",
    "lora_adapters",
)
"""Pool keys that say how replicas are started, which has no meaning for replicas that already run."""

EngineName = Literal["emulator", "vllm", "sglang", "trtllm", "llamacpp", "command", "null"]
Accelerator = Literal["auto", "cuda", "rocm", "xpu", "cpu"]
PromptLength = Literal["any", "short", "medium", "long"]


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A machine.

    Attributes:
        name: such as ``node1``; replicas are named after it.
        address: host name or IP address (IPv6 without brackets). Empty: node k of this file is ``127.0.k.1`` on this
            machine.
    """

    name: str
    address: str = ""


class ReplicaEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that already runs. ``id`` is host:port unless given; ``models`` are asked of it unless given.

    Attributes:
        url: ``http://host:port`` with no path; an IPv6 address in brackets.
        id: stable name; host:port unless given.

    The other keys are those of :class:`exaserve.domain.replica.ReplicaSpec`; where they are missing the pool's count.
    """

    url: str
    id: str = ""
    models: tuple[str, ...] = ()
    version: str | None = None
    node: str = ""
    engine: str = "auto"
    weight: float = 1.0
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    kv_tokens_max: int | None = None
    prefill_tokens_per_s: float | None = None
    decode_step_s: float | None = None


class EmulatorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """For pools whose engine is the emulator.

    Attributes:
        speed: how much faster than the modelled hardware time runs; 1 is real time.
        seed: decides lengths and texts of answers.
        block_size: tokens in one KV block.
        token_budget: tokens one step may compute (vLLM's ``max_num_batched_tokens``).
        prefix_caching: whether leading blocks already computed are used again.
    """

    speed: float = 1.0
    seed: int = 0
    block_size: int = 16
    token_budget: int = 8192
    prefix_caching: bool = True


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas that answer for one model, all of one kind. Without ``pools`` these keys stand at the top of the file.

    Attributes:
        model: what the engines load, such as ``meta-llama/Llama-3.1-8B-Instruct``; or a mapping with that as ``name``
            and any of the following keys.
        served_model_name: what clients call it; the same as ``model`` unless given.
        name: of the pool, the first part of its replicas' ids (``NAME/node1/r0``). Where several pools start replicas
            and it is not given, it is what the pool serves, with version, length class or number where two serve the
            same.
        version: release, as status shows it; traffic is not divided by it.
        precision: of the weights: bf16, fp16, fp8, int8, int4 … ("auto": as published). ``fp8`` has vLLM and SGLang
            quantise 16-bit weights as they load; a checkpoint that is published quantised is loaded as it is.
        tensor_parallel_size / pipeline_parallel_size: accelerators of one replica are their product.
        num_replicas_per_node: replicas started on each node.
        engine: what to start; ``command`` runs ``engine_command``; ``null`` answers at once with nothing computed, to
            measure everything around engines.
        engine_args: further arguments for the engine, as its own command line takes them.
        engine_command: program and arguments; ``{host}``, ``{port}``, ``{model}``, ``{replica}`` and, with stages,
            ``{stage_urls}`` (``host:port,host:port``) are filled in.
        stage_command: program and arguments of one pipeline stage, started ``pipeline_parallel_size`` times in order
            and before the engine (with ``{stage}``, ``{stage_port}``, ``{host}``); each must accept connections before
            the next one starts.
        environment: further variables for the engine's process.
        hardware: accelerator by name, for the performance model.
        accelerator: whose visibility variable gives each replica its own cards; ``auto`` looks at the machine.
        gpu_memory_utilization: share of a card's memory the engine takes, 0 leaves the choice to the engine.
        block_size: tokens in one KV block, 0 is what ``prompt_length`` says.
        prompt_length: the prompts this pool is for; ``short`` (below 512 tokens) takes blocks of 16 tokens, ``medium``
            (to 4,096) 32, ``long`` 64, ``any`` the engine's default.
        kv_connector: moves KV between replicas, such as NixlConnector, LMCacheConnectorV1 or MooncakeConnector (vLLM),
            nixl or mooncake (SGLang), ucx, nixl or mooncake (TensorRT-LLM).
        kv_role: kv_both, or kv_producer and kv_consumer where prefill and decode are apart.
        kv_connector_config: the connector's own settings.
        lora_adapters: adapters loaded at the start, as ``name=path`` (vLLM, SGLang).
        base_port: port of a node's first replica; the others follow.
        max_model_len: prompt and output in tokens, 0 is the engine's own limit.
        max_num_seqs: sequences a replica runs at once. llama.cpp divides its context among so many slots, and chooses
            for itself unless this is given.
        profile: file that ``exaserve calibrate`` wrote, relative to this one; gives the figures below where they are 0,
            and how fast emulated and simulated replicas are.
        kv_tokens_max / prefill_tokens_per_s / decode_step_s / kv_bytes_per_token: calibrated figures of one replica, 0
            where unknown.
        replicas: engines that already run, as URLs or mappings; then nothing is started.
    """

    model: str = ""
    served_model_name: str = ""
    name: str = ""
    version: str = ""
    precision: str = "auto"
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    num_replicas_per_node: int = 1
    engine: EngineName = "emulator"
    engine_args: tuple[str, ...] = ()
    engine_command: tuple[str, ...] = ()
    stage_command: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    hardware: str = "H100"
    accelerator: Accelerator = "auto"
    gpu_memory_utilization: float = 0.0
    block_size: int = 0
    prompt_length: PromptLength = "any"
    kv_connector: str = ""
    kv_role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    kv_connector_config: dict[str, str | int | float | bool] = {}
    lora_adapters: tuple[str, ...] = ()
    base_port: int = 8001
    max_model_len: int = 0
    max_num_seqs: int = 256
    kv_tokens_max: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0
    kv_bytes_per_token: float = 0.0
    profile: str = ""
    emulator: EmulatorSettings = EmulatorSettings()
    replicas: tuple[str | ReplicaEntry, ...] = ()

    @property
    def served_name(self) -> str:
        return self.served_model_name or self.model

    @property
    def starts_replicas(self) -> bool:
        return bool(self.model or self.engine_command) and not self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSection(SchedulerConfig):
    """The scheduler's knobs, and how often a replica is probed (the same as ``health.probe_interval``)."""

    health_check_interval_s: float | None = None
    """Between two probes of a replica, as ``health.probe_interval``."""


class ClusterFile(Pool, frozen=True, kw_only=True):
    """The file as written: one pool's keys at the top, or ``pools``.

    Attributes:
        nodes: how many, all on this machine, or a list with names and addresses.
        accelerators_per_node: cards of each node, 0 where not known; then 8 are assumed.
        pools: several models or kinds of replicas; then no pool's keys stand at the top.
        auth: who may use the endpoint: ``keys``, ``open``, or a mapping.
        limits: how much may be used, beside what keys and tenants have of their own.
        prices: what models cost, by name or pattern.
    """

    nodes: int | tuple[NodeEntry, ...] = 1
    accelerators_per_node: int = 0
    pools: tuple[Pool, ...] = ()
    scheduling: SchedulingSection = SchedulingSection()
    admission: AdmissionConfig = AdmissionConfig()
    health: HealthConfig = HealthConfig()
    telemetry: TelemetrySettings = TelemetrySettings()
    gateway: GatewaySettings = GatewaySettings()
    agents: AgentSettings = AgentSettings()
    network: NetworkSettings = NetworkSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    auth: AuthMode | AuthSettings = AuthSettings()
    limits: tuple[LimitRule, ...] = ()
    prices: dict[str, Price] = {}


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """A checked cluster: what every command works with."""

    nodes: tuple[NodeEntry, ...] = ()
    accelerators_per_node: int = 0
    pools: tuple[Pool, ...] = ()
    scheduling: SchedulerConfig = SchedulerConfig()
    admission: AdmissionConfig = AdmissionConfig()
    health: HealthConfig = HealthConfig()
    telemetry: TelemetrySettings = TelemetrySettings()
    gateway: GatewaySettings = GatewaySettings()
    agents: AgentSettings = AgentSettings()
    network: NetworkSettings = NetworkSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    auth: AuthSettings = AuthSettings()
    limits: tuple[LimitRule, ...] = ()
    prices: dict[str, Price] = {}

    def replicas(self) -> tuple[ReplicaSpec, ...]:
        """Every replica of the file: those it names, and those that its pools start on its nodes."""
        specs: list[ReplicaSpec] = []
        for pool in self.pools:
            specs += _named(pool) if pool.replicas else self.started(pool)
        return tuple(specs)

    def pool_names(self) -> tuple[str, ...]:
        """What each pool is called: its ``name``, or what it serves; where pools serve the same, with what tells them
        apart (version, length of prompts, else their place in the file)."""
        names = [pool.name or pool.served_name for pool in self.pools]
        for mark in ("version", "prompt_length"):
            twice = _twice(names)
            names = [
                f"{name}-{said}" if name in twice and not pool.name and (said := _said(pool, mark)) else name
                for name, pool in zip(names, self.pools, strict=True)
            ]
        twice = _twice(names)
        return tuple(f"{name}-{i}" if name in twice else name for i, name in enumerate(names, 1))

    def started(self, pool: Pool, nodes: tuple[NodeEntry, ...] | None = None) -> list[ReplicaSpec]:
        """The replicas that this pool starts, node by node (on ``nodes`` only, where they are given)."""
        if not pool.starts_replicas:
            return []
        called = pool.name
        if sum(each.starts_replicas for each in self.pools) > 1:
            called = next(name for name, each in zip(self.pool_names(), self.pools, strict=True) if each is pool)
        prefix = f"{called}/" if called else ""
        return [
            _spec(
                pool,
                ReplicaId(f"{prefix}{node.name}/r{index}"),
                f"http://{join_address(node.address, pool.base_port + index)}",
                node=node.name,
                engine=_REPORTS_AS.get(pool.engine, pool.engine),
            )
            for node in (self.nodes if nodes is None else nodes)
            for index in range(pool.num_replicas_per_node)
        ]


def _said(pool: Pool, field: str) -> str:
    """What a pool says of itself there; "any" says nothing."""
    said: str = getattr(pool, field)
    return "" if said == "any" else said


def _twice(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


_REPORTS_AS = {"emulator": "vllm", "null": "vllm", "command": "auto"}
"""Whose metrics an engine of that name gives, where the names differ."""


def _spec(pool: Pool, replica: ReplicaId, url: str, node: str, engine: str) -> ReplicaSpec:
    return ReplicaSpec(
        id=replica,
        url=url,
        models=tuple(dict.fromkeys(name for name in (pool.served_name, *_adapters(pool)) if name)),
        version=pool.version,
        node=node,
        engine=engine,
        max_model_len=pool.max_model_len,
        max_num_seqs=pool.max_num_seqs,
        kv_tokens_max=pool.kv_tokens_max,
        prefill_tokens_per_s=pool.prefill_tokens_per_s,
        decode_step_s=pool.decode_step_s,
        kv_bytes_per_token=pool.kv_bytes_per_token,
    )


def _adapters(pool: Pool) -> list[str]:
    """Names of adapters that are loaded at the start: clients ask for them as for models."""
    return [text.partition("=")[0] for text in pool.lora_adapters]


def _named(pool: Pool) -> list[ReplicaSpec]:
    specs = []
    served = (pool.served_name,) if pool.served_name else ()
    for each in pool.replicas:
        entry = ReplicaEntry(url=each) if isinstance(each, str) else each
        plain = replica_from_url(entry.url)
        specs.append(
            ReplicaSpec(
                id=ReplicaId(entry.id) if entry.id else plain.id,
                url=plain.url,
                models=entry.models or served,
                version=pool.version if entry.version is None else entry.version,
                node=entry.node,
                engine=entry.engine,
                weight=entry.weight,
                max_model_len=pool.max_model_len if entry.max_model_len is None else entry.max_model_len,
                # The pool's default is what a replica is started with; a running engine's own limit is not known.
                max_num_seqs=entry.max_num_seqs or 0,
                kv_tokens_max=pool.kv_tokens_max if entry.kv_tokens_max is None else entry.kv_tokens_max,
                prefill_tokens_per_s=pool.prefill_tokens_per_s
                if entry.prefill_tokens_per_s is None
                else entry.prefill_tokens_per_s,
                decode_step_s=pool.decode_step_s if entry.decode_step_s is None else entry.decode_step_s,
                kv_bytes_per_token=pool.kv_bytes_per_token,
            )
        )
    return specs


_POSITIVE = Limits(low=0, above=True)
_ONE = Limits(low=1)
_PORT = Limits(low=0, high=65_535)
_SHARE = Limits(low=0, high=1, hint="it is a share: 0.85 means 85 %")
_SHARE_ABOVE_0 = Limits(low=0, high=1, above=True, hint="it is a share: 0.85 means 85 %")

SCHEMA = Schema(
    spelling={
        SchedulingSection: {
            "policy": "strategy",
            "queue_depth_max": "max_queue_depth",
            "kv_watermark": "kv_cache_watermark",
        },
    },
    limits={
        SchedulingSection: {
            "health_check_interval_s": _POSITIVE,
            "queue_depth_max": _ONE,
            "kv_watermark": _SHARE_ABOVE_0,
            "foreign_share": _SHARE,
            "decode_weight": Limits(low=0, high=16),
            "sample_size": _ONE,
            "tie_share": _SHARE,
            "tie_idle_share": _SHARE,
            "ring_vnodes": Limits(low=1, high=4096),
            "bounded_load": Limits(low=1),
            "prefill_tokens_per_s": _POSITIVE,
            "reject_shun_s": _POSITIVE,
            "reject_shun_max_s": _POSITIVE,
            "learn_span": Limits(low=1),
            "learn_span_calibrated": Limits(low=1),
            "learn_window_s": _POSITIVE,
            "prefix_entries_max": Limits(low=0, high=100_000_000),
            "report_stale_s": _POSITIVE,
        },
        AdmissionConfig: {"tenant_share": _SHARE_ABOVE_0, "retry_after_s": _ONE},
        TelemetrySettings: {"interval_s": Limits(low=0.01), "timeout_s": _POSITIVE},
        GatewaySettings: {"port": _PORT, "admin_port": _PORT},
        AgentSettings: {
            "port": _PORT,
            "interval_s": Limits(low=0.02),
            "lost_s": _POSITIVE,
            "probe_interval_s": _POSITIVE,
            "probe_timeout_s": _POSITIVE,
            "start_timeout_s": _POSITIVE,
            "hang_s": _POSITIVE,
            "backoff_s": _POSITIVE,
            "backoff_max_s": _POSITIVE,
            "log_bytes_max": Limits(low=4096),
        },
        FileSettings: {"interval_s": Limits(low=0.05)},
        RetrySettings: {"attempts_max": Limits(low=1, high=100), "budget_window_s": _POSITIVE},
        ClientLimits: {
            "header_bytes_max": Limits(low=1024, high=16 * 2**20),
            "header_count_max": _ONE,
            "body_bytes_max": Limits(low=1024, high=2**40),
            "pipeline_max": _ONE,
            "connections_max": _ONE,
            "buffer_high_bytes": Limits(low=1024, high=2**32),
        },
        Pool: (
            _pool_limits := {
                "tensor_parallel_size": Limits(low=1, high=1024),
                "pipeline_parallel_size": Limits(low=1, high=1024),
                "num_replicas_per_node": Limits(low=1, high=1024),
                "base_port": Limits(low=1, high=65_535),
                "max_num_seqs": Limits(low=1, high=65_536),
                "gpu_memory_utilization": Limits(low=0, high=1, hint="it is a share: 0.9 means 90 %"),
                "block_size": Limits(low=0, high=1024),
            }
        ),
        ClusterFile: {**_pool_limits, "nodes": Limits(low=1, high=10_000)},
        EmulatorSettings: {
            "speed": Limits(low=0, high=10_000, above=True),
            "block_size": Limits(low=1, high=1024),
            "token_budget": Limits(low=1, high=2**20),
        },
    },
    off={SchedulingSection: {"queue_depth_max": 2**31, "kv_watermark": 1e6}},
    also={
        ClusterFile: {
            "policy": "write scheduling: {strategy: …}",
            "strategy": "it belongs under scheduling",
            "max_queue_depth": "it belongs under scheduling",
            "kv_cache_watermark": "it belongs under scheduling",
            "health_check_interval": "it belongs under scheduling",
            "host": "it belongs under gateway",
            "port": "it belongs under gateway",
            "speed": "it belongs under emulator",
            "seed": "it belongs under emulator",
            "quantization": "write precision: fp8 (or int8, int4 …)",
            "dtype": "write precision: bf16 (or fp16, fp8 …)",
            "num_nodes": "write nodes: 4",
            "tp": "write tensor_parallel_size",
            "pp": "write pipeline_parallel_size",
        },
    },
)
