"""Memory of one replica, rank by rank, and what the engine would print at start-up.

The identity that vLLM's own logs follow, per rank::

    kv = memory x utilisation - weights - non_torch - activation_peak [- CUDA graphs, in vLLM from 0.21 on]

Weights and cache are counted (:mod:`.weights`, :mod:`.kvcache`). The other two are what a start-up profile measures, so
they are modelled: the activation peak is the larger of a forward pass over a full batch of tokens and of sampling for a
full batch of sequences; non_torch is the CUDA context's growth and NCCL's buffers.

SGLang keeps ``free_before x (1 - fraction)`` aside after loading instead: ``kv = free_before x fraction - weights``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from exaserve.models.architecture import Architecture
from exaserve.models.vision import image_patches_max, vision_values_per_patch
from exaserve.perfmodel import Hardware
from exaserve.planning.engine import BatchLimits, check_card, mxfp4_padding
from exaserve.planning.kvcache import KvLayout, KvResult, kv_layout
from exaserve.planning.options import EngineOptions
from exaserve.planning.weights import Parallelism, WeightTerm, check_split, stage_layers, stage_weights

__all__ = ["GIB", "MemoryPlan", "MemoryRequest", "StageMemory", "plan_memory", "uneven_partition"]

GIB = 1 << 30
FORWARD_COPIES = 3
"""Live copies at the widest point of a layer: gate and up side by side with their product; input, residual, output."""

CONTEXT_GIB = 0.55
"""CUDA context, before an engine looks at free memory, GiB."""

NON_TORCH_GIB = 0.06
"""Libraries' own memory that start-up sees, GiB; more in old engines, see :func:`non_torch_bytes`."""

COLLECTIVE_GIB = 0.15
"""NCCL's buffers between ranks over PCIe or few NVLinks, GiB."""

SWITCHED_COLLECTIVE_GIB = 2.3
"""NCCL's and the custom all-reduce's buffers on NVSwitch machines (Hopper and later) from four ranks on, GiB."""

SWITCHED_NCCL_GIB = 1.5
"""NCCL's part of that, which is all there is when SGLang looks at free memory, GiB."""

UNIFIED_HOST_GIB = 12.0
"""Where host and accelerator share one memory, start-up counts as taken what meanwhile goes from the machine's memory:
the engine's own processes, compilers, page cache, GiB. Public logs have 8 to 31; less when started again."""

UNIFIED_SHARE_MAX = 0.88
"""Largest share that such a machine has free after it has booted, by public logs."""

_SWITCHED = ("H100", "H200", "H20", "H20-3E", "H800", "B200", "B300", "GB200", "GB300")
SAFETY = 1.3
"""The rule of thumb that an exact sum replaces; shown beside it."""

RULE_FRAMEWORK_GB = 3.0
"""Of that rule: 2 to 4 GB for the framework."""


@dataclass(frozen=True, slots=True)
class MemoryRequest(EngineOptions):
    """What is to be started.

    Attributes:
        memory_gib: per pipeline stage, what the driver reports of one card, GiB; one figure stands for all stages.
    """

    arch: Architecture
    hardware: Hardware
    placement: Parallelism = field(default_factory=Parallelism)
    memory_gib: tuple[float, ...] = ()

    def stage_memory_gib(self, stage: int) -> float:
        if not self.memory_gib:
            return self.hardware.memory_gib
        return self.memory_gib[stage] if len(self.memory_gib) > stage else self.memory_gib[-1]

    @property
    def length(self) -> int:
        return self.max_model_len or self.arch.facts.context

    @property
    def limits(self) -> BatchLimits:
        smallest = min(self.stage_memory_gib(s) for s in range(self.placement.pp))
        default = BatchLimits.default(self.version, self.hardware, smallest, self.length)
        return BatchLimits(self.max_num_batched_tokens or default.tokens, self.max_num_seqs or default.seqs)

    @property
    def graphs_inside(self) -> bool:
        """Whether the CUDA graphs are taken out of the share before the cache is sized."""
        return self.graphs_counted and not self.eager and self.version.counts_graphs(self.hardware)


@dataclass(frozen=True, slots=True)
class StageMemory:
    """One rank of one pipeline stage, bytes.

    Attributes:
        total: what the driver reports. usable: what the engine may use.
        graphs: CUDA graphs; captured after the cache is sized. ``graphs_inside``: taken out of ``usable`` before that,
            else they must fit in what ``usable`` leaves.
        kv: what remains for the cache; negative where the weights do not fit.
    """

    stage: int
    layers: int
    total: float
    usable: float
    weight_terms: tuple[WeightTerm, ...]
    weights: float
    non_torch: float
    activation: float
    activation_cause: str
    graphs: float
    graphs_inside: bool
    kv: float

    @property
    def taken(self) -> float:
        """Of ``usable``, before the cache."""
        return self.weights + self.non_torch + self.activation + (self.graphs if self.graphs_inside else 0.0)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The sum, and what the engine would say.

    Attributes:
        refusals: reasons why it would not start at all; empty where it would.
        warnings: what it would start with, but should not.
        says: the lines the engine would print.
        rule_gb: the text's rule of thumb for the whole replica: (weights + KV of a full batch + framework) x 1.3.
    """

    request: MemoryRequest
    stages: tuple[StageMemory, ...]
    layout: KvLayout
    result: KvResult
    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    says: tuple[str, ...] = field(default=())
    rule_gb: float = 0.0

    @property
    def fits(self) -> bool:
        return not self.refusals

    @property
    def weights_gib(self) -> float:
        """Of the first stage's ranks, as a log prints it."""
        return self.stages[0].weights / GIB if self.stages else 0.0

    @property
    def fullest_gib(self) -> float:
        """Weights of the stage that holds most."""
        return max((s.weights for s in self.stages), default=0.0) / GIB

    @property
    def tokens(self) -> int:
        return self.result.tokens


def activation_bytes(r: MemoryRequest, last: bool, first: bool) -> tuple[float, str]:
    """Peak of the start-up profile on a rank, and what sets it."""
    f, tp, limits = r.arch.facts, r.placement.tp, r.limits
    tokens = limits.tokens
    mlp = max(_widths(r.arch, tp, r.placement.ep))
    forward = tokens * FORWARD_COPIES * (mlp + f.hidden) * 2.0
    experts = 0.0
    if f.experts:
        width = f.moe_mlp if r.placement.ep else math.ceil(f.moe_mlp / tp)
        # Routed tokens: both halves of the hidden activation (its buffer serves the output too), and their product.
        experts = min(tokens, 32_768) * f.top_k * (max(2 * width, f.hidden) + width) * 2.0 + tokens * f.hidden * 6.0
    choices = [(max(forward, experts), f"forward pass over {tokens} tokens")]
    if last:
        if r.version.generation == 1 and r.version.minor < 8:
            logits = tokens * f.vocab * 2.0
            choices.append((logits + 2 * tokens * f.hidden * 2.0, f"logits of {tokens} tokens"))
        else:
            seqs = min(limits.seqs, tokens)
            size = seqs * f.vocab * 4.0 * r.version.logit_copies
            choices.append((size, f"sampling for {seqs} sequences x {f.vocab} logits"))
    if first and r.arch.vision and r.images:
        patches = image_patches_max(f.vision)
        size = patches * vision_values_per_patch(f.vision) * 2.0
        choices.append((size, f"vision tower over {patches} patches"))
    size, cause = max(choices)
    return size + r.version.workspace_gib * GIB, cause


def _widths(arch: Architecture, tp: int, ep: bool) -> list[int]:
    """Widths of the feed-forward layers on a rank."""
    f = arch.facts
    widths = [math.ceil(t.rows / tp) for layer in arch.kinds for t in layer.tensors if t.name == "gate_proj"]
    return widths or [math.ceil(f.moe_mlp / (1 if ep else tp))]


def non_torch_bytes(r: MemoryRequest) -> float:
    """Memory that is not PyTorch's, as start-up measures it on a rank."""
    base = NON_TORCH_GIB
    if r.version.generation == 0:
        base = 0.35 if r.version.minor < 7 else 0.12
    elif r.version.minor < 8:
        base += CONTEXT_GIB  # the first V1 counted the CUDA context too
    if r.hardware.unified and r.version.name != "sglang":
        base += UNIFIED_HOST_GIB
    if r.placement.cards == 1:
        return base * GIB
    if r.placement.tp >= 4 and r.hardware.name in _SWITCHED:
        return (base + (SWITCHED_NCCL_GIB if r.version.name == "sglang" else SWITCHED_COLLECTIVE_GIB)) * GIB
    return (base + COLLECTIVE_GIB) * GIB


def graph_bytes(r: MemoryRequest) -> float:
    """CUDA graphs for all batch sizes: grows with layers and, through communication buffers, with ranks."""
    if r.eager:
        return 0.0
    layers = math.ceil(len(r.arch.layers) / r.placement.pp)
    return (0.2 + 0.01 * layers) * (1 + 0.25 * (r.placement.tp - 1)) * GIB


def _stage(r: MemoryRequest, stage: int) -> StageMemory:
    pp = r.placement.pp
    terms = stage_weights(r.arch, r.placement, stage, mxfp4_padding(r.version, r.hardware), r.draft_layers)
    m = r.measured
    weights = m.weights_gib * GIB if m.weights_gib is not None else sum(t.size_bytes for t in terms)
    activation, cause = activation_bytes(r, last=stage == pp - 1, first=stage == 0)
    graphs, inside = graph_bytes(r), r.graphs_inside
    if m.activation_gib is not None:
        activation, cause = m.activation_gib * GIB, "measured" + (", with the CUDA graphs" if inside else "")
        inside = False
    non_torch = m.non_torch_gib * GIB if m.non_torch_gib is not None else non_torch_bytes(r)
    total = r.stage_memory_gib(stage) * GIB
    if r.version.name == "sglang":
        usable = (total - CONTEXT_GIB * GIB - (non_torch if r.placement.cards > 1 else 0.0)) * r.utilization
        kv = usable - weights
    else:
        usable = total * r.utilization
        kv = usable - weights - non_torch - activation - (graphs if inside else 0.0)
    if m.kv_gib is not None:
        kv = m.kv_gib * GIB
    layers = len(stage_layers(len(r.arch.layers), r.placement)[stage])
    return StageMemory(
        stage, layers, total, usable, tuple(terms), weights, non_torch, activation, cause, graphs, inside, kv
    )


def plan_memory(r: MemoryRequest) -> MemoryPlan:
    """The memory of one replica. Raises ConfigError where layers cannot be cut as asked."""
    refusals = [*check_split(r.arch, r.placement), *check_card(r.arch.fmt, r.hardware)]
    if r.placement.pp > len(r.arch.layers):
        r_stages: Sequence[StageMemory] = ()
        empty = KvResult(0, 0.0, 0, 0.0, 0)
        layout = KvLayout((), (), 1, r.version.tokens_by_concurrency)
        return MemoryPlan(r, tuple(r_stages), layout, empty, tuple(refusals), ())
    stages = tuple(_stage(r, s) for s in range(r.placement.pp))
    layout = kv_layout(r.arch, r.placement, r.version, r.kv_bytes, r.block, r.draft_layers)
    result = layout.fit([s.kv for s in stages], r.length, r.limits)
    refusals += _refusals(r, stages, layout, result)
    return MemoryPlan(
        request=r,
        stages=stages,
        layout=layout,
        result=result,
        refusals=tuple(refusals),
        warnings=tuple(_warnings(r, stages)),
        says=tuple(_says(r, stages, layout, result)),
        rule_gb=_rule_gb(r, layout, result),
    )


def _refusals(r: MemoryRequest, stages: Sequence[StageMemory], layout: KvLayout, result: KvResult) -> list[str]:
    reasons = []
    for s in stages:
        if s.weights > s.total:
            reasons.append(
                f"stage {s.stage}: {s.weights / GIB:.2f} GiB of weights a rank do not fit into {s.total / GIB:.2f} GiB"
            )
        elif s.kv <= 0:
            reasons.append(
                f"stage {s.stage}: no memory for cache blocks: {s.usable / GIB:.2f} GiB usable, "
                f"{s.taken / GIB:.2f} GiB taken before"
            )
    if not reasons and result.concurrency < 1 and layout.groups:
        reasons.append(
            f"a request of {r.length} tokens needs {result.needed_bytes / GIB:.2f} GiB of cache, "
            f"{_tightest(stages, layout) / GIB:.2f} GiB are there; at most {result.max_model_len} tokens would start"
        )
    return reasons


def _tightest(stages: Sequence[StageMemory], layout: KvLayout) -> float:
    """Memory of the stage that decides."""
    pairs = [(s.kv / size, s.kv) for s, size in zip(stages, layout.stage_bytes, strict=True) if size]
    return min(pairs)[1] if pairs else 0.0


def _warnings(r: MemoryRequest, stages: Sequence[StageMemory]) -> list[str]:
    notes = []
    for s in stages:
        left = s.total - s.usable - CONTEXT_GIB * GIB
        if s.graphs > left and r.version.name != "sglang" and not r.graphs_inside:
            notes.append(
                f"stage {s.stage}: utilisation {r.utilization:g} leaves {max(0.0, left) / GIB:.2f} GiB outside the "
                f"engine's share, CUDA graphs take about {s.graphs / GIB:.2f} GiB: it may run out while capturing"
            )
            break
    card = r.hardware.name
    if r.hardware.unified and r.version.name != "sglang":
        notes.append(
            f"{card} shares its memory with the host: {UNIFIED_HOST_GIB:g} GiB are set aside for what start-up counts "
            "of other processes, compilers and page cache; measure once and give --non-torch-gib"
        )
        if r.utilization > UNIFIED_SHARE_MAX:
            notes.append(
                f"a share of {r.utilization:g} is seldom free on a {card} after booting, and then the engine does not "
                f"start: --gpu-memory-utilization {UNIFIED_SHARE_MAX:g} or less"
            )
    if 0 < r.hardware.capability < 8 and not r.arch.fmt.quantised and r.arch.fmt.name == "bf16":
        notes.append(f"{card} has no bfloat16: the engine runs in float16 (--dtype half)")
    kv = [s.kv for s in stages if s.kv > 0]
    if len(kv) > 1 and max(kv) > 2 * min(kv):
        notes.append("stages are uneven: the fullest decides the cache of all, the others leave memory unused")
    if r.arch.fmt.precision == "fp8" and r.kv_bytes == 2.0:
        notes.append("fp8 weights do not make an fp8 cache: --kv-cache-dtype fp8 would double it")
    return notes


def _says(r: MemoryRequest, stages: Sequence[StageMemory], layout: KvLayout, result: KvResult) -> list[str]:
    first = stages[0]
    if r.version.name == "sglang":
        return [f"KV Cache is allocated. #tokens: {result.tokens}, available {first.kv / GIB:.2f} GB"]
    kv = _tightest(stages, layout) if layout.groups else first.kv
    if any(s.weights > s.total for s in stages):
        return ["torch.OutOfMemoryError: CUDA out of memory, while weights are loaded"]
    lines = [
        f"Model loading took {first.weights / GIB:.2f} GiB",
        *([f"Estimated CUDA graph memory: {first.graphs / GIB:.2f} GiB total"] if first.graphs_inside else []),
        f"Available KV cache memory: {kv / GIB:.2f} GiB",
    ]
    if kv <= 0:
        return [*lines, "No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."]
    if result.concurrency < 1:
        return [
            *lines,
            (
                f"To serve at least one request with the model's max seq len ({r.length}), "
                f"{result.needed_bytes / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache "
                f"memory ({kv / GIB:.2f} GiB). Based on the available memory, the estimated maximum model length is "
                f"{result.max_model_len}."
            ),
        ]
    return [
        *lines,
        f"GPU KV cache size: {result.tokens:,} tokens",
        f"Maximum concurrency for {r.length:,} tokens per request: {result.concurrency:.2f}x",
    ]


def _rule_gb(r: MemoryRequest, layout: KvLayout, result: KvResult) -> float:
    """The rule of thumb, in its own unit (10^9 bytes), for all ranks: ordinary cache of one longest request."""
    f = r.arch.facts
    weights = r.arch.parameters * r.arch.fmt.bits / 8 / 1e9
    cache = 2 * len(r.arch.layers) * f.kv_heads * f.head_dim * min(r.length, 8192) * r.kv_bytes / 1e9
    del layout, result
    return (weights + cache + RULE_FRAMEWORK_GB) * SAFETY


def uneven_partition(layers: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Layers per stage in proportion to ``weights`` (memory of each stage's cards), each at least one."""
    total = sum(weights)
    edges = [round(layers * sum(weights[:i]) / total) for i in range(len(weights) + 1)]
    sizes = [max(1, b - a) for a, b in pairwise(edges)]
    while sum(sizes) > layers:
        sizes[sizes.index(max(sizes))] -= 1
    while sum(sizes) < layers:
        sizes[sizes.index(min(sizes))] += 1
    return tuple(sizes)
