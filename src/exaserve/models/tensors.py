"""What a model is made of, as memory sums need it: tensors with the way each is split, and what a layer caches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["VOCAB_PADDING", "Cache", "CacheKind", "Layer", "Split", "Tensor", "pad"]

Split = Literal["column", "row", "kv", "vocab", "none"]
"""Over tensor-parallel ranks: outputs, inputs, key/value heads (repeated where there are fewer than ranks), rows of
the vocabulary, or the same on every rank.
"""

CacheKind = Literal["full", "sliding", "chunked", "mla", "state"]

VOCAB_PADDING = 64
"""Engines round the vocabulary up to this before they split it."""


def pad(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Tensor:
    """One matrix (or ``count`` equal ones).

    Attributes:
        name: last part of its module path.
        rows / cols: outputs and inputs; a vector has one column.
        split: see :data:`Split`.
        quantised: whether it is in the checkpoint's format, or at 16 bit.
        experts: routed experts that ``count`` such matrices each stand for, 0 if it is no expert.
        heads: key/value heads, for ``split="kv"``.
    """

    name: str
    rows: int
    cols: int
    split: Split = "column"
    quantised: bool = False
    count: int = 1
    experts: int = 0
    heads: int = 0

    @property
    def parameters(self) -> int:
        return self.rows * self.cols * self.count * max(1, self.experts)

    def shape_on_rank(self, tp: int) -> tuple[int, int]:
        """Rows and columns that one of ``tp`` ranks holds."""
        if self.split == "column":
            return math.ceil(self.rows / tp), self.cols
        if self.split == "row":
            return self.rows, math.ceil(self.cols / tp)
        if self.split == "kv":
            return self.rows // self.heads * max(1, math.ceil(self.heads / tp)), self.cols
        if self.split == "vocab":
            return math.ceil(pad(self.rows, VOCAB_PADDING) / tp), self.cols
        return self.rows, self.cols


@dataclass(frozen=True, slots=True)
class Cache:
    """What one layer keeps per sequence.

    Attributes:
        kind: ``full``, ``sliding`` and ``chunked`` attention keep keys and values; ``mla`` one latent vector; ``state``
            (Mamba, linear attention) a block of fixed size per sequence, whatever its length.
        heads / width: key/value heads, and values that one head keeps per token (key and value together); for ``mla``
            heads is 1 and the width is the same on every rank.
        window: tokens that ``sliding`` or ``chunked`` attention looks back.
        state_values: ((values split over ranks, bytes each), …) of a ``state``.
    """

    kind: CacheKind
    heads: int = 0
    width: int = 0
    window: int = 0
    state_values: tuple[tuple[int, int], ...] = ()

    def token_bytes(self, tp: int, value_bytes: float) -> float:
        """Bytes one token takes on one rank; 0 for a state."""
        if self.kind == "state":
            return 0.0
        heads = 1 if self.kind == "mla" else max(1, math.ceil(self.heads / tp))
        return heads * self.width * value_bytes

    def state_bytes(self, tp: int) -> int:
        """Bytes of one sequence's state on one rank."""
        return sum(math.ceil(values / tp) * size for values, size in self.state_values)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its tensors and its caches (two where an index is cached beside the latent vector)."""

    kind: str
    tensors: tuple[Tensor, ...]
    caches: tuple[Cache, ...]
    query_heads: int = 0
    absorbed: tuple[int, int] = (0, 0)
    """MLA: (heads, values per head) of the up-projection that engines keep a second, 16-bit copy of."""
