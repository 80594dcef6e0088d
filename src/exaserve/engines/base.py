"""How engines are described: one record each, in a file of its own, so that a new one is a file and not a branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exaserve.engines.exposition import Families, label, samples

__all__ = [
    "Engine",
    "Launch",
    "LaunchRequest",
    "MetricSource",
    "block_size_of",
    "first_value",
    "flags",
    "without_labels",
]

Combine = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class MetricSource:
    """One metric that carries a signal.

    Attributes:
        name: of the samples, as bytes of the exposition.
        combine: how the series of data-parallel ranks make one figure: requests add up, the fullest cache counts.
        label: ``(name, value)`` that a sample must carry to count, or None.
    """

    name: bytes
    combine: Combine = "sum"
    label: tuple[bytes, str] | None = None


_BLOCKS = {"short": 16, "medium": 32, "long": 64}
"""Tokens in a KV block by the length class of a pool's prompts: below 512 tokens, to 4,096, above."""


def block_size_of(prompt_length: str) -> int:
    """Tokens in a KV block for a pool of that length class; 0 (the engine's own choice) for any other word."""
    return _BLOCKS.get(prompt_length, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What a replica is to be.

    Attributes:
        model: path or name that the engine loads.
        served_name: what clients call it.
        host / port: where it listens.
        precision: of the weights; "auto" leaves the choice to the engine.
        quantized: whether the checkpoint is published quantised; then the engine must be told nothing of it.
        tp / pp: tensor and pipeline parallel sizes.
        max_model_len: prompt and output, tokens; 0 leaves the choice to the engine.
        max_num_seqs: sequences at once; 0 leaves the choice to the engine.
        block_size: tokens in one KV block; 0 leaves the choice to the engine.
        memory_share: of a card's memory for the engine, 0..1; 0 leaves the choice to the engine.
        kv_connector / kv_role / kv_connector_config: moves KV between replicas; "" moves none.
        loras: ``(name, path)`` of adapters loaded at the start.
        side_port: first of ten ports that this replica may use beside ``port`` (side channels, rendezvous of ranks).
        cache_dir: folder for compiled kernels and the like, its own; "" leaves the choice to the engine.
        extra: further arguments, last, so that they win.
    """

    model: str
    served_name: str
    host: str
    port: int
    precision: str = "auto"
    quantized: bool = False
    tp: int = 1
    pp: int = 1
    max_model_len: int = 0
    max_num_seqs: int = 0
    block_size: int = 0
    memory_share: float = 0.0
    kv_connector: str = ""
    kv_role: str = "kv_both"
    kv_connector_config: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    loras: tuple[tuple[str, str], ...] = ()
    side_port: int = 0
    cache_dir: str = ""
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start it.

    Attributes:
        argv: program and arguments.
        env: variables that its environment gets beside ours.
        files: what has to be written before, by path.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def _nothing(_families: Families) -> dict[str, Any]:
    """Most engines have no more to say."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What differs between engines, as far as serving needs to know.

    Attributes:
        name: key of :data:`exaserve.engines.ENGINES`, and of a pool's ``engine``.
        aliases: other words for it, as registries have them.
        prefixes: beginnings of its metric names, by which "auto" knows it.
        re_exported: beginnings under which others (Ray) export the same metrics; read as the first of ``prefixes``.
        metrics_paths: where its exposition may be, the likeliest first.
        health_path: answers 200 while the process lives (which does not say that it can generate).
        sources: signal (a field of :class:`~exaserve.domain.Report`) → metrics that carry it, the best first.
        expected: signals that every release with metrics gives; absent, they are listed in ``Report.missing``.
        copied_over: labels of ranks that repeat the same figure (tensor, pipeline parallel): the largest counts once.
        info: families that ``extras`` reads.
        extras: signals that are no single figure, out of ``info``.
        launch: what starts one replica on this machine; None: not started by a command line of its own.
        accelerators: whether a replica holds accelerators.
        named_adapters: whether it chooses a LoRA adapter by the model's name in a request.
        quantizes: precisions that it makes of 16-bit weights as it loads.
        salted: routes on which it takes ``cache_salt``, a text that keeps prefix caches of requests apart.
        kv_roles: values of ``kv_role`` with which a replica that has a KV connector answers ordinary requests.
    """

    name: str
    aliases: tuple[str, ...] = ()
    prefixes: tuple[bytes, ...]
    re_exported: tuple[bytes, ...] = ()
    metrics_paths: tuple[str, ...] = ("/metrics",)
    health_path: str = "/health"
    sources: Mapping[str, tuple[MetricSource, ...]]
    expected: tuple[str, ...]
    copied_over: tuple[bytes, ...] = ()
    info: tuple[bytes, ...] = ()
    extras: Callable[[Families], dict[str, Any]] = _nothing
    launch: Callable[[LaunchRequest], Launch] | None = None
    accelerators: bool = True
    named_adapters: bool = True
    quantizes: tuple[str, ...] = ()
    salted: tuple[str, ...] = ()
    kv_roles: tuple[str, ...] = ()


def first_value(
    families: Families, sources: tuple[MetricSource, ...], copied_over: tuple[bytes, ...] = (), *, required: bool
) -> float | None:
    """Figure of the first source that gives one."""
    for source in sources:
        value = _combined(families, source, copied_over, required=required)
        if value is not None:
            return value
    return None


def _combined(
    families: Families, source: MetricSource, copied_over: tuple[bytes, ...], *, required: bool
) -> float | None:
    """One figure of all the series of ``source``; None where there is none or one of them is unusable."""
    per_rank: dict[bytes, float] = {}
    for labels, value in samples(families.lines(source.name, required=required), source.name):
        if source.label is not None and label(labels, source.label[0]) != source.label[1]:
            continue
        if value is None:
            return None
        rank = without_labels(labels, copied_over) if copied_over else labels
        per_rank[rank] = max(value, per_rank.get(rank, 0.0))
    if not per_rank:
        return None
    return max(per_rank.values()) if source.combine == "max" else sum(per_rank.values())


def without_labels(labels: bytes, names: tuple[bytes, ...]) -> bytes:
    return b",".join(pair for pair in labels.split(b",") if pair.split(b"=", 1)[0].strip() not in names)


def flags(**values: object) -> list[str]:
    """``--flag value`` for every value that is not 0 or empty; ``_`` becomes ``-``."""
    argv: list[str] = []
    for name, value in values.items():
        if value:
            argv += [f"--{name.replace('_', '-')}", str(value)]
    return argv
