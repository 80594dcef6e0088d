"""What one rank of a replica does in a step, counted from the model's tensors: bytes to read, operations, layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exaserve.models.architecture import Architecture
from exaserve.models.tensors import Layer, Tensor

__all__ = ["KV_BYTES", "Work", "kernel_of", "work_of"]

KV_BYTES = {"auto": 2.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
"""Bytes of one cached value, by the cache's precision."""

BYTES_16 = 2.0

_KERNELS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fbgemm-fp8": "fp8",
    "fp8-block": "fp8-block",
    "int8": "int8",
    "bnb8": "int8",
    "int4": "int4",
    "gptq": "int4",
    "gptq8": "int8-weights",
    "awq": "int4",
    "bnb4": "int4",
    "mxfp4": "mxfp4",
    "nvfp4": "nvfp4",
}


def kernel_of(fmt: str) -> str:
    """The kind of matrix kernel that runs a weight format (a key of :data:`exaserve.models.formats.FORMATS`)."""
    return _KERNELS[fmt]


@dataclass(frozen=True, slots=True)
class Work:
    """One rank's share, summed over all layers (those of other pipeline stages too: a token passes them all).

    Attributes:
        kernel: what :func:`kernel_of` says of the weights' format.
        plain_bytes / coded_bytes: weights that every step reads, bytes: those left at 16 bit (the output layer among
            them) and those in the format.
        expert_bytes: all routed experts, bytes. expert_share: of them that one token takes.
        plain_flops / coded_flops / expert_flops: operations of one token. head_flops: of the output layer, which only
            sequences that get a token pass.
        layers / moe_layers / mla_layers / state_layers: how many there are: all; with routed experts; with a latent
            cache; with a state of fixed size instead of a cache.
        kv_bytes: cache of one token in layers that see the whole context, bytes.
        cache_bytes: what a token takes in the cache where windows are not told apart, as older engines hold them.
        window_bytes: what a step reads for one sequence whatever its length: windows and states, bytes.
        pair_flops: attention's operations for one token that looks at one earlier token.
        dispatch_bytes: what one token sends to its experts and gets back where those are on other ranks, bytes.
        activation_bytes: activations of one token, over all layers, bytes.
        reduce_bytes: activations of one token that an all-reduce adds up, over all layers, bytes.
    """

    kernel: str
    plain_bytes: float
    coded_bytes: float
    expert_bytes: float
    expert_share: float
    plain_flops: float
    coded_flops: float
    expert_flops: float
    head_flops: float
    layers: int
    moe_layers: int
    mla_layers: int
    state_layers: int
    kv_bytes: float
    cache_bytes: float
    window_bytes: float
    pair_flops: float
    reduce_bytes: float
    dispatch_bytes: float
    activation_bytes: float

    @property
    def weight_bytes(self) -> float:
        """All weights but the embedding, bytes."""
        return self.plain_bytes + self.coded_bytes + self.expert_bytes


def work_of(arch: Architecture, tp: int = 1, ep: int = 1, kv_bytes: float = 2.0) -> Work:
    """Counts the work.

    Args:
        tp: tensor parallel size.
        ep: ranks that routed experts are spread over whole; 1 where each expert is cut over the ``tp`` ranks.
        kv_bytes: of one cached value.
    """
    facts = arch.facts
    share = facts.top_k / facts.experts if facts.experts else 0.0
    total = [0.0] * 6  # plain, coded and expert bytes; the same of operations
    counts = {"moe": 0, "mla": 0, "state": 0}
    cached = held = window = pairs = 0.0
    for layer, times in _kinds(arch):
        for tensor in layer.tensors:
            if tensor.cols > 1:
                _add(total, arch, tensor, tp, ep, share, times)
        kinds = {c.kind for c in layer.caches}
        counts["moe"] += times * any(t.experts for t in layer.tensors)
        counts["mla"] += times * ("mla" in kinds)
        counts["state"] += times * ("state" in kinds)
        for cache in layer.caches:
            held += times * cache.token_bytes(tp, kv_bytes)
            if cache.kind == "state":
                window += times * 2.0 * cache.state_bytes(tp)  # read and written
            elif cache.window:
                window += times * cache.window * cache.token_bytes(tp, kv_bytes)
            else:
                cached += times * cache.token_bytes(tp, kv_bytes)
        pairs += times * _pair_flops(arch, layer, tp)
    rows, cols = (arch.lm_head or arch.embed).shape_on_rank(tp)
    return Work(
        kernel=kernel_of(arch.fmt.name),
        plain_bytes=total[0] + rows * cols * BYTES_16,
        coded_bytes=total[1],
        expert_bytes=total[2],
        expert_share=share,
        plain_flops=total[3],
        coded_flops=total[4],
        expert_flops=total[5],
        head_flops=2.0 * rows * cols,
        layers=len(arch.layers),
        moe_layers=counts["moe"],
        mla_layers=counts["mla"],
        state_layers=counts["state"],
        kv_bytes=cached,
        cache_bytes=held,
        window_bytes=window,
        pair_flops=pairs,
        activation_bytes=len(arch.layers) * facts.hidden * BYTES_16,
        dispatch_bytes=counts["moe"] * facts.top_k * facts.hidden * (1.0 + BYTES_16),
        reduce_bytes=2.0 * len(arch.layers) * facts.hidden * BYTES_16,
    )


def _kinds(arch: Architecture) -> list[tuple[Layer, int]]:
    counts: dict[int, int] = {}
    for layer in arch.layers:
        counts[id(layer)] = counts.get(id(layer), 0) + 1
    return [(layer, counts[id(layer)]) for layer in arch.kinds]


def _add(total: list[float], arch: Architecture, tensor: Tensor, tp: int, ep: int, share: float, times: int) -> None:
    rows, cols = tensor.shape_on_rank(tp)
    if tensor.experts and ep > 1:
        rows, cols = tensor.rows, tensor.cols
    size = arch.fmt.matrix_bytes(rows, cols) if tensor.quantised else rows * cols * BYTES_16
    many = float(times * tensor.count)
    if tensor.experts:
        many *= tensor.experts / (max(1, ep))
        total[2] += many * size
        total[5] += many * 2.0 * rows * cols * share
        return
    kind = 1 if tensor.quantised else 0
    total[kind] += many * size
    total[3 + kind] += many * 2.0 * rows * cols


def _pair_flops(arch: Architecture, layer: Layer, tp: int) -> float:
    facts = arch.facts
    kinds = {c.kind for c in layer.caches}
    heads = math.ceil(facts.heads / tp)
    if "mla" in kinds:
        key = int(facts.get("qk_nope_head_dim", 128)) + int(facts.get("qk_rope_head_dim", 64))
        return 2.0 * heads * (key + int(facts.get("v_head_dim", 128)))
    return 4.0 * heads * facts.head_dim if layer.kind == "full" else 0.0
