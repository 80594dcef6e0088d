"""Weight bytes on a rank: every tensor with its split, padding, repetition and format."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exaserve.domain.errors import ConfigError
from exaserve.models.architecture import Architecture
from exaserve.models.tensors import Layer, Tensor, pad

__all__ = ["Parallelism", "WeightTerm", "check_split", "layer_bytes", "stage_layers", "stage_weights"]

BYTES_16 = 2
Padding = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a replica is cut: tensor parallel size, pipeline stages, and whether experts are spread whole (EP)."""

    tp: int = 1
    pp: int = 1
    ep: bool = False
    partition: tuple[int, ...] = ()
    """Layers per stage; empty for the engine's own choice."""

    @property
    def cards(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class WeightTerm:
    """One line of the sum: what it is, bytes on the rank, and how they come about."""

    name: str
    size_bytes: float
    formula: str


def stage_layers(layers: int, placement: Parallelism) -> list[range]:
    """Which layers each pipeline stage holds: an even split, the remainder to the stages before the last."""
    if placement.partition:
        if len(placement.partition) != placement.pp or sum(placement.partition) != layers:
            raise ConfigError(
                f"The partition {','.join(map(str, placement.partition))} does not give {layers} layers "
                f"to {placement.pp} stages.",
                param="partition",
            )
        sizes = list(placement.partition)
    else:
        each, rest = divmod(layers, placement.pp)
        sizes = [each] * placement.pp
        for i in range(2, rest + 2):
            sizes[-i] += 1
    stages, start = [], 0
    for size in sizes:
        stages.append(range(start, start + size))
        start += size
    return stages


def check_split(arch: Architecture, placement: Parallelism) -> list[str]:
    """Reasons why an engine would refuse this split; empty if it would not."""
    f, tp = arch.facts, placement.tp
    reasons = []
    if f.heads % tp:
        reasons.append(f"{f.heads} attention heads are not divisible by a tensor parallel size of {tp}")
    if f.kv_heads >= tp and f.kv_heads % tp and not f.get("kv_lora_rank"):
        reasons.append(f"{f.kv_heads} key/value heads are not divisible by a tensor parallel size of {tp}")
    if placement.pp > len(arch.layers):
        reasons.append(f"{len(arch.layers)} layers do not fill {placement.pp} pipeline stages")
    if placement.ep and not f.experts:
        reasons.append("expert parallelism needs a mixture of experts")
    grain = arch.fmt.input_granularity()
    seen: set[str] = set()
    for layer in arch.kinds:
        for tensor in layer.tensors:
            if not tensor.quantised or tensor.split != "row" or grain == 1 or tensor.name in seen:
                continue
            whole = placement.ep and tensor.experts
            if not whole and tp > 1 and (tensor.cols % tp or (tensor.cols // tp) % grain) and arch.fmt.name != "mxfp4":
                seen.add(tensor.name)
                reasons.append(
                    f"{tensor.name}: {tensor.cols} inputs over {tp} ranks is {tensor.cols / tp:g}, "
                    f"no multiple of the {arch.fmt.name} group of {grain}"
                    + ("; expert parallelism keeps experts whole" if tensor.experts and not placement.ep else "")
                )
    return reasons


def tensor_bytes(arch: Architecture, tensor: Tensor, placement: Parallelism, padding: Padding) -> float:
    """Bytes of a tensor on one rank."""
    count = float(tensor.count)
    if tensor.experts:
        if placement.ep:
            rows, cols = tensor.rows, tensor.cols
            count *= math.ceil(tensor.experts / placement.tp)
        else:
            rows, cols = tensor.shape_on_rank(placement.tp)
            count *= tensor.experts
        if tensor.quantised and arch.fmt.name == "mxfp4":
            own, model = padding
            rows, cols = (pad(rows, own), pad(cols, model)) if tensor.split == "column" else (
                pad(rows, model), pad(cols, own))  # fmt: skip
    else:
        rows, cols = tensor.shape_on_rank(placement.tp)
    if tensor.quantised:
        return arch.fmt.matrix_bytes(rows, cols) * count
    return rows * cols * count * BYTES_16


def layer_bytes(arch: Architecture, layer: Layer, placement: Parallelism, padding: Padding) -> dict[str, float]:
    """Bytes of one layer on one rank, by group: attention, feed-forward, experts, small."""
    sums = {"mixer": 0.0, "feed-forward": 0.0, "experts": 0.0, "norms, biases, router": 0.0}
    for tensor in layer.tensors:
        size = tensor_bytes(arch, tensor, placement, padding)
        if tensor.experts:
            sums["experts"] += size
        elif tensor.name in ("gate_proj", "down_proj"):
            sums["feed-forward"] += size
        elif tensor.cols == 1 or tensor.name in ("router", "shared_gate"):
            sums["norms, biases, router"] += size
        else:
            sums["mixer"] += size
    heads, values = layer.absorbed
    sums["mixer"] += math.ceil(heads / placement.tp) * values * BYTES_16
    return sums


def stage_weights(
    arch: Architecture, placement: Parallelism, stage: int, padding: Padding, draft_layers: int = 0
) -> list[WeightTerm]:
    """Every term of a stage's weights, on one of its ranks."""
    stages = stage_layers(len(arch.layers), placement)
    inside = [arch.layers[i] for i in stages[stage]]
    first, last = stage == 0, stage == placement.pp - 1
    unique = {id(layer): layer for layer in inside}
    sums: dict[str, float] = {}
    for key, layer in unique.items():
        times = sum(1 for each in inside if id(each) == key)
        for name, size in layer_bytes(arch, layer, placement, padding).items():
            sums[name] = sums.get(name, 0.0) + size * times
    fmt, tp = arch.fmt.name, placement.tp
    cut = f"over {tp} ranks" if tp > 1 else "whole"
    spread = f"{math.ceil(arch.facts.experts / tp)} of {arch.facts.experts} experts a rank" if placement.ep else cut
    terms = [
        WeightTerm(f"{len(inside)} layers: {name}", size, f"{fmt}, {spread if name == 'experts' else cut}")
        for name, size in sums.items()
        if size
    ]
    outer = [("embedding", arch.embed)] if first or (last and arch.lm_head is None) else []
    outer += [("output layer", arch.lm_head)] if last and arch.lm_head else []
    for name, tensor in outer:
        rows, cols = tensor.shape_on_rank(tp)
        how = f"{'tied, ' if arch.lm_head is None else ''}{rows} x {cols} rows a rank, padded to 64"
        terms.append(WeightTerm(name, tensor_bytes(arch, tensor, placement, padding), how))
    if first and arch.vision:
        size = sum(tensor_bytes(arch, t, placement, padding) for t in arch.vision)
        terms.append(WeightTerm("vision tower", size, "16 bit"))
    if last and draft_layers and arch.draft:
        size = sum(layer_bytes(arch, arch.draft, placement, padding).values()) * draft_layers
        terms.append(WeightTerm("draft layers", size, f"{draft_layers} layer(s) for multi-token prediction"))
    positions, values = arch.rope
    if positions:
        terms.append(
            WeightTerm("rotary table", positions * values * BYTES_16, f"{positions} positions x {values} x 2 B")
        )
    return terms
