"""A model as engines lay it out: its layers in order, embedding, output layer and vision tower.

The order of layers matters twice: pipeline stages take whole layers from the front, and hybrid caches are grouped by
kind. Equal layers are one object, so that sums over 126 layers cost as much as over two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exaserve.domain.errors import ConfigError
from exaserve.models import blocks
from exaserve.models.facts import Facts
from exaserve.models.formats import WeightFormat
from exaserve.models.tensors import Layer, Tensor
from exaserve.models.vision import vision_parameters

__all__ = ["Architecture", "build"]

_FOUR_NORMS = ("gemma2", "gemma3", "gemma4")
_ONE_NORM = ("cohere", "falcon", "nemotron_h")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model's layout.

    Attributes:
        facts: what its configuration says.
        fmt: the format of its weights.
        layers: in order; equal layers are the same object.
        embed / lm_head / vision: outside the layers; ``lm_head`` is None where the embedding serves as output layer.
        draft: one multi-token-prediction layer, None if the model has none.
        rope: positions and values of the rotary table that engines keep on every rank.
    """

    facts: Facts
    fmt: WeightFormat
    layers: tuple[Layer, ...]
    embed: Tensor
    lm_head: Tensor | None
    vision: tuple[Tensor, ...]
    draft: Layer | None
    rope: tuple[int, int]
    kinds: tuple[Layer, ...]
    """The distinct ones among ``layers``."""

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def parameters(self) -> int:
        """Parameters in total, without draft layers."""
        return self._sum(1.0)

    @property
    def active_parameters(self) -> int:
        """Parameters one token passes through."""
        return self._sum(self.facts.top_k / self.facts.experts if self.facts.experts else 1.0)

    def _sum(self, expert_share: float) -> int:
        total = 0.0
        counts: dict[int, int] = {}
        for layer in self.layers:
            counts[id(layer)] = counts.get(id(layer), 0) + 1
        for layer in self.kinds:
            for tensor in layer.tensors:
                total += tensor.parameters * (expert_share if tensor.experts else 1.0) * counts[id(layer)]
        outside = [self.embed, *self.vision, *([self.lm_head] if self.lm_head else [])]
        last_norm = self.facts.hidden
        return round(total + sum(t.parameters for t in outside) + last_norm)

    @property
    def is_hybrid(self) -> bool:
        kinds = {cache.kind for layer in self.layers for cache in layer.caches}
        return len(kinds) > 1


def _pattern(f: Facts) -> list[str]:
    """The kind of every layer: full, sliding, chunked, linear, mamba; for Nemotron-H M, *, - or E."""
    override = f.get("hybrid_override_pattern")
    if override:
        return list(override)
    types = f.get("layers_block_type") or f.get("layer_types")
    if isinstance(types, list) and types:
        names = _NEMOTRON if f.model_type == "nemotron_h" else {}
        # More than there are layers: those of the draft at the end.
        return [names.get(str(t)) or _layer_kind(str(t)) for t in types[: f.layers]]
    if isinstance(f.get("attn_layer_indices"), list):  # Bamba
        return ["full" if i in f.get("attn_layer_indices") else "mamba" for i in range(f.layers)]
    if f.get("attn_layer_period"):  # Jamba
        period, offset = int(f.get("attn_layer_period")), int(f.get("attn_layer_offset", 0))
        return ["full" if i % period == offset else "mamba" for i in range(f.layers)]
    if f.get("full_attention_interval"):
        every = int(f.get("full_attention_interval"))
        return ["full" if i % every == every - 1 else "linear" for i in range(f.layers)]
    linear = f.get("linear_attn_config")
    if isinstance(linear, Mapping):
        full = {int(i) - 1 for i in linear.get("full_attn_layers", ())}
        return ["full" if i in full else "kimi" for i in range(f.layers)]
    if f.get("attention_chunk_size"):  # Llama 4: every fourth layer sees everything
        every = int(f.get("no_rope_layer_interval", 4))
        return ["full" if (i + 1) % every == 0 else "chunked" for i in range(f.layers)]
    if f.get("sliding_window") and f.get("use_sliding_window", not f.model_type.startswith("qwen")):
        return _windows(f)
    return ["full"] * f.layers


_EVERY = {"gemma2": 2, "gemma3": 6, "cohere2": 4, "gpt_oss": 2, "olmo3": 4, "exaone4": 4}
"""Of how many layers the last sees everything, where no key says it."""


def _windows(f: Facts) -> list[str]:
    if f.model_type.startswith("qwen"):  # the first ones see everything
        whole = int(f.get("max_window_layers", 0))
        return ["full" if i < whole else "sliding" for i in range(f.layers)]
    every = f.get("sliding_window_pattern", f.get("_sliding_window_pattern"))
    if isinstance(every, str):  # EXAONE: LLLG
        every = every.find("G") + 1
    if every is None:
        every = next((n for kind, n in _EVERY.items() if f.model_type.startswith(kind)), 0)
    return ["full" if every and (i + 1) % int(every) == 0 else "sliding" for i in range(f.layers)]


_NEMOTRON = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def _layer_kind(name: str) -> str:
    if name in ("attention", "full_attention", "full"):
        return "full"
    if "sliding" in name:
        return "sliding"
    if "chunk" in name:
        return "chunked"
    return "mamba" if "mamba" in name or name in ("recurrent", "conv") else "linear"


def _is_sparse(f: Facts, index: int) -> bool:
    """Whether a layer's feed-forward part is a mixture of experts."""
    if not f.experts or index < f.dense_first or index in (f.get("mlp_only_layers") or ()):
        return False
    if f.get("moe_layers_enum"):
        return str(index) in str(f.get("moe_layers_enum")).replace(" ", "").split(",")
    kinds = f.get("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) > index:
        return bool(kinds[index] == "sparse")
    every = int(f.get("decoder_sparse_step", f.get("interleave_moe_layer_step", 1)) or 1)
    if f.get("expert_layer_period"):
        return index % int(f.get("expert_layer_period")) == int(f.get("expert_layer_offset", 0))
    frequency = f.get("moe_layer_freq", 1)
    if isinstance(frequency, list):
        return bool(frequency[index])
    return (index + 1) % every == 0 and index % int(frequency or 1) == 0


def _mixer(f: Facts, kind: str, covers: blocks.Covers) -> blocks.Part:
    window = int(f.get("sliding_window", 0) or 0)
    if kind == "chunked":
        return blocks.attention(f, covers, "chunked", int(f.get("attention_chunk_size", 8192)))
    if kind == "linear":
        return blocks.gated_delta(f, covers)
    if kind == "kimi":
        return blocks.kimi_delta(f, covers)
    if kind in ("mamba", "M"):
        return blocks.mamba(f, covers)
    if kind in ("-", "E"):
        return [], []
    if f.get("kv_lora_rank"):
        return blocks.mla(f, covers)
    if kind == "full" and f.get("global_head_dim"):
        return blocks.attention(
            f,
            covers,
            "full",
            0,
            kv=int(f.get("num_global_key_value_heads", f.kv_heads)),
            dim=int(f.get("global_head_dim")),
            key_is_value=bool(f.get("attention_k_eq_v")),
        )
    if kind != "sliding":
        return blocks.attention(f, covers, "full", 0)
    if window < 1:
        raise ConfigError(
            "The configuration has layers with a sliding window but no sliding_window; write its size in.",
            param="sliding_window",
        )
    other = f.get("attention_other_setting") or {}  # Step: more query heads where there is a window
    heads, kv = int(other.get("num_attention_heads", 0)), int(other.get("num_attention_groups", 0))
    return blocks.attention(f, covers, "sliding", window, heads, kv)


def _channel(f: Facts, kind: str, index: int, covers: blocks.Covers) -> list[Tensor]:
    """What follows the mixer: feed-forward layer or experts."""
    if kind in ("M", "*"):
        return []
    if kind == "-":
        return blocks.feed_forward(f, covers, f.mlp)
    if kind == "E" or _is_sparse(f, index):
        tensors = blocks.experts(f, covers)
        if f.model_type.startswith("gemma4"):
            tensors += blocks.feed_forward(f, covers, f.mlp)
        return tensors
    if f.model_type.startswith("llama4"):
        return blocks.feed_forward(f, covers, int(f.get("intermediate_size_mlp", f.mlp)))
    wide = 2 if f.get("use_double_wide_mlp") and index >= _own_caches(f) else 1
    return blocks.feed_forward(f, covers, wide * f.mlp)


def _own_caches(f: Facts) -> int:
    """Layers from the front that keep keys and values of their own: the last ones of Gemma 3n and 4 read those of
    earlier layers (``num_kv_shared_layers``).
    """
    shared = int(f.get("num_kv_shared_layers", 0) or 0)
    return f.layers - shared if 0 < shared < f.layers else f.layers


def _shares_index(f: Facts, index: int) -> bool:
    """Whether a layer of sparse attention looks where an earlier one's index said (GLM-5.2)."""
    kinds = f.get("indexer_types")
    if isinstance(kinds, list):
        return index < len(kinds) and kinds[index] == "shared"
    every = int(f.get("index_topk_freq", 1) or 1)
    return max(index + 1 - int(f.get("index_skip_topk_offset", 0)), 0) % every != 0


def _layer(f: Facts, fmt: WeightFormat, kind: str, index: int) -> Layer:
    def covers(path: str) -> bool:
        if fmt.experts_only and ".experts." not in path:
            return False
        return fmt.covers(f"layers.{index}.{path}", index, f.layers)

    tensors, caches = _mixer(f, kind, covers)
    if _shares_index(f, index):
        tensors = [t for t in tensors if t.name not in ("wq_b", "wk", "weights_proj")]
        caches = caches[:1]
    if index >= _own_caches(f):
        caches = []
        if f.model_type.startswith("gemma4"):  # neither keys nor values of their own
            tensors = [t for t in tensors if t.name not in ("k_proj", "v_proj")]
    per_layer = int(f.get("hidden_size_per_layer_input", 0))
    if per_layer:
        tensors.append(Tensor("per_layer_input", 2 * per_layer, f.hidden, "none"))
    tensors = tensors + _channel(f, kind, index, covers)
    norms = 4 if f.model_type.startswith(_FOUR_NORMS) else 1 if f.model_type.startswith(_ONE_NORM) else 2
    tensors.append(Tensor("norm", norms * f.hidden, 1, "none"))
    absorbed = (0, 0)
    if any(c.kind == "mla" for c in caches):
        per_head = int(f.get("qk_nope_head_dim", 128)) + int(f.get("v_head_dim", 128))
        # From 16-bit weights the second copy is only a view.
        if any(t.name == "kv_b_proj" and t.quantised for t in tensors):
            absorbed = (f.heads, per_head * int(f.get("kv_lora_rank")))
    return Layer(kind, tuple(tensors), tuple(caches), f.heads if caches else 0, absorbed)


def build(facts: Facts, fmt: WeightFormat) -> Architecture:
    """Lays a model out in a format.

    Raises:
        ConfigError: the configuration contradicts itself.
    """
    kinds = _pattern(facts)
    own = _own_caches(facts)
    if len(kinds) != facts.layers:
        raise ConfigError(f"{len(kinds)} kinds of layer for {facts.layers} layers.", param="layer_types")
    seen: dict[Layer, Layer] = {}
    memo: dict[tuple[str, bool, bool, bool], Layer] = {}
    by_index = bool(fmt.unquantised_layers or fmt.ignored)
    layers = []
    for index, kind in enumerate(kinds):
        key = (kind, _is_sparse(facts, index), index < own, _shares_index(facts, index))
        if by_index or key not in memo:
            layer = _layer(facts, fmt, kind, index)
            memo[key] = seen.setdefault(layer, layer)
        layers.append(memo[key])
    tower = vision_parameters(facts.vision, facts.hidden) + int(facts.get("other_parameters", 0))
    head = None if facts.tied else Tensor("lm_head", facts.vocab, facts.hidden, "vocab", fmt.covers("lm_head"))
    draft = None
    if facts.draft_layers:
        draft = _layer(facts, fmt, "full", facts.layers - 1)
        merge = Tensor("eh_proj", facts.hidden, 2 * facts.hidden, "none")
        draft = Layer("draft", (*draft.tensors, merge), draft.caches, draft.query_heads, draft.absorbed)
    return Architecture(
        facts=facts,
        fmt=fmt,
        layers=tuple(layers),
        embed=_embedding(facts),
        lm_head=head,
        vision=(Tensor("vision", tower, 1, "column"),) if tower else (),
        draft=draft,
        rope=_rope(facts),
        kinds=tuple({id(layer): layer for layer in layers}.values()),
    )


def _embedding(f: Facts) -> Tensor:
    extra = 0
    if f.model_type.startswith(("opt", "gpt2")):
        extra = f.context  # learned positions
    per_layer = int(f.get("hidden_size_per_layer_input", 0))
    if per_layer:
        # A second embedding, and the projection of the first one to all layers' inputs.
        extra += f.layers * per_layer * (f.vocab // f.hidden + 1)
    return Tensor("embed", f.vocab + extra, f.hidden, "vocab")


def _rope(f: Facts) -> tuple[int, int]:
    """Positions and values of each in the table of sines and cosines."""
    if f.model_type.startswith(("opt", "gpt2", "bloom", "mpt", "nemotron_h")):
        return 0, 0
    values = int(f.get("qk_rope_head_dim", 0)) if f.get("kv_lora_rank") else f.head_dim
    factor: Any = f.get("partial_rotary_factor", f.get("rotary_pct", 1.0))
    parameters = f.get("rope_parameters")
    if isinstance(parameters, Mapping) and "partial_rotary_factor" in parameters:
        factor = parameters["partial_rotary_factor"]
    return f.context, int(values * float(factor))
