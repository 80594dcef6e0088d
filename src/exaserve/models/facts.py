"""Reads a Hugging Face ``config.json`` (or a row of the built-in table) into one vocabulary of facts.

Architectures name the same thing differently (``n_head``, ``num_experts``, ``n_routed_experts``):
:mod:`exaserve.models.deciding` knows the names, :mod:`exaserve.models.blocks` and :mod:`exaserve.models.architecture`
what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.models.deciding import KEYS, class_defaults, derived, first, require
from exaserve.models.shape import ModelShape
from exaserve.models.supported import check_configuration

__all__ = ["Facts", "facts_of_shape", "read_facts"]

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
_INNER = ("attn_config", "ffn_config")
"""Sections of a language model's own (DBRX, MPT)."""


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


def _language_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's own section, with what only the outer level says."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            inner = _language_part(inner)
            outer = {k: v for k, v in config.items() if k not in _NESTED and not isinstance(v, Mapping)}
            if not inner.get("model_type"):
                inner = {**inner, "model_type": config.get("model_type")}
            return {**outer, **{k: v for k, v in inner.items() if v is not None or k not in outer}}
    flat = {k: v for key in _INNER if isinstance(config.get(key), Mapping) for k, v in config[key].items()}
    return {**flat, **config}


def read_facts(config: Mapping[str, Any], name: str = "") -> Facts:
    """The facts of a ``config.json``.

    Raises:
        ConfigError: a key that decides the layers is missing, or a number is out of range.
    """
    part = _language_part(config)
    check_configuration(config, part, any(isinstance(config.get(key), Mapping) for key in _NESTED))
    model_type = str(part.get("model_type") or config.get("model_type")).lower()
    kind = model_type.removesuffix("_text")
    part = {**class_defaults(kind), **part}
    require(part, kind)
    _old_names(part, kind)
    hidden, heads = first(part, "hidden"), first(part, "heads")
    experts, dense_first = first(part, "experts", 0), first(part, "dense_first", 0)
    pattern = part.get("hybrid_override_pattern") or part.get("layers_block_type") or ""
    if experts and not dense_first and any(part.get(key) for key in KEYS["moe_mlp"]):
        mlp = first(part, "mlp", first(part, "moe_mlp"))
    elif pattern and kind == "nemotron_h" and not ({"-", "mlp"} & set(pattern)):
        mlp = first(part, "mlp", hidden)
    else:
        mlp = derived(part, kind, "mlp", int(part.get("expansion_ratio") or 4) * hidden)
    moe_mlp = derived(part, kind, "moe_mlp", mlp) if experts else mlp
    vision = config.get("vision_config") or part.get("vision_config") or {}
    facts = Facts(
        name=name or str(config.get("_name_or_path") or model_type),
        model_type=model_type,
        layers=len(pattern) if pattern else first(part, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=derived(part, kind, "kv_heads", heads),
        head_dim=derived(part, kind, "head_dim", hidden // max(1, heads)),
        vocab=first(part, "vocab"),
        mlp=mlp // 2 if kind == "qwen" else mlp,  # Qwen 1 names gate and up together
        context=_context(part, kind),
        experts=experts,
        top_k=first(part, "top_k") if experts else 0,
        moe_mlp=moe_mlp,
        shared_mlp=_shared_mlp(part, model_type, moe_mlp, mlp),
        dense_first=dense_first,
        draft_layers=first(part, "draft_layers", 0),
        tied=_tied(config, part, model_type),
        raw=part,
        vision=vision if isinstance(vision, Mapping) else {},
        quantization=config.get("quantization_config") or part.get("quantization_config") or {},
        dtype=str(part.get("dtype") or part.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"),
    )
    _check(facts)
    return facts


def _old_names(part: dict[str, Any], kind: str) -> None:
    """Multi-query attention, which older classes switch on by a key of its own."""
    if kind == "falcon" and not part.get("new_decoder_architecture") and part.get("multi_query", True):
        part.setdefault("num_kv_heads", 1)
    if kind == "gpt_bigcode" and part.get("multi_query", True):
        part.setdefault("num_kv_heads", 1)
    if kind == "chatglm" and not part.get("multi_query_attention", True):
        part["multi_query_group_num"] = first(part, "heads")


def _check(facts: Facts) -> None:
    limits = {"layers": 10_000, "hidden": 1_000_000, "heads": 100_000, "vocab": 100_000_000, "experts": 100_000}
    for name, most in limits.items():
        value = getattr(facts, name)
        least = 0 if name == "experts" else 1
        if not least <= value <= most:
            raise ConfigError(f"{name} is {value}; it must be between {least} and {most}.", param=KEYS[name][0])
    if min(facts.head_dim, facts.mlp, facts.moe_mlp) < 1 or facts.context < 1:
        raise ConfigError("Widths and the context must be at least 1.", param="intermediate_size")
    if facts.kv_heads < 1 or facts.kv_heads > facts.heads:
        raise ConfigError(
            f"{facts.kv_heads} key/value heads do not go with {facts.heads} attention heads.",
            param="num_key_value_heads",
        )


def _context(part: Mapping[str, Any], kind: str) -> int:
    """Longest context, stretched where the configuration says so and the length is not stretched already."""
    length = derived(part, kind, "context", 2048)
    if kind == "gemma3":
        return length
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
    width = first(part, "shared_mlp", 0)
    if width:
        return width
    if model_type.startswith("llama4"):
        return mlp
    return first(part, "shared_experts", 0) * moe_mlp


_TIED_BY_DEFAULT = (
    "gemma", "cohere", "opt", "falcon", "gpt2", "bloom", "starcoder2", "mpt", "gpt_bigcode", "ernie4_5", "smollm3",
)  # fmt: skip


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
        **({"num_experts": shape.experts, "num_experts_per_tok": shape.experts_per_token} if shape.experts else {}),
        **shape.config,
    }
    return read_facts(config, shape.name)
