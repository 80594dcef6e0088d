"""Which keys of a ``config.json`` decide a model's layers, under the names that architectures give them.

Where one is missing, an engine takes the default of the model's class, which is another model's figure as often as not.
So it is an error here that names the keys and the repair. Derived is only what the class derives from the other keys as
well (one key/value head per query head, a head of ``hidden / heads``, a feed-forward layer four times as wide), and
filled in only what the publisher's own files leave out (:data:`_CLASS_DEFAULTS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exaserve.domain.errors import ConfigError

__all__ = ["KEYS", "class_defaults", "derived", "first", "require"]

KEYS: Mapping[str, tuple[str, ...]] = {
    fact: tuple(names.split())
    for fact, names in {
        "layers": "num_hidden_layers n_layer num_layers n_layers",
        "hidden": "hidden_size n_embd d_model model_dim",
        "heads": "num_attention_heads n_head n_heads",
        "kv_heads": "num_key_value_heads num_kv_heads multi_query_group_num n_head_kv kv_n_heads num_query_groups"
        " num_attention_groups",
        "head_dim": "head_dim attention_head_dim kv_channels",
        "vocab": "vocab_size padded_vocab_size",
        "mlp": "intermediate_size ffn_dim ffn_hidden_size n_inner d_inner",
        "context": "max_position_embeddings max_sequence_length seq_length n_positions max_seq_len",
        "experts": "n_routed_experts num_experts num_local_experts moe_num_experts",
        "top_k": "num_experts_per_tok top_k_experts moe_topk moe_k num_experts_per_token moe_top_k",
        "moe_mlp": "moe_intermediate_size expert_intermediate_size moe_ffn_hidden_size",
        "shared_experts": "n_shared_experts num_shared_experts moe_num_shared_experts num_shared_expert",
        "shared_mlp": "moe_shared_expert_intermediate_size shared_expert_intermediate_size shared_intermediate_size"
        " share_expert_dim",
        "dense_first": "first_k_dense_replace moe_layer_start_index",
        "draft_layers": "num_nextn_predict_layers mtp_num_hidden_layers num_mtp_modules",
    }.items()
}
"""Fact → its names, the usual one first."""


def _kinds(names: str) -> frozenset[str]:
    return frozenset(names.split())


_MIXTURES = _kinds(
    "mixtral dbrx deepseek deepseek_v2 deepseek_v3 deepseek_v32 kimi_k2 kimi_k25 kimi_linear gpt_oss llama4 "
    "minimax_m2 qwen3_next glm_moe_dsa dots1 step3p5 mistral4 jamba"
)
"""Always with experts; so is every ``…moe…``."""

_ONE_WIDTH = _kinds("mixtral dbrx gpt_oss llama4 minimax_m2 phimoe olmoe jamba granitemoe granitemoehybrid")
"""Mixtures whose ``intermediate_size`` is the experts' width."""

_FOUR_TIMES = _kinds("gpt2 gptj gpt_bigcode bloom falcon mpt")
_HEAD_EACH = _kinds(
    "llama yi aquila baichuan internlm internlm2 internlm3 deepseek cohere olmo olmo2 olmo3 olmoe phi3 granite "
    "opt gpt2 bloom gpt_neox gptj mpt qwen chatglm falcon"
)
"""Classes that give every query head its own keys and values where the configuration names no number."""

_HEAD_OWN = _kinds(
    "gemma gemma2 gemma3 gemma4 gemma4_unified qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe qwen3_vl "
    "qwen3_vl_moe glm4_moe gpt_oss seed_oss ministral3 ernie4_5 minimax_m2 nemotron_h"
)
"""Classes whose heads are not ``hidden / heads`` wide where the configuration names no width."""

_SHORT = frozenset(("bloom", "falcon"))
"""Their configurations name no context; it is 2,048."""

_MLA = "kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim"
_INDEX = "index_n_heads index_head_dim"
_WHERE = "first_k_dense_replace?|mlp_layer_types n_shared_experts?|num_shared_experts?"
_DELTA = (
    "linear_num_key_heads linear_key_head_dim linear_num_value_heads linear_value_head_dim linear_conv_kernel_dim"
    " full_attention_interval|layer_types"
)
_MAMBA = "mamba_n_heads mamba_d_head mamba_d_state mamba_d_conv mamba_n_groups"
_SHARED = "shared_expert_intermediate_size"
_BY_KIND: Mapping[str, str] = {
    "deepseek_v2": f"{_MLA} {_WHERE}",
    "deepseek_v3": f"{_MLA} {_WHERE}",
    "deepseek_v32": f"{_MLA} {_INDEX} {_WHERE}",
    "dots1": _WHERE,
    "ernie4_5_moe": "moe_layer_start_index?|first_k_dense_replace?",
    "gemma2": "sliding_window",
    "gemma3": "sliding_window",
    "gemma4": "global_head_dim sliding_window layer_types|sliding_window_pattern",
    "gemma4_unified": "global_head_dim sliding_window layer_types|sliding_window_pattern",
    "glm4_moe": _WHERE,
    "glm4_moe_lite": f"{_MLA} {_WHERE}",
    "glm_moe_dsa": f"{_MLA} {_INDEX} {_WHERE}",
    "gpt_oss": "sliding_window",
    "granitemoehybrid": "layer_types|layers_block_type",
    "bamba": f"attn_layer_indices|layer_types {_MAMBA}",
    "jamba": "attn_layer_period attn_layer_offset expert_layer_period expert_layer_offset"
    " mamba_d_state mamba_d_conv mamba_expand",
    "kimi_k2": f"{_MLA} {_WHERE}",
    "kimi_k25": f"{_MLA} {_WHERE}",
    "kimi_linear": f"linear_attn_config {_MLA}",
    "llama4": "attention_chunk_size interleave_moe_layer_step intermediate_size_mlp",
    "mistral4": f"{_MLA} {_WHERE}",
    "nemotron_h": "hybrid_override_pattern|layers_block_type mamba_num_heads mamba_head_dim ssm_state_size n_groups"
    " conv_kernel",
    "qwen2_moe": _SHARED,
    "qwen3_5": _DELTA,
    "qwen3_5_moe": f"{_DELTA} {_SHARED}",
    "qwen3_next": f"{_DELTA} {_SHARED}",
    "step3p5": "layer_types sliding_window attention_other_setting moe_layers_enum share_expert_dim",
}
"""What else a ``model_type`` must say: one of the names between bars; null will do where a question mark follows."""

_CLASS_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma3": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
    }
}
"""Google's own files of Gemma 3 leave out what is the default of ``Gemma3TextConfig``."""


def class_defaults(kind: str) -> Mapping[str, int]:
    """What a published configuration of this ``model_type`` may leave out."""
    return _CLASS_DEFAULTS.get(kind, {})


def first(config: Mapping[str, Any], fact: str, default: int | None = None) -> int:
    """A fact under whichever of its names the configuration has.

    Raises:
        ConfigError: it has none, and there is no default.
    """
    for key in KEYS[fact]:
        value = config.get(key)
        if isinstance(value, list):  # some variants give one value per layer
            numbers = [v for v in value if isinstance(v, int | float)]
            value = max(numbers) if numbers else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    if default is None:
        raise _missing(config, KEYS[fact])
    return default


def derived(config: Mapping[str, Any], kind: str, fact: str, value: int) -> int:
    """A fact that some classes derive from others: ``value`` for those, an error where it is missing for the rest."""
    derives = {
        "mlp": kind in _FOUR_TIMES,
        "moe_mlp": kind in _ONE_WIDTH,
        "kv_heads": kind in _HEAD_EACH or bool(config.get("kv_lora_rank")),
        "head_dim": kind not in _HEAD_OWN,
        "context": kind in _SHORT,
    }
    return first(config, fact, value if derives[fact] else None)


def require(config: Mapping[str, Any], kind: str) -> None:
    """Raises ConfigError where a key is missing that a ``model_type``'s layers follow from."""
    layers = str(config.get("hybrid_override_pattern") or config.get("layers_block_type") or "")
    mixture = kind in _MIXTURES or "moe" in kind or (kind == "nemotron_h" and ("E" in layers or "moe" in layers))
    if mixture and not any(key in config for key in KEYS["experts"]):
        raise _missing(config, KEYS["experts"])
    needed = _BY_KIND.get(kind, "").split()
    if kind == "granitemoehybrid" and "mamba" in str(config.get("layer_types") or layers):
        needed += _MAMBA.split()
    if int(config.get("index_topk_freq") or 1) > 1:  # some layers share an index: which?
        needed.append("indexer_types|index_skip_topk_offset")
    for names in needed:
        if not any(_says(config, name) for name in names.split("|")):
            raise _missing(config, names.replace("?", "").split("|"))


def _says(config: Mapping[str, Any], name: str) -> bool:
    return config.get(name) is not None or (name.endswith("?") and name[:-1] in config)


def _missing(config: Mapping[str, Any], keys: tuple[str, ...] | list[str]) -> ConfigError:
    what = keys[0] if len(keys) == 1 else f"any of {', '.join(keys)}"
    return ConfigError(
        f"config.json (model_type {config.get('model_type')!r}) lacks {what}, and the layers follow from it; an engine "
        "would take its class's default, which is not known here. Write it in, as the model's card or another copy of "
        "its config.json gives it.",
        param=keys[0],
    )
