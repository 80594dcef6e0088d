"""Reads a Hugging Face ``config.json`` (or a row of the built-in table) into one vocabulary of facts.

Architectures name the same thing differently (``n_head``, ``num_experts``, ``n_routed_experts``); this module knows the
names, :mod:`exaserve.models.blocks` and :mod:`exaserve.models.architecture` know what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.models.shape import ModelShape
from exaserve.models.supported import check_configuration

__all__ = ["Facts", "facts_of_shape", "read_facts"]

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "multi_query_group_num",
        "n_head_kv",
        "num_query_groups",
        "num_attention_groups",
    ),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "mlp": ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "d_inner"),
    "context": ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "max_seq_len"),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "top_k_experts", "moe_topk", "moe_k", "num_experts_per_token", "moe_top_k"),
    "moe_mlp": ("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_mlp": (
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    ),
    "dense_first": ("first_k_dense_replace", "moe_layer_start_index"),
    "draft_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What ``config.json`` says, in one vocabulary. ``raw`` is the part that describes the language model."""

    name: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mlp: int
    context: int
    experts: int
    top_k: int
    moe_mlp: int
    shared_mlp: int
    dense_first: int
    draft_layers: int
    tied: bool
    raw: Mapping[str, Any]
    vision: Mapping[str, Any]
    quantization: Mapping[str, Any]
    dtype: str

    def get(self, key: str, default: Any = None) -> Any:
        """A key of the language model's configuration; null counts as absent."""
        value = self.raw.get(key)
        return default if value is None else value


def _first(config: Mapping[str, Any], fact: str, default: int | None = None) -> int:
    for key in _NAMES[fact]:
        value = config.get(key)
        if isinstance(value, list):  # some variants give one value per layer
            numbers = [v for v in value if isinstance(v, int | float)]
            value = max(numbers) if numbers else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    if default is None:
        raise ConfigError(
            f"config.json has none of {', '.join(_NAMES[fact])}; is it a language model's configuration?",
            param=_NAMES[fact][0],
        )
    return default


def _language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's own section, with what only the outer level says."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            inner = _language_part(inner)
            outer = {k: v for k, v in config.items() if k not in _NESTED and not isinstance(v, Mapping)}
            if not inner.get("model_type"):
                inner = {**inner, "model_type": config.get("model_type")}
            return {**outer, **{k: v for k, v in inner.items() if v is not None}}
    return dict(config)


def read_facts(config: Mapping[str, Any], name: str = "") -> Facts:
    """The facts of a ``config.json``.

    Raises:
        ConfigError: a number without which no sum is possible is missing, or is out of range.
    """
    part = _language_part(config)
    check_configuration(config, part, any(isinstance(config.get(key), Mapping) for key in _NESTED))
    model_type = str(part.get("model_type") or config.get("model_type") or "llama").lower()
    hidden, heads = _first(part, "hidden"), _first(part, "heads")
    experts = _first(part, "experts", 0)
    mlp = _first(part, "mlp", 4 * hidden)
    if model_type == "falcon" and not part.get("new_decoder_architecture") and part.get("multi_query", True):
        part.setdefault("num_kv_heads", 1)
    if model_type == "chatglm" and not part.get("multi_query_attention", True):
        part["multi_query_group_num"] = heads
    vision = config.get("vision_config") or part.get("vision_config") or {}
    kv_heads = _first(part, "kv_heads", heads)
    moe_mlp = _first(part, "moe_mlp", mlp)
    pattern = part.get("hybrid_override_pattern") or ""
    facts = Facts(
        name=name or str(config.get("_name_or_path") or model_type),
        model_type=model_type,
        layers=len(pattern) if pattern else _first(part, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_first(part, "head_dim", hidden // max(1, heads)),
        vocab=_first(part, "vocab"),
        mlp=mlp,
        context=_context(part),
        experts=experts,
        top_k=_first(part, "top_k", 2) if experts else 0,
        moe_mlp=moe_mlp,
        shared_mlp=_shared_mlp(part, model_type, moe_mlp, mlp),
        dense_first=_first(part, "dense_first", 0),
        draft_layers=_first(part, "draft_layers", 0),
        tied=_tied(config, part, model_type),
        raw=part,
        vision=vision if isinstance(vision, Mapping) else {},
        quantization=config.get("quantization_config") or part.get("quantization_config") or {},
        dtype=str(part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
    )
    _check(facts)
    return facts


def _check(facts: Facts) -> None:
    limits = {"layers": 10_000, "hidden": 1_000_000, "heads": 100_000, "vocab": 100_000_000, "experts": 100_000}
    for name, most in limits.items():
        value = getattr(facts, name)
        least = 0 if name == "experts" else 1
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}; it must be between {least} and {most}.", param=_NAMES[name][0])
    if min(facts.head_dim, facts.mlp, facts.moe_mlp) < 1 or facts.context < 1:
        raise ConfigError("Widths and the context must be at least 1.", param="intermediate_size")
    if facts.kv_heads < 1 or facts.kv_heads > facts.heads:
        raise ConfigError(
            f"{facts.kv_heads} key/value heads do not go with {facts.heads} attention heads.",
            param="num_key_value_heads",
        )


def _context(part: Mapping[str, Any]) -> int:
    """Longest context, stretched where the configuration says so and the length is not stretched already."""
    length = _first(part, "context", 2048)
    scaling = part.get("rope_scaling") or {}
    if isinstance(scaling, Mapping):
        kind = str(scaling.get("rope_type", scaling.get("type", "")))
        factor = float(scaling.get("factor") or 1.0)
        original = scaling.get("original_max_position_embeddings")
        if kind == "yarn" and original:
            return max(length, int(original * factor))
        if kind in ("linear", "dynamic"):
            return int(length * factor)
    return length


def _shared_mlp(part: Mapping[str, Any], model_type: str, moe_mlp: int, mlp: int) -> int:
    width = _first(part, "shared_mlp", 0)
    if width:
        return width
    if model_type.startswith("llama4"):
        return mlp
    return _first(part, "shared_experts", 0) * moe_mlp


_TIED_BY_DEFAULT = ("gemma", "cohere", "opt", "falcon", "gpt2", "bloom", "starcoder2", "mpt", "gpt_bigcode")


def _tied(config: Mapping[str, Any], part: Mapping[str, Any], model_type: str) -> bool:
    for level in (part, config):
        if isinstance(level.get("tie_word_embeddings"), bool):
            return bool(level["tie_word_embeddings"])
    return model_type.startswith(_TIED_BY_DEFAULT)


def facts_of_shape(shape: ModelShape) -> Facts:
    """The facts of a row of the built-in table."""
    config = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        **shape.config,
    }
    return read_facts(config, shape.name)
