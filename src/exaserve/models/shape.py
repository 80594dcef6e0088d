"""The shape of a model: what decides its memory and its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

__all__ = ["ModelShape", "dense", "mixture", "sibling"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides a model's memory and work.

    Attributes:
        name: key in :data:`MODELS`; the repository's name without its owner.
        params_b: parameters, 10^9, embeddings included.
        active_b: parameters used by one token, 10^9; equal to ``params_b`` for a dense model.
        layers: transformer layers.
        hidden: width of the residual stream.
        heads / kv_heads: query and key/value heads.
        head_dim: width of one head.
        vocab: rows of the embedding.
        context: longest context in tokens that the configuration allows.
        experts / experts_per_token: routed experts of a mixture-of-experts layer and how many of them a token takes;
            0 if dense.
        mla_values: latent values kept per token and layer by multi-head latent attention, 0 for ordinary attention.
            They are the same on every tensor-parallel rank, with no factor 2 for K and V.
        sliding_layers / window: layers that attend to the last ``window`` tokens only.
        native: precision of the published weights, where it is not 16 bit.
        config: the other keys of the published ``config.json``, for exact memory sums (step times need none of them).
    """

    name: str
    params_b: float
    active_b: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    experts: int = 0
    experts_per_token: int = 0
    mla_values: int = 0
    sliding_layers: int = 0
    window: int = 0
    native: str = "bf16"
    config: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False, repr=False)


def dense(
    name: str,
    params_b: float,
    layers: int,
    hidden: int,
    heads: int,
    kv: int,
    dim: int,
    vocab: int,
    ctx: int,
    mlp: int,
    model_type: str = "llama",
    sliding: tuple[int, int] = (0, 0),
    **config: Any,
) -> ModelShape:
    """A row for a dense model; ``mlp`` is the width of its feed-forward layers, ``sliding`` (layers, window)."""
    facts = {"model_type": model_type, "intermediate_size": mlp, **config}
    return ModelShape(
        name,
        params_b,
        params_b,
        layers,
        hidden,
        heads,
        kv,
        dim,
        vocab,
        ctx,
        sliding_layers=sliding[0],
        window=sliding[1],
        config=MappingProxyType(facts),
    )


def mixture(
    name: str,
    sizes: tuple[float, float],
    layers: int,
    hidden: int,
    heads: tuple[int, int, int],
    vocab: int,
    ctx: int,
    experts: tuple[int, int],
    mlp: int,
    model_type: str,
    *,
    native: str = "bf16",
    mla: int = 0,
    sliding: tuple[int, int] = (0, 0),
    **config: Any,
) -> ModelShape:
    """A row for a mixture of experts.

    Args:
        sizes: parameters in total and per token, 10^9.
        heads: query heads, key/value heads, width of one.
        experts: how many, and how many a token takes.
        mlp: width of one expert.
    """
    return ModelShape(
        name,
        *sizes,
        layers,
        hidden,
        *heads,
        vocab,
        ctx,
        *experts,
        mla_values=mla,
        sliding_layers=sliding[0],
        window=sliding[1],
        native=native,
        config=MappingProxyType({"model_type": model_type, "moe_intermediate_size": mlp, **config}),
    )


def sibling(row: ModelShape, name: str, *, config: Mapping[str, Any] | None = None, **changes: Any) -> ModelShape:
    """A row for a model that has another's layers; ``changes`` and ``config`` say what differs."""
    return replace(row, name=name, config=MappingProxyType({**row.config, **(config or {})}), **changes)
